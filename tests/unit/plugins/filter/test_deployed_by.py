# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.deployed_by import FilterModule

deployed_by = FilterModule().filters()["deployed_by"]


def release(why: str, current: bool = True) -> dict:
    return {"number": 1, "state": "served", "current": current, "why": why}


def test_only_what_serves_and_was_deployed_for_that_reason_is_named():
    releases = {
        "two": [release("earlier", current=False), release("job 7")],
        "one": [release("job 7")],
        "went-back": [release("earlier"), release("job 7", current=False)],
        "not-reached": [release("job 70")],
        "never-deployed": [],
    }
    assert deployed_by(releases, "job 7") == ["one", "two"]


@pytest.mark.parametrize("nothing", ["", None])
def test_without_a_reason_nothing_is_undone(nothing):
    with pytest.raises(AnsibleFilterError, match="vllm_why"):
        deployed_by({"one": [release("")]}, nothing)

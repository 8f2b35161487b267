# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.ladder import FilterModule
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose

ladder = FilterModule().filters()["ladder"]


def test_findings_become_the_next_change():
    told = ladder(diagnose("Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'"))
    assert told["change"]["variable"] == "engine_args.disable_custom_all_reduce"


@pytest.mark.parametrize("wrong", ["text", [{}]])
def test_what_is_no_finding_is_refused(wrong):
    with pytest.raises(AnsibleFilterError, match="must be a list of findings"):
        ladder(wrong)

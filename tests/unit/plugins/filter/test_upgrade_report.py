# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter upgrade_report: a thin skin over the catalogue's report."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.upgrade_report import FilterModule

upgrade_report = FilterModule().filters()["upgrade_report"]


def test_an_instance_gets_its_report() -> None:
    instance = {"name": "chat", "image": "vllm/vllm-openai:v0.12.0", "engine_args": {"task": "embed"}}
    report = upgrade_report(instance, "v0.32.0")
    assert (report["instance"], report["from"], report["to"], report["verdict"]) == (
        "chat",
        "v0.12.0",
        "v0.32.0",
        "blocked",
    )


@pytest.mark.parametrize(
    ("instance", "target", "told"),
    [
        ({"name": "chat"}, "v0.32.0", "at least name and image"),
        ("v0.32.0", "v0.32.0", "at least name and image"),
        ({"name": "chat", "image": "x:latest"}, "v0.32.0", "names no vLLM release"),
        ({"name": "chat", "image": "v0.32.0"}, "v0.99.0", "not in the catalogue"),
    ],
)
def test_what_is_wrong_is_an_ansible_error(instance: Any, target: str, told: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"upgrade_report: .*{told}"):
        upgrade_report(instance, target)

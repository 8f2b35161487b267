# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter serve_args: a thin skin over the catalogue's rendering."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.serve_args import FilterModule

serve_args = FilterModule().filters()["serve_args"]

PLAN: dict[str, Any] = {"release": {"version": "0.32.0"}, "arguments": [{"name": "max_model_len", "value": 8192}]}


def test_a_plan_becomes_words() -> None:
    assert serve_args(PLAN, model="/models/m") == ["/models/m", "--max-model-len", "8192"]


def test_the_options_reach_the_rendering() -> None:
    plan = {**PLAN, "release": "v0.9.0", "extra_args": ["--my-own", "1"]}
    assert serve_args(plan, model="/m", force=["my_own"], entrypoint="serve") == [
        "/m",
        "--max-model-len",
        "8192",
        "--my-own",
        "1",
    ]


@pytest.mark.parametrize(
    ("plan", "options", "told"),
    [
        ({**PLAN, "extra_args": ["--swap-space", "4"]}, {"model": "/m"}, "--swap-space"),
        ({**PLAN, "release": "latest"}, {"model": "/m"}, "names no vLLM release"),
        (PLAN, {}, "no model"),
        ("--seed 1", {}, "a plan is a dictionary, not str"),
        (PLAN, {"model": "/m", "entrypoint": "bash"}, "it may be serve or api_server"),
    ],
)
def test_what_is_wrong_is_an_ansible_error(plan: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"serve_args: .*{told}"):
        serve_args(plan, **options)

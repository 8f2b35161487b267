# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.ladder import ladder
from ansible_collections.gpufleet.vllm.plugins.filter.ladder_row import ladder_row
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose


def test_a_step_and_its_row():
    findings = diagnose("RuntimeError: CUDA error: an illegal memory access was encountered")
    row = ladder_row(ladder(findings), "failed", 2.345, findings)
    assert row == {
        "step": 1,
        "class": "kernel_backend",
        "variable": "engine_args.enforce_eager",
        "from": None,
        "to": True,
        "why": "It shows whether compilation or graphs are the cause.",
        "probe": True,
        "outcome": "failed",
        "kept": False,
        "minutes": 2.3,
        "finding": findings[0]["title"],
    }


@pytest.mark.parametrize(("step", "outcome"), [({}, "failed"), ({"change": None}, "failed"), ({"change": {}}, "x")])
def test_what_is_no_step_is_refused(step, outcome):
    with pytest.raises(AnsibleFilterError):
        ladder_row(step, outcome, 1.0)


def test_an_unknown_outcome_is_refused():
    step = ladder(diagnose("[Errno 98] address already in use", {"instance": {"port": 8000}}))
    with pytest.raises(AnsibleFilterError, match="serves, failed or refused"):
        ladder_row(step, "perhaps", 1.0)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.diagnose import FilterModule

diagnose = FilterModule().filters()["diagnose"]


def test_a_log_becomes_findings():
    findings = diagnose("RuntimeError: No CUDA GPUs are available")
    assert [finding["class"] for finding in findings] == ["container_runtime"]


def test_the_context_is_passed_on():
    finding = diagnose("[Errno 98] address already in use", {"instance": {"port": 8000}})[0]
    assert finding["change"] == {"variable": "port", "from": 8000, "to": 8001}


def test_a_log_that_is_no_text_is_refused():
    with pytest.raises(AnsibleFilterError, match="the log must be a text, not list"):
        diagnose(["a", "b"])

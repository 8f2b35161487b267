# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.preflight import FilterModule as PreflightModule
from ansible_collections.gpufleet.vllm.plugins.filter.preflight_table import FilterModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host

preflight = PreflightModule().filters()["preflight"]
preflight_table = FilterModule().filters()["preflight_table"]

HOST = {**new_host("nvml"), "gpus": [dict(new_gpu(0), persistence_mode="Disabled")]}


def test_the_table_takes_checks_only():
    assert preflight_table(preflight(HOST), "gpu1").startswith("gpu1 can run this: 0 failed, 1 warning")
    for other in (["text"], [{"check": "gpu"}]):
        with pytest.raises(AnsibleFilterError, match="no checks"):
            preflight_table(other, "gpu1")

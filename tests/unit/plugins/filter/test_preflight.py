# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.preflight import FilterModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host

preflight = FilterModule().filters()["preflight"]

HOST = {**new_host("nvml"), "gpus": [dict(new_gpu(0), persistence_mode="Disabled")]}


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("true", True), ("no", False), (False, False)])
def test_variables_of_the_command_line_are_text(value, expected):
    checks = preflight(HOST, fixes={"vllm_host_persistence_mode": value, "vllm_host_cgroup_driver": "cgroupfs"})
    found = {check["check"]: check["will_be_fixed"] for check in checks}
    assert found["persistence_mode"] is expected


def test_what_is_no_result_of_gpu_info_is_refused():
    for other in ({}, [], "text"):
        with pytest.raises(AnsibleFilterError, match="gpu_info"):
            preflight(other)


def test_an_unknown_name_is_not_tolerated():
    with pytest.raises(AnsibleFilterError, match=r"tolerate names disk, .*image_disk"):
        preflight(HOST, tolerate=["disk", "port"])

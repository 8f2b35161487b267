# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.docker_daemon import FilterModule as DaemonModule
from ansible_collections.gpufleet.vllm.plugins.filter.preflight import FilterModule as PreflightModule
from ansible_collections.gpufleet.vllm.plugins.filter.preflight_table import FilterModule as TableModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host

preflight = PreflightModule().filters()["preflight"]
preflight_table = TableModule().filters()["preflight_table"]
docker_daemon = DaemonModule().filters()["docker_daemon"]

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


def test_the_table_takes_checks_only():
    assert preflight_table(preflight(HOST), "gpu1").startswith("gpu1 can run this: 0 failed, 1 warning")
    for other in (["text"], [{"check": "gpu"}]):
        with pytest.raises(AnsibleFilterError, match="no checks"):
            preflight_table(other, "gpu1")


# --- Docker's configuration ---------------------------------------------------------------------------------------

DAEMON = """{
  "data-root": "/data/docker",
  "exec-opts": ["native.cgroupdriver=systemd", "native.umask=normal"],
  "runtimes": {"kata": {"path": "kata-runtime"}}
}
"""


def test_settings_are_added_and_the_rest_stays():
    merged = json.loads(docker_daemon(DAEMON, nvidia_runtime=True, cgroup_driver="cgroupfs"))
    assert merged == {
        "data-root": "/data/docker",
        "exec-opts": ["native.umask=normal", "native.cgroupdriver=cgroupfs"],
        "runtimes": {
            "kata": {"path": "kata-runtime"},
            "nvidia": {"args": [], "path": "nvidia-container-runtime"},
        },
    }


@pytest.mark.parametrize("text", ["", "  \n", DAEMON, '{"runtimes": {}}', '{"exec-opts": null}'])
@pytest.mark.parametrize("settings", [{"nvidia_runtime": True}, {"cgroup_driver": "cgroupfs"}, {}])
def test_a_second_time_changes_no_letter(text, settings):
    once = docker_daemon(text, **settings)
    assert docker_daemon(once, **settings) == once
    assert bool(settings) == (once != text)


def test_a_runtime_that_is_registered_stays_as_it_is():
    text = '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}'
    assert docker_daemon(text, nvidia_runtime=True) == text


def test_a_driver_named_twice_is_named_once():
    text = '{"exec-opts": ["native.cgroupdriver=systemd", "native.cgroupdriver=cgroupfs"]}'
    assert json.loads(docker_daemon(text, cgroup_driver="cgroupfs")) == {"exec-opts": ["native.cgroupdriver=cgroupfs"]}


@pytest.mark.parametrize(
    ("text", "settings", "part"),
    [
        ("{,}", {}, "python3 -m json.tool /etc/docker/daemon.json"),
        ("[]", {"nvidia_runtime": True}, "no JSON object"),
        ("{}", {"cgroup_driver": "cgroupfs2"}, "cgroupfs or systemd"),
    ],
)
def test_what_docker_could_not_read_is_refused(text, settings, part):
    with pytest.raises(AnsibleFilterError, match=part):
        docker_daemon(text, **settings)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.docker_daemon import FilterModule

docker_daemon = FilterModule().filters()["docker_daemon"]

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

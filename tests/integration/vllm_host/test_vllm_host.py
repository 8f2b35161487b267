# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role vllm_host on a simulated host that runs already (playbooks/lab_up.yml).

GPUFLEET_INVENTORY names the inventory (inventories/lab by default), of which the first simulated host is used; without
one the tests are skipped. What they change there they change back. About 40 s.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
INVENTORY = os.environ.get("GPUFLEET_INVENTORY", f"{REPOSITORY}/inventories/lab")
PROFILE = "/etc/gpufleet-driver/profile"
DAEMON = "/etc/docker/daemon.json"


def run(*command):
    environment = {**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg"}
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def shell(host, command):
    """The output of a command on the host."""
    arguments = ("--inventory", INVENTORY, "--become", "--module-name", "ansible.builtin.shell", "--args", command)
    result = run("ansible", host, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.split("\n", 1)[1]


def check(host, *arguments):
    """(exit code, number of changes, output with single blanks) of the playbook on the host."""
    playbook = ("ansible-playbook", "--inventory", INVENTORY, "--limit", host, f"{HERE}/preflight.yml")
    result = run(*playbook, *arguments)
    return result.returncode, int(re.search(r"changed=(\d+)", result.stdout).group(1)), " ".join(result.stdout.split())


@pytest.fixture(name="host", scope="module")
def find_host():
    listed = run("ansible-inventory", "--inventory", INVENTORY, "--list")
    hosts = json.loads(listed.stdout)["_meta"]["hostvars"] if listed.returncode == 0 else {}
    simulated = [(name, variables) for name, variables in hosts.items() if "lab_profile" in variables]
    for name, variables in simulated[:1]:
        try:
            socket.create_connection((variables["ansible_host"], variables["ansible_port"]), timeout=2).close()
        except OSError:
            break
        return name
    print(f"skipped: no simulated host of {INVENTORY} answers; ansible-playbook playbooks/lab_up.yml starts them")
    pytest.skip("no simulated host answers")


def test_a_host_that_is_able(host):
    code, changes, output = check(host)
    assert (code, changes) == (0, 0), output


def test_a_driver_that_does_not_work_is_named_and_nothing_changes(host):
    shell(host, f"cp {PROFILE} /var/tmp/profile && cat /usr/share/gpufleet-driver/profiles/mismatch.json > {PROFILE}")
    try:
        code, changes, output = check(host, "--extra-vars", "vllm_host_configure_runtime=true")
    finally:
        shell(host, f"cat /var/tmp/profile > {PROFILE} && rm /var/tmp/profile")
    assert code != 0 and changes == 0
    assert f"{host} cannot run this: 1 failed" in output
    assert "kernel module and the driver library are of different versions" in output


def test_a_port_that_is_taken_is_named_with_its_owner(host):
    shell(host, "systemd-run --unit preflight-port --collect python3 -m http.server --bind 127.0.0.1 9555 && sleep 1")
    try:
        code, _changes, output = check(host)
    finally:
        shell(host, "systemctl stop preflight-port")
    assert code != 0
    assert re.search(
        r"instance preflight, port 9555 on 127.0.0.1: the port is taken by python3 \(process \d+\)", output
    )


def test_the_runtime_is_registered_when_the_variable_says_so(host):
    take_away = (
        f"cp {DAEMON} /var/tmp/ && echo '{{\"runtimes\": {{}}}}' > {DAEMON} && systemctl reload docker && sleep 1"
    )
    if "containers run" in shell(
        host, f"if docker ps -q | grep . ; then echo containers run; else {take_away}; fi; true"
    ):
        print("skipped: containers run on the host, and this test takes NVIDIA's runtime away from its Docker")
        pytest.skip("containers run on the host")
    allow = ("--extra-vars", "vllm_host_configure_runtime=true")
    try:
        refused, fixed, again = check(host), check(host, "--diff", *allow), check(host, *allow)
    finally:
        shell(
            host,
            f"cat /var/tmp/daemon.json > {DAEMON} && rm -f {DAEMON}.*~ /var/tmp/daemon.json && systemctl reload docker",
        )
    assert refused[0] != 0 and refused[1] == 0
    assert "set vllm_host_configure_runtime to true" in refused[2]
    assert fixed[0] == 0 and '+ "nvidia": {' in fixed[2], fixed[2]
    assert again[:2] == (0, 0), again[2]

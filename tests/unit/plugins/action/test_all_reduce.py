# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.vllm.plugins.action import all_reduce
from ansible_collections.gpufleet.vllm.plugins.modules import all_reduce as module

PLAN = {
    "name": "big",
    "image": "vllm/vllm-openai:v0.32.0",
    "hosts": ["a", "b"],
    "environment": {},
    "devices": {"a": ["GPU-1", "GPU-2"], "b": ["GPU-3", "GPU-4"]},
    "launch": {
        "master_addr": "10.0.0.1",
        "master_port": 29000,
        "members": [
            {"host": "a", "address": "10.0.0.1", "rdma": [], "environment": {"VLLM_HOST_IP": "10.0.0.1"}},
            {"host": "b", "address": "10.0.0.2", "rdma": [], "environment": {"VLLM_HOST_IP": "10.0.0.2"}},
        ],
    },
}


@pytest.fixture
def run(monkeypatch):
    def start(host, plan):
        calls = []
        action = all_reduce.ActionModule(
            types.SimpleNamespace(args={"plan": plan}, async_val=0, check_mode=False, diff=False, environment=None),
            types.SimpleNamespace(_shell=types.SimpleNamespace(tmpdir="/none")),
            types.SimpleNamespace(check_mode=False),
            loader=None,
            templar=None,
            shared_loader_obj=None,
        )
        monkeypatch.setattr(
            action,
            "_execute_module",
            lambda module_name, module_args, task_vars: calls.append(module_args) or {"changed": False, "text": ""},
        )
        action.run(task_vars={"inventory_hostname": host})
        return calls[0]

    return start


def test_every_host_runs_its_part_through_the_image(run):
    asked = run("b", PLAN)
    assert asked["folder"] == "/run/vllm/big.all-reduce"
    command = " ".join(asked["command"])
    assert command.startswith("/usr/bin/docker run --name vllm-big-all-reduce ")
    assert '--gpus "device=GPU-3,GPU-4"' in command
    assert "--node-rank 1 --nproc-per-node 2" in command
    assert "--env VLLM_HOST_IP=10.0.0.2" in command


def test_a_host_that_is_no_member_is_told_so(run):
    with pytest.raises(AnsibleActionFail, match="'c' is none of its hosts a, b"):
        run("c", PLAN)


def test_rank_0_tells_what_was_measured():
    line = 'MEASURED {"backend": "nccl", "gpus": 4, "mebibytes": 64, "seconds": 0.0054, "gigabytes_per_second": 18.6}'
    measured = module.read_measured(f"NCCL version 2.27\n{line}\n")
    assert module.in_words(PLAN, measured) == "all-reduce of 64 MiB over 4 ranks on a, b: 5.4 ms, 18.6 GB/s (NCCL)"


def test_the_other_ranks_tell_nothing():
    assert module.read_measured("warnings\n") == {}
    assert module.in_words(PLAN, {}) == ""


def test_the_script_is_python():
    compile(module.SCRIPT, "all_reduce.py", "exec")

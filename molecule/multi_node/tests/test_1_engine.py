"""The engine that the playbook deployed over both hosts."""

from __future__ import annotations

import re

from pair import KEY, OLD


def arguments(member) -> str:
    """The command of the unit in one line."""
    unit = member.read("cat /etc/systemd/system/vllm-demo.service")
    return " ".join(unit[unit.index("ExecStart=") : unit.index("ExecStop=")].replace("\\\n", " ").split())


def test_two_stages_of_two_gpus_each(engine):
    plan = engine.first.plan
    assert engine.second.plan == plan
    assert plan["parallel"]["tensor_parallel_size"] == 2
    assert plan["parallel"]["pipeline_parallel_size"] == 2
    assert {host: len(gpus) for host, gpus in plan["devices"].items()} == {"gpu1": 2, "gpu2": 2}
    assert [(gpu["stage"], gpu["layers"]) for gpu in plan["budget"]] == [(0, "0-1")] * 2 + [(1, "2-3")] * 2


def test_the_members_are_told_who_they_are(engine):
    first, second = (arguments(member) for member in engine.members)
    assert "--nnodes 2 --node-rank 0" in first
    assert "--nnodes 2 --node-rank 1" in second
    assert "--headless" in second and "--headless" not in first
    assert re.findall("--master-addr [0-9.]+", first) == re.findall("--master-addr [0-9.]+", second)
    for member, command in zip(engine.members, (first, second), strict=True):
        address = member.address
        assert f"--env VLLM_HOST_IP={address}" in command
        # Docker's own bridge has the same address on every host, and would be taken by NCCL.
        assert "--env NCCL_SOCKET_IFNAME==eth0" in command


def test_rank_0_answers_and_the_watchers_know_it(engine):
    assert engine.serves() == OLD
    for member in engine.members:
        address = member.address
        assert member.read(f"curl --silent --max-time 5 http://{address}:29001/health") == "serves"
        assert KEY not in member.read("ps -eww -o args; journalctl --no-pager --unit vllm-members@demo")


def test_nobody_is_told_anything_by_a_watcher_without_the_key(engine):
    address = engine.first.address
    ask = """
import json, socket
stream = socket.create_connection(("%s", 29001), 5).makefile("rw")
stream.write('{"once": "00"}\\n'); stream.flush(); json.loads(stream.readline())
stream.write('{"proof": "00"}\\n'); stream.flush(); print(stream.readline().strip())
"""
    assert engine.second.read("python3 -", ask % address) == "{}"

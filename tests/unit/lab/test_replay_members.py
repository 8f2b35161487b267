# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One replay engine over several hosts, which are processes here: they start together and end together."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replay_process import Engine, free_port, make_checkpoint

from ansible_collections.gpufleet.vllm.plugins.module_utils._boot_log import parse_boot_log
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose

PHASES = ("starting", "loading", "compiling", "profiling", "allocating", "capturing", "warming")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


class Span:
    """An engine of TP=2 x PP=n over n members, each of which may have settings of its own."""

    def __init__(self, checkpoint: Path, size: int = 2) -> None:
        self._checkpoint = checkpoint
        self._size = size
        self.port = free_port()

    def arguments(self, rank: int, address: str = "localhost") -> list[str]:
        layout = ["-tp=2", f"-pp={self._size}", f"--nnodes={self._size}", f"--node-rank={rank}"]
        return [*layout, f"--master-addr={address}", f"--master-port={self.port}", *["--headless"] * (rank > 0)]

    @contextlib.contextmanager
    def start(self, **settings: Any) -> Iterator[list[Engine]]:
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(Engine(self._checkpoint, *self.arguments(rank), **settings))
                for rank in range(self._size)
            ]

    def member(self, rank: int, address: str = "localhost", **settings: Any) -> Engine:
        return Engine(self._checkpoint, *self.arguments(rank, address), **settings)


@pytest.mark.parametrize("size", [2, 3])
def test_members_start_together_and_rank_0_serves(size: int, checkpoint: Path) -> None:
    with Span(checkpoint, size).start() as members:
        leader, *others = members
        leader.wait_until_it_serves()
        answer = leader.request("POST", "/v1/completions", {"prompt": "Say hello."})[1]
        assert diagnose(leader.log) == []
        assert list(parse_boot_log(leader.log)["ranks"]) == ["Worker_PP0_TP0", "Worker_PP0_TP1"]
        for rank, other in enumerate(others, 1):
            assert "headless multiproc executor" in other.log
            assert set(parse_boot_log(other.log)["ranks"]) == {f"Worker_PP{rank}_TP0", f"Worker_PP{rank}_TP1"}
            with pytest.raises(ConnectionRefusedError):
                other.request("GET", "/health")
    with Engine(checkpoint) as alone:
        alone.wait_until_it_serves()
        assert alone.request("POST", "/v1/completions", {"prompt": "Say hello."})[1]["choices"] == answer["choices"]


def test_rank_0_waits_for_the_others(checkpoint: Path) -> None:
    span = Span(checkpoint)
    with span.member(0) as leader:
        leader.wait_for_line("Initializing a V1 LLM engine")
        time.sleep(0.5)
        assert "Starting to load model" not in leader.log
        with span.member(1):
            leader.wait_until_it_serves()


def test_others_wait_for_rank_0(checkpoint: Path) -> None:
    span = Span(checkpoint)
    with span.member(1) as other:
        other.wait_for_line("headless multiproc executor")
        time.sleep(0.5)
        assert other.process.poll() is None
        with span.member(0) as leader:
            leader.wait_until_it_serves()


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("phase", PHASES)
def test_all_end_if_one_is_lost_while_they_start(phase: str, lost: int, checkpoint: Path) -> None:
    fault = {"fault": "killed", "phase": phase, "node_rank": lost}
    # Who is killed before it is there is only missed after this time.
    timeout = 1.0 if phase == "starting" else 10.0
    settings = {"faults": [fault], "connect_timeout_seconds": timeout, "startup_seconds": 0.3}
    with Span(checkpoint).start(**settings) as members:
        assert members[lost].exit_code() == -signal.SIGKILL
        survivor = members[1 - lost]
        assert survivor.exit_code() == 1
        assert diagnose(survivor.log)[0]["class"] == "nccl_init", survivor.log


@pytest.mark.parametrize("lost", [0, 1])
def test_all_end_if_one_is_lost_while_they_serve(lost: int, checkpoint: Path) -> None:
    with Span(checkpoint).start() as members:
        members[0].wait_until_it_serves()
        members[lost].process.kill()
        # vLLM ends so: see Processes._end_while_serving.
        assert members[1 - lost].exit_code() == 0
        if lost == 1:
            assert diagnose(members[0].log)[0]["class"] == "nccl_init"


def test_a_network_that_is_cut_is_noticed(checkpoint: Path) -> None:
    with Span(checkpoint).start(heartbeat_timeout_seconds=1.5) as members:
        members[0].wait_until_it_serves()
        members[1].process.send_signal(signal.SIGSTOP)
        assert members[0].exit_code() == 0
        assert "EngineDeadError" in members[0].log


def test_one_that_hangs_holds_all(checkpoint: Path) -> None:
    fault = {"fault": "hang", "phase": "profiling", "node_rank": 1}
    with Span(checkpoint).start(faults=[fault]) as members:
        members[1].wait_for_line("torch.compile took")
        time.sleep(1.0)
        assert [member.process.poll() for member in members] == [None, None]
        assert "GPU KV cache size" not in members[0].log
        assert members[1].stop() == 128 + signal.SIGINT
        assert members[0].exit_code() == 1


def test_one_that_fails_fails_all(checkpoint: Path) -> None:
    with Span(checkpoint).start(faults=[{"fault": "oom_weights", "node_rank": 1}]) as members:
        assert [member.exit_code() for member in members] == [1, 1]
        assert diagnose(members[1].log)[0]["class"] == "oom_weights"
        assert diagnose(members[0].log)[0]["class"] == "nccl_init"


def test_members_that_do_not_come_are_missed(checkpoint: Path) -> None:
    with Span(checkpoint).member(0, connect_timeout_seconds=0.5) as leader:
        assert leader.exit_code() == 1
        assert "waiting for clients. 1/2 clients joined." in leader.log
        assert diagnose(leader.log)[0]["class"] == "nccl_init"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("localhost", "The client socket has timed out after 500ms while trying to connect to (localhost, "),
        ("no-such-host.invalid", "(gai error: -2 - Name or service not known)"),
    ],
    ids=["blocked port", "name that does not resolve"],
)
def test_a_leader_that_cannot_be_reached_is_named(address: str, said: str, checkpoint: Path) -> None:
    with Span(checkpoint).member(1, address, connect_timeout_seconds=0.5) as other:
        assert other.exit_code() == 1
        assert said in other.log
        assert diagnose(other.log)[0]["class"] == "nccl_init"


def test_a_port_of_the_leader_that_is_taken_is_named(checkpoint: Path) -> None:
    span = Span(checkpoint)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", span.port))
        taken.listen()
        with span.member(0) as leader:
            assert leader.exit_code() == 1
            assert diagnose(leader.log)[0]["class"] == "port_in_use"


def connect(port: int, seconds: float = 30) -> socket.socket:
    """A connection to the leader, as soon as it listens."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=seconds)
        except ConnectionRefusedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def test_strangers_and_doubles_are_not_taken_for_members(checkpoint: Path) -> None:
    span = Span(checkpoint, 3)
    with span.member(0) as leader, span.member(1) as other:
        other.wait_for_line("headless multiproc executor")
        with connect(span.port) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert stranger.recv(1) == b""
        time.sleep(0.5)  # a member that was too early for the leader tries again before
        with span.member(1) as double:
            assert double.exit_code() == 1
        with span.member(2):
            leader.wait_until_it_serves()

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of one engine: rank 0 waits for the others, all go from phase to phase together, and end together.

As with vLLM (``--nnodes``, ``--node-rank``, ``--master-addr``, ``--master-port``) rank 0 listens and the others
connect to it. What they say to each other is lines of JSON and no more than this needs.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .faults import Failure

_BEAT_SECONDS = 1.0
_RETRY_SECONDS = 0.2


class _Peer:
    """The connection with one other member. reached: the last phase that it has told."""

    def __init__(self, connection: socket.socket, timeout: float, lose: Callable[[_Peer], None]) -> None:
        self.address = connection.getpeername()
        self.reached: str | None = None
        self.node_rank: int | None = None
        self._connection = connection
        self._lose = lose
        self._lock = threading.Lock()
        connection.settimeout(timeout)
        self._reader = connection.makefile("r", encoding="utf-8")

    def start(self) -> None:
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def read_hello(self) -> dict[str, Any]:
        """Returns the first line of a peer. Raises OSError or ValueError if it is none of ours."""
        hello: dict[str, Any] = json.loads(self._reader.readline())
        return hello

    def send(self, **message: Any) -> None:
        try:
            with self._lock:
                self._connection.sendall((json.dumps(message) + "\n").encode())
        except OSError:
            self._lose(self)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._reader:
                self.reached = json.loads(line).get("phase", self.reached)
        self._lose(self)

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_SECONDS)
            self.send()


class Members:
    """All members of the engine but this one."""

    def __init__(self, config: Mapping[str, Any], connect_timeout: float, heartbeat_timeout: float) -> None:
        self.lost = threading.Event()
        self._config = config
        self._connect_timeout = connect_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._peers: list[_Peer] = []
        self._lost_peer: _Peer | None = None

    def connect(self) -> None:
        """Brings the members together. Raises Failure as torch.distributed fails, after the time-out."""
        if self._config["nnodes"] > 1:
            if self._config["node_rank"] == 0:
                self._wait_for_members()
            else:
                self._connect_to_leader()
            for peer in self._peers:
                peer.start()

    def synchronize(self, phase: str) -> None:
        """Returns when every member has reached the phase. Raises Failure if one is lost."""
        if self._config["node_rank"] == 0:
            self._wait_for(phase)
        for peer in self._peers:
            peer.send(phase=phase)
        self._wait_for(phase)

    def check(self) -> None:
        """Raises Failure if a member is lost."""
        if self.lost.is_set() and self._lost_peer is not None:
            address, port = self._lost_peer.address[:2]
            raise Failure("member_lost", peer=address, peer_port=port)

    def close(self) -> None:
        """Leaves the others, who notice."""
        for peer in self._peers:
            peer.close()

    def _wait_for(self, phase: str) -> None:
        while any(peer.reached != phase for peer in self._peers):
            self.check()
            time.sleep(0.01)

    def _lose(self, peer: _Peer) -> None:
        self._lost_peer = self._lost_peer or peer
        self.lost.set()

    def _wait_for_members(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", self._config["master_port"]))
            except OSError:
                raise Failure("master_port_in_use") from None
            listener.listen()
            deadline = time.monotonic() + self._connect_timeout
            while len(self._peers) < self._config["nnodes"] - 1:
                listener.settimeout(max(deadline - time.monotonic(), 0.001))
                try:
                    self._accept(listener.accept()[0])
                except socket.timeout:
                    raise Failure(
                        "members_missing", timeout_seconds=self._connect_timeout, joined=1 + len(self._peers)
                    ) from None

    def _accept(self, connection: socket.socket) -> None:
        """Takes a member in. Whoever else connects, or comes a second time, is sent away."""
        peer = _Peer(connection, self._heartbeat_timeout, self._lose)
        try:
            peer.node_rank = int(peer.read_hello()["node_rank"])
        except (OSError, ValueError, KeyError):
            peer.close()
            return
        if peer.node_rank in [0, *(known.node_rank for known in self._peers)]:
            peer.close()
        else:
            self._peers.append(peer)

    def _connect_to_leader(self) -> None:
        address = (self._config["master_addr"], self._config["master_port"])
        deadline = time.monotonic() + self._connect_timeout
        while True:
            try:
                connection = socket.create_connection(address, max(deadline - time.monotonic(), 0.001))
                break
            except OSError as error:
                if time.monotonic() + _RETRY_SECONDS >= deadline:
                    failure = "leader_unresolved" if isinstance(error, socket.gaierror) else "leader_unreachable"
                    raise Failure(failure, timeout_ms=int(self._connect_timeout * 1000)) from None
                time.sleep(_RETRY_SECONDS)
        peer = _Peer(connection, self._heartbeat_timeout, self._lose)
        peer.send(node_rank=self._config["node_rank"])
        self._peers.append(peer)

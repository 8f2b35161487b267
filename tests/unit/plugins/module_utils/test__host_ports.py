# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import socket

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _host_ports

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ID = "a" * 64


def line(address, port, state, inode):
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 0:0 00:0 0 0 0 {inode} 1 0 0\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(name="root")
def make_root(tmp_path):
    """A host with sshd, a port that Docker publishes, an engine on the host's network, a socket of another user."""
    write(
        tmp_path / "proc/net/tcp",
        HEADER
        + line("00000000", 22, "0A", 101)
        + line("0100007F", 8000, "0A", 102)
        + line("0100007F", 8000, "01", 103)
        + line("0100007F", 9000, "0A", 106),
    )
    write(
        tmp_path / "proc/net/tcp6",
        HEADER + line("0" * 32, 22, "0A", 104) + line("B80D0120" + "0" * 16 + "01000000", 8001, "0A", 105),
    )
    for pid, name, inodes in ((1, "sshd", (101, 104)), (20, "docker-proxy", (102,)), (300, "vllm", (105, 103))):
        write(tmp_path / f"proc/{pid}/comm", name + "\n")
        (tmp_path / f"proc/{pid}/fd").mkdir()
        for number, inode in enumerate(inodes):
            os.symlink(f"socket:[{inode}]", tmp_path / f"proc/{pid}/fd/{number}")
    os.symlink("/dev/null", tmp_path / "proc/300/fd/9")
    write(tmp_path / "proc/300/cgroup", f"0::/system.slice/docker-{ID}.scope\n")
    return str(tmp_path)


def test_listening_sockets_and_their_owners(root):
    found = [(item["port"], item["address"], item["pid"], item["process"]) for item in _host_ports.listening(root)]
    assert found == [
        (22, "0.0.0.0", 1, "sshd"),
        (22, "::", 1, "sshd"),
        (8000, "127.0.0.1", 20, "docker-proxy"),
        (8001, "2001:db8::1", 300, "vllm"),
        (9000, "127.0.0.1", None, None),
    ]


def test_listeners_have_the_names_of_their_containers(root):
    listeners = _host_ports.listening(root)
    _host_ports.name_listeners(listeners, {ID: "vllm-chat"}, {8000: "vllm-embed"}, root)
    named = {item["port"]: item["container"] for item in listeners}
    assert named == {22: None, 8000: "vllm-embed", 8001: "vllm-chat", 9000: None}
    _host_ports.name_listeners(listeners, {}, {}, root)
    assert {item["port"]: item["container"] for item in listeners} == {22: None, 8000: None, 8001: ID[:12], 9000: None}


def test_a_host_without_proc(tmp_path):
    assert _host_ports.listening(str(tmp_path)) == []


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_socket_of_this_machine(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as server:
        try:
            server.bind((address, 0))
        except OSError as error:
            pytest.skip(f"this machine has no {address}: {error}")
        server.listen()
        port = server.getsockname()[1]
        found = [item for item in _host_ports.listening() if item["port"] == port]
    assert [(item["address"], item["pid"]) for item in found] == [(address, os.getpid())]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import socket
import time

from ansible_collections.gpufleet.vllm.plugins.module_utils import _member_facts as facts

ADDRESSES = json.dumps(
    [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "addr_info": [{"local": "127.0.0.1", "prefixlen": 8}]},
        {
            "ifname": "eth0",
            "flags": ["UP"],
            "operstate": "UP",
            "mtu": 9000,
            "addr_info": [{"local": "10.0.0.1", "prefixlen": 24}],
        },
        {"ifname": "eth1", "flags": [], "operstate": "DOWN", "mtu": 1500, "addr_info": []},
    ]
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_interfaces_with_their_speed(tmp_path):
    write(tmp_path / "sys/class/net/eth0/speed", "100000\n")
    write(tmp_path / "sys/class/net/eth1/speed", "-1\n")
    first, second = facts.interfaces(ADDRESSES, str(tmp_path))
    assert first == {
        "name": "eth0",
        "addresses": [{"address": "10.0.0.1", "prefix": 24}],
        "speed_mbps": 100000,
        "up": True,
        "mtu": 9000,
    }
    assert (second["speed_mbps"], second["up"]) == (None, False)


def test_no_output_of_ip_is_no_interface():
    assert facts.interfaces("") == []
    assert facts.default_interface("") is None
    assert facts.default_interface('[{"dst": "default", "dev": "eth0"}]') == "eth0"


def test_rdma_ports_by_their_state(tmp_path):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE\n")
    write(port / "link_layer", "InfiniBand\n")
    write(port / "rate", "400 Gb/sec (4X NDR)\n")
    assert facts.rdma_ports(str(tmp_path)) == [
        {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}
    ]


def test_the_memory_that_docker_may_lock(tmp_path):
    assert facts.docker_memlock_kib(str(tmp_path)) is None
    write(tmp_path / "proc/7/comm", "dockerd\n")
    write(tmp_path / "proc/7/limits", "Max locked memory         8388608              8388608              bytes\n")
    assert facts.docker_memlock_kib(str(tmp_path)) == 8192
    write(tmp_path / "proc/7/limits", "Max locked memory         unlimited            unlimited            bytes\n")
    assert facts.docker_memlock_kib(str(tmp_path)) == -1


def test_a_listener_is_reached_and_ends_when_all_were_there():
    told = facts.listen([0], 1, 20)
    (port,) = told["ports"]
    target = {"host": "a", "address": "127.0.0.1", "port": port}
    (reached,) = facts.reach([{**target, "token": told["token"]}])
    assert reached["error"] is None
    # It has ended: the port is free for the engine.
    deadline = time.monotonic() + 20
    while not (error := facts.reach([target])[0]["error"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert error == "Connection refused"


def test_somebody_else_on_the_port_is_not_the_peer():
    told = facts.listen([0], 1, 20)
    target = {"host": "a", "address": "127.0.0.1", "port": told["ports"][0]}
    (reached,) = facts.reach([{**target, "token": "another"}])
    assert reached["error"] == "somebody else answers there"


def test_a_watcher_that_looks_for_ours_is_not_taken_for_a_peer():
    told = facts.listen([0], 1, 20)
    peer = {"host": "a", "address": "127.0.0.1", "port": told["ports"][0], "token": told["token"]}
    for _time in range(3):
        with socket.create_connection(("127.0.0.1", told["ports"][0]), 5) as stray:
            stray.sendall(b'{"once": "00"}\n')
            assert stray.recv(64).decode().strip() == told["token"]
    assert facts.reach([peer])[0]["error"] is None


def test_a_kernel_without_ipv6_listens_on_ipv4(monkeypatch):
    plain = socket.socket

    def without_ipv6(family=socket.AF_INET, *more):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return plain(family, *more)

    monkeypatch.setattr(facts.socket, "socket", without_ipv6)
    listener = facts._listener()
    assert listener.family == socket.AF_INET
    listener.close()


def test_a_port_that_is_taken_is_left_out():
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("", 0))
        taken.listen()
        assert facts.listen([taken.getsockname()[1]], 1, 1)["ports"] == []


def test_whose_a_port_is(tmp_path):
    line = "0: 00000000:7148 00000000:0000 0A 0:0 0:0 0 0 0 77 1"
    write(tmp_path / "proc/net/tcp", f"header\n{line}\n")
    write(tmp_path / "proc/9/comm", "python3\n")
    (tmp_path / "proc/9/fd").mkdir()
    (tmp_path / "proc/9/fd/3").symlink_to("socket:[77]")
    write(tmp_path / "proc/9/cmdline", "python3\0/opt/other.py\0")
    (item,) = facts.taken_ports(["big"], {}, str(tmp_path))
    assert (item["port"], item["ours"]) == (29000, False)
    write(tmp_path / "proc/9/cmdline", "python3\0/etc/vllm/big/members.py\0big\0")
    assert facts.taken_ports(["big"], {}, str(tmp_path))[0]["ours"]
    write(tmp_path / "proc/9/cmdline", "vllm\0")
    write(tmp_path / "proc/9/cgroup", "0::/system.slice/docker-c0ffee.scope\n")
    assert facts.taken_ports(["big"], {"c0ffee": "vllm-big"}, str(tmp_path))[0]["ours"]
    assert not facts.taken_ports(["big"], {"c0ffee": "vllm-small"}, str(tmp_path))[0]["ours"]


def test_names():
    good, bad = facts.resolve(["localhost", "rank0.invalid"])
    assert good["error"] is None and good["addresses"]
    assert bad["error"] and bad["addresses"] == []

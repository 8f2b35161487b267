# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of its network, and whether it reaches other hosts. Private to the collection.

Nothing is written. ``root`` stands for "/" in tests.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import secrets
import select
import signal
import socket
import time

from ._host_facts import read_text
from ._host_ports import listening

#: The name of the process that listens for a while, so that the next run finds it.
LISTENER = "vllm-members"

ANSWER_SECONDS = 5.0


def interfaces(addresses, root="/"):
    """[{"name", "addresses" [{"address", "prefix"}], "speed_mbps" (None where there is none), "up", "mtu"}].

    addresses: what `ip -json address` printed.
    """
    found = []
    for item in json.loads(addresses or "[]"):
        name = item.get("ifname")
        if not name or "LOOPBACK" in item.get("flags", ()):
            continue
        found.append(
            {
                "name": name,
                "addresses": [
                    {"address": info["local"], "prefix": info["prefixlen"]}
                    for info in item.get("addr_info", ())
                    if "local" in info
                ],
                "speed_mbps": _speed(name, root),
                "up": item.get("operstate") != "DOWN",
                "mtu": item.get("mtu"),
            }
        )
    return found


def _speed(name, root):
    text = read_text(os.path.join(root, "sys/class/net", name, "speed"))
    speed = int(text) if text and text.lstrip("-").isdigit() else -1
    return speed if speed > 0 else None


def default_interface(routes):
    """The interface of the default route. routes: what `ip -json route show default` printed."""
    found = json.loads(routes or "[]")
    return found[0].get("dev") if found else None


def rdma_ports(root="/"):
    """The InfiniBand and RoCE ports: [{"device", "port", "state", "link_layer", "rate"}]."""
    ports = []
    for path in sorted(glob.glob(os.path.join(root, "sys/class/infiniband/*/ports/*"))):
        state = read_text(os.path.join(path, "state")) or ""
        ports.append(
            {
                "device": path.split(os.sep)[-3],
                "port": int(os.path.basename(path)),
                # "4: ACTIVE"
                "state": state.rpartition(": ")[2],
                "link_layer": read_text(os.path.join(path, "link_layer")),
                "rate": read_text(os.path.join(path, "rate")),
            }
        )
    return ports


def docker_memlock_kib(root="/"):
    """KiB that Docker's engine, and so a container, may lock at most; -1 for no limit, None where it does not run."""
    for path in glob.glob(os.path.join(root, "proc/[0-9]*")):
        if read_text(os.path.join(path, "comm")) == "dockerd":
            for line in (read_text(os.path.join(path, "limits")) or "").splitlines():
                if line.startswith("Max locked memory"):
                    hard = line.split()[-2]
                    return -1 if hard == "unlimited" else int(hard) // 1024
    return None


def taken_ports(names, containers, root="/"):
    """Who listens on this host, each with "ours": whether it belongs to one of the instances, or to this module.

    names: of instances. containers: {container id: name}.
    """
    ours = {"vllm-" + name for name in names}
    found = listening(root)
    for item in found:
        command = (read_text(os.path.join(root, "proc", str(item["pid"]), "cmdline")) or "").replace("\0", " ")
        watcher = any(f"/etc/vllm/{name}/members.py" in command for name in names)
        item["ours"] = watcher or item["process"] == LISTENER or bool(ours & _containers(item["pid"], containers, root))
    return found


def _containers(pid, containers, root):
    cgroup = read_text(os.path.join(root, "proc", str(pid), "cgroup")) or ""
    return {name for identity, name in containers.items() if identity in cgroup}


# --- listening and reaching ---------------------------------------------------------------------------------------


def listen(ports, peers, seconds):
    """Listens on the ports for a while, in a process of its own. Returns {"token", "ports"}: those that were free.

    The port 0 stands for one that the kernel chooses. Whoever connects is told the token, and a peer, who knows it,
    says it back: a watcher that looks for ours on its port does not. When so many peers have connected to every port,
    they are free again, for the engine: at the latest after the seconds.
    """
    _end_earlier()
    token, listeners = secrets.token_hex(8), []
    for port in ports:
        listener = _listener()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen(64)
            listeners.append(listener)
        except OSError:
            listener.close()
    free = [listener.getsockname()[1] for listener in listeners]
    _detached(lambda: _answer(listeners, token, peers * len(listeners), seconds))
    for listener in listeners:
        listener.close()
    return {"token": token, "ports": free}


def _listener():
    """A socket for IPv4 and IPv6; for IPv4 alone where the kernel was started without IPv6 (ipv6.disable=1)."""
    try:
        listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with contextlib.suppress(OSError, AttributeError):
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return listener


def _end_earlier():
    for path in glob.glob("/proc/[0-9]*/comm"):
        if read_text(path) == LISTENER:
            with contextlib.suppress(OSError):
                os.kill(int(path.split(os.sep)[2]), signal.SIGTERM)
    time.sleep(0.1)


def _answer(listeners, token, expected, seconds):
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(LISTENER)
    deadline = time.monotonic() + seconds
    while expected > 0 and time.monotonic() < deadline:
        ready, _writable, _failed = select.select(listeners, [], [], 1.0)
        for listener in ready:
            with contextlib.suppress(OSError):
                expected -= _is_peer(listener.accept()[0], token)


def _is_peer(connection, token):
    with contextlib.closing(connection):
        connection.settimeout(1.0)
        connection.sendall(token.encode("ascii") + b"\n")
        return connection.recv(64).strip() == token.encode("ascii")


def _detached(run):
    """Runs a function in a process that does not keep the connection to this host open."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            run()
    finally:
        # Nothing of the caller may run a second time here.
        os._exit(0)


def reach(peers):
    """Connects to each of [{"host", "address", "port", "token"}] and adds "error": None where it answered.

    Without a token whoever listens there will do; else it must be that host's own listener.
    """
    return [dict(peer, error=_connect(peer)) for peer in peers]


def _connect(peer):
    try:
        with socket.create_connection((peer["address"], peer["port"]), ANSWER_SECONDS) as connection:
            if peer.get("token"):
                connection.settimeout(ANSWER_SECONDS)
                told = connection.recv(64).decode("ascii", "replace").strip()
                if told != peer["token"]:
                    return "somebody else answers there"
                connection.sendall(told.encode("ascii") + b"\n")
    except OSError as error:
        return "no answer within 5 s" if isinstance(error, socket.timeout) else (error.strerror or str(error))
    return None


def resolve(names):
    """[{"name", "addresses", "error"}]."""
    found = []
    for name in names:
        try:
            told = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found.append({"name": name, "addresses": sorted({item[4][0] for item in told}), "error": None})
        except OSError as error:
            found.append({"name": name, "addresses": [], "error": error.strerror or str(error)})
    return found

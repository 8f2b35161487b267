# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which TCP ports are taken on a host, and by whom.

Private to the collection gpufleet.vllm. Everything is read from /proc, no process is started. Each function takes
root, the directory that stands for "/" in tests.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import struct
from typing import Any, Mapping

from ._host_facts import container_name, process_container_ids, read_text

#: State of a listening socket in /proc/net/tcp (TCP_LISTEN in the kernel's include/net/tcp_states.h).
LISTEN = "0A"

#: Processes that hold the ports which Docker publishes for containers; their own control group is Docker's.
PUBLISHERS = ("docker-proxy", "dockerd", "rootlessport")

_SOCKET = re.compile(r"socket:\[(\d+)\]")


def listening(root: str = "/") -> list[dict[str, Any]]:
    """The listening TCP sockets of this network name space, by port: [{"port", "address", "pid", "process"}].

    pid and process are None where the sockets of that process may not be read (without root) or it is the kernel.
    """
    sockets: dict[str, tuple[int, str]] = {}
    for name in ("tcp", "tcp6"):
        for line in (read_text(os.path.join(root, "proc/net", name)) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == LISTEN:
                address, _colon, digits = fields[1].partition(":")
                sockets[fields[9]] = (int(digits, 16), _address(address))
    owners = _owners(set(sockets), root)
    found = []
    for inode, (port, address) in sockets.items():
        pid = owners.get(inode)
        process = read_text(os.path.join(root, "proc", str(pid), "comm")) if pid else None
        found.append({"port": port, "address": address, "pid": pid, "process": process})
    return sorted(found, key=lambda item: (item["port"], item["address"]))


def _address(digits: str) -> str:
    """The kernel prints an address as 32-bit words in the byte order of the machine."""
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    family = socket.AF_INET6 if len(words) == 4 else socket.AF_INET
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _owners(inodes: set[str], root: str) -> dict[str, int]:
    """{inode of a socket: pid of a process that has it open}; a socket's first process is the one that opened it."""
    owners: dict[str, int] = {}
    pids = sorted(int(os.path.basename(path)) for path in glob.glob(os.path.join(root, "proc/[0-9]*")))
    for pid in pids:
        if len(owners) == len(inodes):
            break
        for inode in inodes & _open_sockets(os.path.join(root, "proc", str(pid), "fd")):
            owners.setdefault(inode, pid)
    return owners


def _open_sockets(directory: str) -> set[str]:
    inodes = set()
    try:
        for name in os.listdir(directory):
            match = _SOCKET.match(os.readlink(os.path.join(directory, name)))
            if match:
                inodes.add(match.group(1))
    except OSError:
        pass  # another user's process, or one that has just ended
    return inodes


def is_published(listener: Mapping[str, Any]) -> bool:
    """Whether Docker holds this port for a container."""
    return listener["process"] in PUBLISHERS


def name_listeners(
    listeners: list[dict[str, Any]],
    names: Mapping[str, str],
    published: Mapping[int, str],
    root: str = "/",
) -> None:
    """Set the container of each listener: of a published port by Docker's list, of a process by its control group.

    names is {container id: name}, published {port: name}. None where the process is of no container.
    """
    for listener in listeners:
        if is_published(listener):
            listener["container"] = published.get(listener["port"])
        else:
            ids = process_container_ids(listener["pid"], root) if listener["pid"] else []
            listener["container"] = container_name(ids, names)

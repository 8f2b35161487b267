# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container runtime of a host: Docker, the NVIDIA container toolkit, CDI.

Private to the collection gpufleet.vllm. Docker is asked through its socket, without starting its command; the toolkit
and CDI are read from their files. Only where dpkg does not know the toolkit's version a process is started for it.
"""

from __future__ import annotations

import glob
import json
import os
import re
import socket
from typing import Any, Sequence

from ._gpu_command import find_program, run
from ._host_facts import disk, read_text

DOCKER_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")
CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
DPKG_STATUS = "/var/lib/dpkg/status"
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"

#: Where Docker keeps images unless it is told otherwise.
DOCKER_ROOT = "/var/lib/docker"

#: The character device of /dev/nvidiactl. With this link systemd keeps the GPUs of running containers when it reloads.
NVIDIACTL_LINK = "/dev/char/195:255"


def docker_get(path: str, timeout: float, sockets: Sequence[str] = DOCKER_SOCKETS) -> tuple[Any, str | None]:
    """(answer of the Docker Engine API as Python data, None), or (None, why there is none)."""
    reason = f"no socket at {sockets[0]}"
    for name in _socket_paths(sockets):
        try:
            return json.loads(_http_get(name, path, timeout)), None
        except (OSError, ValueError) as error:
            reason = f"{name}: {error}"
    return None, reason


def _http_get(socket_path: str, path: str, timeout: float) -> str:
    """Body of an HTTP answer. Version 1.0 ends with the connection; http.client and its TLS cost 40 ms to import."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(socket_path)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            head, unused, body = answer.read().decode("utf-8", "replace").partition("\r\n\r\n")
    status = head.split(" ")[1:2]
    if status != ["200"]:
        raise ValueError(f"Docker answers {head.splitlines()[0] if head else 'nothing'}")
    return body


def _socket_paths(sockets: Sequence[str]) -> list[str]:
    """Docker's own setting first; both usual paths are one file on most hosts."""
    chosen = os.environ.get("DOCKER_HOST", "")
    paths = [chosen[len("unix://") :]] if chosen.startswith("unix://") else []
    for path in sockets:
        real = os.path.realpath(path)
        if os.path.exists(real) and real not in paths:
            paths.append(real)
    return paths


def container_names(timeout: float, sockets: Sequence[str] = DOCKER_SOCKETS) -> dict[str, str]:
    """{container id: name} of the running containers; empty where Docker does not answer."""
    containers = docker_get("/containers/json", timeout, sockets)[0]
    if not isinstance(containers, list):
        return {}
    return {entry["Id"]: entry["Names"][0].lstrip("/") for entry in containers if entry.get("Names")}


def published_ports(timeout: float, sockets: Sequence[str] = DOCKER_SOCKETS) -> dict[int, str]:
    """{TCP port of the host: name of the container that it is published for}; empty where Docker does not answer."""
    containers = docker_get("/containers/json", timeout, sockets)[0]
    ports: dict[int, str] = {}
    for entry in containers if isinstance(containers, list) else ():
        for port in entry.get("Ports") or ():
            if port.get("PublicPort") and port.get("Type") == "tcp" and entry.get("Names"):
                ports[port["PublicPort"]] = entry["Names"][0].lstrip("/")
    return ports


def image_names(timeout: float, sockets: Sequence[str] = DOCKER_SOCKETS) -> list[str]:
    """The images on this host, as NAME:TAG and as NAME@DIGEST."""
    images = docker_get("/images/json", timeout, sockets)[0]
    names: set[str] = set()
    for entry in images if isinstance(images, list) else ():
        names.update(entry.get("RepoTags") or ())
        names.update(entry.get("RepoDigests") or ())
    return sorted(name for name in names if "<none>" not in name)


def container_runtime(timeout: float, sockets: Sequence[str] = DOCKER_SOCKETS) -> dict[str, Any]:
    """What a deployment must know about Docker and the NVIDIA container toolkit on this host."""
    info, reason = docker_get("/info", timeout, sockets)
    facts = describe_docker_info(info if isinstance(info, dict) else {})
    facts["docker_error"] = reason
    facts["images"] = [] if reason else image_names(timeout, sockets)
    facts["disk"] = disk(facts["docker_root"] or DOCKER_ROOT)
    facts["toolkit_version"] = _toolkit_version(timeout)
    facts.update(_toolkit_config(read_text(TOOLKIT_CONFIG)))
    facts["cdi_devices"] = sorted(set(facts["cdi_devices"]) | set(_cdi_devices(facts["cdi_spec_dirs"])))
    facts["dev_char_links"] = os.path.exists(NVIDIACTL_LINK)
    return facts


def describe_docker_info(info: dict[str, Any]) -> dict[str, Any]:
    """The facts in Docker's own description of itself (GET /info, or docker info --format '{{json .}}')."""
    runtimes = info.get("Runtimes") or {}
    discovered = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
    return {
        "docker_version": info.get("ServerVersion"),
        "docker_root": info.get("DockerRootDir"),
        "cgroup_driver": info.get("CgroupDriver"),
        "cgroup_version": info.get("CgroupVersion"),
        "runtimes": sorted(runtimes),
        "default_runtime": info.get("DefaultRuntime"),
        "nvidia_runtime": "nvidia" in runtimes,
        "cdi_spec_dirs": list(info.get("CDISpecDirs") or ()),
        "cdi_devices": [device for device in discovered if device.startswith("nvidia.com/gpu=")],
    }


def dpkg_version(package: str, status: str | None) -> str | None:
    """Upstream version of an installed Debian package, by the text of dpkg's status file."""
    entry = re.search(rf"^Package: {re.escape(package)}\n(?:.+\n)*", status or "", re.MULTILINE)
    if not entry or not re.search(r"^Status: .* installed$", entry.group(0), re.MULTILINE):
        return None
    version = re.search(r"^Version: (?:\d+:)?([^-\s]+)", entry.group(0), re.MULTILINE)
    return version.group(1) if version else None


def _toolkit_version(timeout: float) -> str | None:
    version = dpkg_version("nvidia-container-toolkit", read_text(DPKG_STATUS))
    program = None if version else find_program("nvidia-ctk")
    text = run([program, "--version"], timeout)[1] if program else ""
    match = re.search(r"version (\d+\.\d+\.\d+\S*)", text)
    return match.group(1) if match else version


def _toolkit_config(text: str | None) -> dict[str, Any]:
    """The two settings of the toolkit that decide how a container gets its GPUs."""
    mode = re.search(r'^\s*mode\s*=\s*"([\w-]+)"', text or "", re.MULTILINE)
    no_cgroups = re.search(r"^\s*no-cgroups\s*=\s*(true|false)", text or "", re.MULTILINE)
    return {
        "toolkit_mode": mode.group(1) if mode else None,
        "toolkit_no_cgroups": no_cgroups.group(1) == "true" if no_cgroups else None,
    }


def _cdi_devices(directories: Sequence[str]) -> list[str]:
    """Devices of the CDI specifications, for engines that do not list them (Docker before 28.2)."""
    devices: list[str] = []
    for directory in directories or CDI_DIRECTORIES:
        for path in sorted(glob.glob(os.path.join(directory, "*"))):
            devices += parse_cdi_specification(read_text(path))
    return devices


def parse_cdi_specification(text: str | None) -> list[str]:
    """Full device names (nvidia.com/gpu=0) in a CDI specification, JSON or YAML as nvidia-ctk writes it."""
    try:
        specification = json.loads(text or "")
        kind, names = specification["kind"], [device["name"] for device in specification["devices"]]
    except (ValueError, KeyError, TypeError):
        kind = "".join(re.findall(r"^kind:\s*[\"']?([\w./-]+)", text or "", re.MULTILINE)[:1])
        names = re.findall(r"^\s*(?:-\s+)?name:\s*[\"']?([^\s\"']+)", text or "", re.MULTILINE)
    return [f"{kind}={name}" for name in names] if kind == "nvidia.com/gpu" else []

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host itself must have: systemd, commands, disks, memory, ports. Private."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .case import Case, Check, Engine, limits

#: Where the systemd unit of an engine looks for Docker.
UNIT_DOCKER = "/usr/bin/docker"


def systemd(case: Case) -> Iterator[Check]:
    """Engines are units of systemd."""
    if case.resources.get("systemd") is False:
        what, fix = "systemd does not run this host, and engines are its units", "a host that boots with systemd"
        yield Check("systemd", "failed", what, "host", fix, "ps -p 1")


def commands(case: Case) -> Iterator[Check]:
    """What the units and the smoke tests run."""
    found = case.resources.get("commands") or {}
    missing = sorted(name for name, path in found.items() if not path and name != "docker")
    if missing:
        what, fix = f"the smoke test needs {', '.join(missing)}", f"install {', '.join(missing)}"
        yield Check("commands", "failed", what, "host", fix, f"command -v {' '.join(missing)}")
    elif found:
        yield Check("commands", "ok", f"{', '.join(sorted(found))} are there", "host")
    docker = found.get("docker")
    if docker and docker != UNIT_DOCKER:
        what = f"docker is {docker}, the units run {UNIT_DOCKER}"
        fix = f"Docker as a package, at {UNIT_DOCKER} (a snap of it does not work with NVIDIA's runtime)"
        yield Check("commands", "failed", what, "Docker", fix, f"ls -l {UNIT_DOCKER}")


# --- disks --------------------------------------------------------------------------------------------------------


def image_disk(case: Case) -> Iterator[Check]:
    """Room for the images that are not there yet."""
    disk = case.container_runtime.get("disk")
    if not disk or disk.get("free_mib") is None:
        return
    missing = sorted({engine.image for engine in case.engines if not _has_image(case, engine.image)})
    free, needed = disk["free_mib"] / 1024, case.image_gib * len(missing)
    where = _disk_text(disk)
    if needed > free:
        what = f"{free:.1f} GiB are free, pulling {', '.join(missing)} takes {needed:.1f} GiB"
        fix = "free space there, move Docker's data-root, or set vllm_host_image_gib to what the image really takes"
        yield Check("image_disk", "failed", what, where, fix, "docker system df")
    elif disk.get("read_only"):
        yield Check("image_disk", "failed", "the disk is mounted read-only", where, "a writable disk", "dmesg | tail")
    else:
        text = f", {needed:.1f} GiB needed" if missing else ", the images are there"
        yield Check("image_disk", "ok", f"{free:.1f} GiB free{text}", where)
    if disk.get("network"):
        what = "Docker keeps its images on a network file system, which overlay2 does not support"
        yield Check("image_disk", "failed", what, where, "move Docker's data-root to a local disk", "docker info")


def _has_image(case: Case, image: str) -> bool:
    """By the tag or by the digest, whichever Docker lists."""
    tagged, _at, digest = image.removeprefix("docker.io/").partition("@")
    repository = re.sub(r":[^/:]+$", "", tagged)
    names = [name.removeprefix("docker.io/") for name in case.container_runtime.get("images") or []]
    return tagged in names or (bool(digest) and f"{repository}@{digest}" in names)


def model_disk(case: Case) -> Iterator[Check]:
    """A start reads the whole checkpoint: from a slow disk it takes minutes instead of seconds."""
    disk = case.facts.get("disk")
    if not disk:
        return
    where, slow = _disk_text(disk), _slow(disk)
    if slow:
        fix = "keep checkpoints on a local SSD or NVMe disk"
        yield Check(
            "model_disk",
            "warning",
            f"{slow}: each start reads the whole checkpoint from it",
            where,
            fix,
            f"findmnt -T {disk.get('path')}",
        )
    else:
        yield Check("model_disk", "ok", "a local disk", where)


def _slow(disk: Mapping[str, Any]) -> str | None:
    if disk.get("network"):
        return "a network file system"
    virtual = re.match(limits()["virtual_disks"], str(disk.get("source")))
    return "a rotating disk" if disk.get("rotational") and not virtual else None


def _disk_text(disk: Mapping[str, Any]) -> str:
    return f"{disk.get('path')} ({disk.get('file_system')} on {disk.get('source')})"


# --- memory -------------------------------------------------------------------------------------------------------


def _runs(case: Case) -> bool:
    """Whether one of the engines runs now: what it holds is its own."""
    containers = {engine.container for engine in case.engines}
    return any(
        process.get("container") in containers
        for gpu in case.facts.get("gpus") or []
        for process in gpu.get("processes") or []
    )


def memory(case: Case) -> Iterator[Check]:
    """RAM for the workers and for what the arguments move from the cards to the host."""
    total, available = case.resources.get("memory_total_mib"), case.resources.get("memory_available_mib")
    if total is None or available is None:
        return
    needed = sum(_memory_gib(engine) for engine in case.engines)
    text = f"the engines need about {needed:.0f} GiB beside their cards"
    fix = "more RAM, or smaller cpu_offload_gb, kv_offloading_size, swap_space"
    if total / 1024 < needed:
        yield Check("memory", "failed", f"{total / 1024:.0f} GiB of RAM, {text}", "host", fix, "free --human")
    elif available / 1024 < needed and not _runs(case):
        what = f"{available / 1024:.0f} GiB of RAM are available, {text}"
        yield Check("memory", "warning", what, "host", fix, "free --human")
    else:
        yield Check("memory", "ok", f"{available / 1024:.0f} GiB of RAM available", "host")


def _memory_gib(engine: Engine) -> float:
    """cpu_offload_gb and swap_space are GiB for each GPU, kv_offloading_size for the engine (vLLM's own help)."""
    per_worker = float(limits()["memory"]["worker_gib"])
    per_worker += sum(float(engine.arguments.get(name) or 0) for name in ("cpu_offload_gb", "swap_space"))
    return engine.workers * per_worker + float(engine.arguments.get("kv_offloading_size") or 0)


# --- ports --------------------------------------------------------------------------------------------------------


def ports(case: Case) -> Iterator[Check]:
    """Ports that somebody else has. An engine's own container may have its port: it is replaced."""
    listening = case.resources.get("listening")
    if listening is None:
        return
    for engine in case.engines:
        where = f"instance {engine.name}, port {engine.port} on {engine.address}"
        others = [
            item
            for item in listening
            if item["port"] == engine.port
            and item.get("container") != engine.container
            and overlaps(engine.address, item["address"])
        ]
        if others:
            what, fix = (
                f"the port is taken by {_holder(others[0])}",
                "another port for the instance, or stop what has it",
            )
            yield Check("port", "failed", what, where, fix, f"ss --listening --tcp --processes 'sport = {engine.port}'")
        else:
            yield Check("port", "ok", "the port is free", where)


def _holder(listener: Mapping[str, Any]) -> str:
    if listener.get("container"):
        return f"the container {listener['container']}"
    if listener.get("process"):
        return f"{listener['process']} (process {listener['pid']})"
    return "a process of another user"


def overlaps(wanted: str, taken: str) -> bool:
    """Whether two sockets of one port exclude each other: equal addresses, or one that stands for all of its kind.

    A socket on :: takes IPv4 too (unless it is set to IPv6 only, which /proc does not tell).
    """
    first, second = _address(wanted), _address(taken)
    if first is None or second is None:
        return wanted == taken
    if first.version == second.version:
        return first == second or first.is_unspecified or second.is_unspecified
    sixth = first if first.version == 6 else second
    return sixth.is_unspecified


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address("127.0.0.1" if text == "localhost" else text.strip("[]"))
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address

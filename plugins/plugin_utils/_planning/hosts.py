# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of an instance's hosts as the planner sees them: bytes that vLLM can have. Private to gpufleet.vllm."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import Faults, InstanceError
from .estimate import MIB

CONTAINER_PREFIX = "vllm-"

SHARED_FROM_MIB = 256
"""Less than this is a display server or a monitoring agent."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. total_bytes is what a CUDA process sees, less than what the driver reports by the driver's reserve."""

    host: str
    host_index: int
    index: int
    uuid: str
    name: str
    compute_capability: str | None
    total_bytes: int
    free_bytes: int
    others_bytes: int
    numa_node: int | None
    facts: Mapping[str, Any]

    @property
    def divided(self) -> bool:
        """Whether this is a MIG device: those work alone, NCCL does not connect them."""
        return bool(self.facts.get("mig_device"))

    @property
    def shared(self) -> bool:
        """Whether somebody else's processes hold memory worth the name (a display server's few MiB are not)."""
        return self.others_bytes > SHARED_FROM_MIB * MIB

    @property
    def label(self) -> str:
        return f"{self.host} GPU {self.index}"


@dataclass(frozen=True)
class Host:
    name: str
    gpus: tuple[Gpu, ...]
    links: Sequence[Sequence[Any]]
    facts: Mapping[str, Any]


@functools.cache
def _cards() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (Path(__file__).parent / "data" / "gpu_memory.json").read_text(encoding="utf-8")
    )
    return loaded


def read_hosts(facts: Sequence[Mapping[str, Any]], instance: Mapping[str, Any]) -> tuple[Host, ...]:
    """The hosts with those GPUs that the instance may use: all that work, or the subset in its `gpus`.

    Raises: InstanceError for a subset that is no list, is empty, or names what none of the hosts has.
    """
    wanted = _subset(instance)
    if wanted is not None:
        _check_subset(str(instance.get("name") or ""), wanted, facts)
    return tuple(_read_host(index, host, instance, wanted) for index, host in enumerate(facts))


def _subset(instance: Mapping[str, Any]) -> list[str] | None:
    """The indices and UUIDs in `gpus` as texts; None where all GPUs may be used."""
    subset = instance.get("gpus")
    if subset is None:
        return None
    name, example = str(instance.get("name") or ""), "Write a list of indices or UUIDs, e.g. gpus: [0, 1]"
    if not isinstance(subset, Sequence) or isinstance(subset, str):
        raise InstanceError(name, "gpus", subset, "is no list", f"{example}; leave it out for all GPUs.")
    if not subset:
        raise InstanceError(name, "gpus", [], "names no GPU", f"{example}; leave it out for all GPUs.")
    return [str(item) for item in subset]


def _check_subset(name: str, wanted: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> None:
    """Every name of a GPU must be that of one that works, on one of the hosts at least."""
    devices = [(host_name(host, index), device) for index, host in enumerate(facts) for device in _all_devices(host)]
    if not devices:
        return
    faults = Faults()
    for item in wanted:
        named = [device for _host, device in devices if item in _names(device)]
        if any(_works(device) for device in named):
            continue
        fault = f"names a GPU that does not work ({named[0].get('state')})" if named else "names no GPU there"
        there = (
            "; ".join(f"{host}: {_label(device)}" for host, device in devices if _works(device)) or "none that works"
        )
        faults.found.append(InstanceError(name, "gpus", item, fault, f"There are {there}."))
    faults.refuse()


def host_name(facts: Mapping[str, Any], position: int) -> str:
    return str(facts.get("name") or facts.get("inventory_hostname") or f"host{position}")


def _all_devices(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [device for gpu in facts.get("gpus") or () for device in _devices(gpu)]


def _works(device: Mapping[str, Any]) -> bool:
    return bool(device.get("memory_total_mib")) and device.get("state") in (None, "ok")


def cards_without_memory(facts: Mapping[str, Any]) -> list[str]:
    """The names of the cards that work and whose memory the facts do not tell."""
    cards = [gpu for gpu in facts.get("gpus") or () if gpu.get("state") in (None, "ok")]
    return [
        str(gpu.get("name")) for gpu in cards if not any(device.get("memory_total_mib") for device in _devices(gpu))
    ]


def _names(device: Mapping[str, Any]) -> set[str]:
    return {str(device[key]) for key in ("index", "uuid") if device.get(key) not in (None, "")}


def _label(device: Mapping[str, Any]) -> str:
    return " ".join(str(device[key]) for key in ("index", "uuid", "name") if device.get(key) not in (None, ""))


def _read_host(
    position: int, facts: Mapping[str, Any], instance: Mapping[str, Any], wanted: Sequence[str] | None
) -> Host:
    name = host_name(facts, position)
    usable = [device for device in _all_devices(facts) if _works(device)]
    if wanted is not None:
        usable = [device for device in usable if _names(device) & set(wanted)]
    container = CONTAINER_PREFIX + str(instance.get("name") or "")
    gpus = tuple(_read_gpu(name, position, gpu, container) for gpu in usable)
    return Host(name=name, gpus=gpus, links=facts.get("links") or (), facts=facts)


def _devices(gpu: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The card itself, or its MIG devices where it is divided: each is a card of its own for vLLM."""
    parts = (gpu.get("mig") or {}).get("instances") or []
    if not parts:
        return [gpu]
    return [
        {
            **gpu,
            "memory_used_by_others_mib": None,
            "memory_reserved_mib": 0,
            "processes": [],
            **part,
            "index": gpu.get("index"),
            "name": f"{gpu.get('name')} MIG {part.get('profile') or ''}".strip(),
            "mig_device": True,
        }
        for part in parts
        if part.get("uuid")
    ]


def _read_gpu(host: str, position: int, facts: Mapping[str, Any], container: str) -> Gpu:
    total = visible_mib(facts)
    own = own_memory_mib(facts, container)
    reported = facts.get("memory_free_mib")
    free = min(total, (total if reported is None else int(reported)) + own)
    others = others_mib(facts, total, own)
    return Gpu(
        host=host,
        host_index=position,
        index=int(facts.get("index") or 0),
        uuid=str(facts.get("uuid") or ""),
        name=str(facts.get("name") or "unknown GPU"),
        compute_capability=str(facts["compute_capability"]) if facts.get("compute_capability") else None,
        total_bytes=total * MIB,
        free_bytes=free * MIB,
        others_bytes=others * MIB,
        numa_node=facts.get("numa_node"),
        facts=facts,
    )


def own_memory_mib(facts: Mapping[str, Any], container: str) -> int:
    """What the instance's own engine holds now: it counts as free, for a new start takes the place of the old."""
    own = [process for process in facts.get("processes") or () if process.get("container") == container]
    if not own:
        return 0
    if any(process.get("used_memory_mib") is None for process in own):
        # The driver does not tell whose memory it is (WDDM, some containers): all of it, as this engine is there.
        return int(facts.get("memory_used_mib") or facts.get("memory_used_by_others_mib") or 0)
    return sum(int(process["used_memory_mib"]) for process in own)


def others_mib(facts: Mapping[str, Any], total: int, own: int) -> int:
    """What everybody else holds. Where the driver's own sum is missing, gpu_info's figure for others is taken: it may
    count this engine (when it was not told the container), which shows in more memory than is in use."""
    used = facts.get("memory_used_mib")
    if used is not None:
        return max(0, int(used) - own)
    others, free = int(facts.get("memory_used_by_others_mib") or 0), facts.get("memory_free_mib")
    in_use = total - int(free) if free is not None else others
    return max(0, others - own) if others + own > in_use + SHARED_FROM_MIB else others


def visible_mib(facts: Mapping[str, Any]) -> int:
    """What cudaMemGetInfo gives as total: the driver's total without its reserve.

    Known cards are data. Of unknown ones the driver tells the reserve (from 510), else total, free and used give it.
    """
    total = int(facts["memory_total_mib"])
    tolerance = _cards()["tolerance_mib"]
    for card in _cards()["cards"]:
        if card["total_mib"] == total:
            return int(card["visible_mib"])
        if abs(card["visible_mib"] - total) <= tolerance:
            return total
    if facts.get("memory_reserved_mib") is not None:
        return total - int(facts["memory_reserved_mib"])
    free, used = facts.get("memory_free_mib"), facts.get("memory_used_mib", facts.get("memory_used_by_others_mib"))
    if free is not None and used is not None:
        # Before 510 the reserve was part of what is used, so that nothing is left between the three.
        return total - min(max(0, total - int(free) - int(used)), total // 20)
    return total - int(_cards()["unknown_card"]["reserve_mib"])

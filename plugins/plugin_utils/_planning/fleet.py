# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several instances on the same hosts, planned one after the other so that they see each other. Private."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import InstanceError
from .hosts import CONTAINER_PREFIX, own_memory_mib
from .plan import plan

FITTING = ("fits", "fits_reduced")

PASSED_ON = ("name", "image", "served_model_name", "address", "port", "endpoint", "extra_args")


def plan_instances(
    instances: Sequence[Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    inventory_hosts: Sequence[str] = (),
    current_plans: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The plans of all instances, in their order, each with what it passes on (name, image, address, port, ...).

    Where one after the other leaves no room for the last, all are planned again as neighbours on shared cards: each
    takes a KV pool in bytes for its promise, and no share of the whole card.

    Raises: InstanceError for an instance that nobody can plan with, two instances of one name or one port.
    """
    _check_unique(instances)
    named = [_name_host(host, inventory_hosts, index) for index, host in enumerate(hosts)]
    plans = _one_after_the_other(instances, named, checkpoints, current_plans or {}, shared=False)
    crowded = len(instances) > 1 and any(item["verdict"] == "does_not_fit" for item in plans)
    if crowded:
        together = _one_after_the_other(instances, named, checkpoints, current_plans or {}, shared=True)
        if _fitting(together) > _fitting(plans):
            return together
    return plans


def _fitting(plans: Sequence[Mapping[str, Any]]) -> int:
    return sum(item["verdict"] in FITTING for item in plans)


def _check_unique(instances: Sequence[Mapping[str, Any]]) -> None:
    for key, remedy in (("name", "Give each instance its own name."), ("port", "Give each instance its own port.")):
        seen: dict[Any, str] = {}
        for instance in instances:
            value = (
                (instance.get("address") or "127.0.0.1", int(instance.get("port") or 8000))
                if key == "port"
                else instance.get(key)
            )
            name = str(instance.get("name") or "")
            if value in seen:
                raise InstanceError(name, key, instance.get(key), f"is also that of instance '{seen[value]}'", remedy)
            seen[value] = name


def _name_host(host: Mapping[str, Any], names: Sequence[str], index: int) -> dict[str, Any]:
    named = copy.deepcopy(dict(host))
    named["name"] = names[index] if index < len(names) else named.get("name") or f"host{index}"
    return named


def _one_after_the_other(
    instances: Sequence[Mapping[str, Any]],
    hosts: Sequence[dict[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    current_plans: Mapping[str, Mapping[str, Any]],
    shared: bool,
) -> list[dict[str, Any]]:
    remaining = copy.deepcopy(list(hosts))
    plans = []
    for instance in instances:
        name = str(instance.get("name") or "")
        complete = {**instance, "checkpoint": _checkpoint(instance, checkpoints), "shares_gpus": shared}
        if current_plans.get(name):
            complete["current_plan"] = current_plans[name]
        planned = plan(complete, remaining)
        passed = {key: instance[key] for key in PASSED_ON if key in instance}
        plans.append({**_defaults(instance, complete["checkpoint"]), **passed, **planned})
        if planned["verdict"] in FITTING:
            _reserve(remaining, name, planned)
    return plans


def _defaults(instance: Mapping[str, Any], checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    address, port = instance.get("address") or "127.0.0.1", instance.get("port") or 8000
    return {
        "name": instance.get("name"),
        "image": instance.get("image"),
        "checkpoint": instance.get("checkpoint") if isinstance(instance.get("checkpoint"), str) else None,
        "task": instance.get("task") or checkpoint.get("task"),
        "served_model_name": instance.get("served_model_name") or instance.get("name"),
        "address": address,
        "port": port,
        "endpoint": f"http://{address}:{port}",
    }


def _checkpoint(instance: Mapping[str, Any], checkpoints: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    path = instance.get("checkpoint")
    if isinstance(path, Mapping):
        return path
    if not isinstance(path, str) or path not in checkpoints:
        known = ", ".join(sorted(map(str, checkpoints))) or "none"
        raise InstanceError(
            str(instance.get("name") or ""),
            "checkpoint",
            path,
            "was not described",
            f"Run gpufleet.vllm.checkpoint_info for it and pass its result in checkpoints (described are: {known}).",
        )
    return checkpoints[path]


def _reserve(hosts: Sequence[dict[str, Any]], name: str, planned: Mapping[str, Any]) -> None:
    """Take the plan's memory off the cards, as others' use for the instances that follow.

    What the instance's own engine holds already is in the facts: only the rest is taken off.
    """
    for budget in planned["budget"]:
        gpu = _find_gpu(hosts, budget)
        more = max(0, _planned_mib(budget) - own_memory_mib(gpu, CONTAINER_PREFIX + name))
        free = gpu.get("memory_free_mib")
        gpu["memory_free_mib"] = max(0, int(gpu["memory_total_mib"] if free is None else free) - more)
        gpu["memory_used_by_others_mib"] = int(gpu.get("memory_used_by_others_mib") or 0) + more
        if gpu.get("memory_used_mib") is not None:
            gpu["memory_used_mib"] += more


def _find_gpu(hosts: Sequence[dict[str, Any]], budget: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a planned card or MIG device: by UUID, by index where the driver tells no UUID."""
    host = next(host for host in hosts if host.get("name") == budget["host"])
    devices = [device for gpu in host["gpus"] for device in (gpu, *((gpu.get("mig") or {}).get("instances") or ()))]
    if budget["uuid"]:
        return next(device for device in devices if device.get("uuid") == budget["uuid"])
    return next(gpu for gpu in host["gpus"] if gpu.get("index") == budget["gpu"])


def _planned_mib(budget: Mapping[str, Any]) -> int:
    """All that the engine will hold: the card's free memory without the planned headroom."""
    free, headroom = budget["free_gib"]["value"], budget["headroom_gib"]["low"]
    return int((free - max(0.0, headroom)) * 1024)

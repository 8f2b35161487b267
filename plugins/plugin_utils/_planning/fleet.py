# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Several instances on the same hosts, planned one after the other so that they see each other. Private."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ...module_utils._checkpoint import describe_config
from .._preflight.resources import overlaps
from .case import read_case
from .checks import check_instance
from .errors import Faults, InstanceError, refused_pin
from .hosts import CONTAINER_PREFIX, own_memory_mib
from .plan import plan
from .verdicts import FITTING

PASSED_ON = (
    "name",
    "image",
    "served_model_name",
    "address",
    "port",
    "endpoint",
    "extra_args",
    "force_args",
    "description",
    "exposure",
    "replica_of",
)


def plan_instances(
    instances: Sequence[Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    inventory_hosts: Sequence[str] = (),
    current_plans: Mapping[str, Mapping[str, Any]] | None = None,
    receipts: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The plans of all instances, in their order, each with what it passes on (name, image, address, port, ...).

    checkpoints, by path: descriptions, or the config.json of a model as it is published. current_plans and receipts, by
    name of the instance: what runs now, and what its start measured; a receipt that is none is refused with a warning.

    Where one after the other leaves no room for the last, all are planned again as neighbours on shared cards: each
    takes a KV pool in bytes for its promise, and no share of the whole card.

    Raises: InstanceError with all that is wrong with all instances: what nobody can plan with, two of one name or port.
    """
    named = [_name_host(host, inventory_hosts, index) for index, host in enumerate(hosts)]
    complete, refusals = _checked(instances, checkpoints, current_plans or {}, receipts or {}, named)
    plans = _one_after_the_other(complete, named, shared=False)
    crowded = len(instances) > 1 and any(item["verdict"] == "does_not_fit" for item in plans)
    if crowded:
        together = _one_after_the_other(complete, named, shared=True)
        plans = together if _fitting(together) > _fitting(plans) else plans
    return [{**item, "warnings": [*item["warnings"], *refused]} for item, refused in zip(plans, refusals, strict=True)]


def _fitting(plans: Sequence[Mapping[str, Any]]) -> int:
    return sum(item["verdict"] in FITTING for item in plans)


def _checked(
    instances: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    current_plans: Mapping[str, Mapping[str, Any]],
    receipts: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """The instances with all that plan() takes, and for each the warnings about a receipt that is none."""
    faults, complete, refusals, refused = Faults(), [], [], []
    for instance in instances:
        faults.attempt(check_instance, instance)
        whole, refusal = _complete(instance, current_plans, receipts)
        whole["checkpoint"] = faults.attempt(_checkpoint, instance, checkpoints) or EMPTY_CHECKPOINT
        read = faults.attempt(read_case, whole, hosts)
        refused += [refused_pin(read.name, dict(error)) for error in read.errors] if read else []
        complete.append(whole)
        refusals.append(refusal)
    check_unique(instances, faults)
    if faults.found:
        names = [host["name"] for host in hosts]
        faults.found = [error.on(names) for error in (*faults.found, *refused)]
        faults.refuse()
    return complete, refusals


EMPTY_CHECKPOINT: dict[str, Any] = {"layers": [{"count": 1}]}
"""Stands in for a checkpoint that is not described, so that what else is wrong is found as well."""


def check_unique(instances: Sequence[Mapping[str, Any]], faults: Faults) -> None:
    """Two instances of one name, or that would publish one port on addresses that exclude each other."""
    for number, instance in enumerate(instances):
        earlier = instances[:number]
        for key, same, remedy in (
            ("name", lambda one, other: one.get("name") == other.get("name"), "Give each instance its own name."),
            ("port", _share_port, "Give each instance its own port."),
        ):
            other = next((one for one in earlier if same(one, instance)), None)
            if other is not None:
                fault = f"is also that of instance '{other.get('name') or ''}'"
                name = str(instance.get("name") or "")
                faults.found.append(InstanceError(name, key, instance.get(key), fault, remedy))


def _share_port(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    addresses = [str(instance.get("address") or "127.0.0.1") for instance in (one, other)]
    same_port = len({str(instance.get("port") or 8000) for instance in (one, other)}) == 1
    return same_port and overlaps(*addresses)


def bracketed(address: str) -> str:
    """An address as it stands in a URL: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def _name_host(host: Mapping[str, Any], names: Sequence[str], index: int) -> dict[str, Any]:
    named = copy.deepcopy(dict(host))
    named["name"] = names[index] if index < len(names) else named.get("name") or f"host{index}"
    return named


def _complete(
    instance: Mapping[str, Any],
    current_plans: Mapping[str, Mapping[str, Any]],
    receipts: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], list[str]]:
    """An instance with the plan that runs now and its receipt, and the warning about a receipt that is none."""
    name = str(instance.get("name") or "")
    whole = {**instance, "path": instance.get("checkpoint")}
    if current_plans.get(name):
        whole["current_plan"] = current_plans[name]
    given = instance.get("receipt") or receipts.get(name)
    fault = receipt_fault(given) if given else None
    whole["receipt"] = None if fault else given
    return whole, [f"the receipt is not used: {fault}; the next start writes it again"] if fault else []


def receipt_fault(receipt: Any) -> str | None:
    """What keeps a receipt from being read, if anything does. Whether it is of the same start, plan() finds out."""
    if not isinstance(receipt, Mapping):
        return "it is no receipt"
    for part in ("planned", "measured"):
        figures = receipt.get(part)
        if not isinstance(figures, Mapping):
            return f"it lacks the figures under '{part}'"
        for figure, value in figures.items():
            if figure.endswith("_gib") and not isinstance(value, int | float | None):
                return f"{part}.{figure} is {value!r}, no number of GiB"
    for size in ("tensor_parallel_size", "pipeline_parallel_size"):
        if not isinstance(receipt.get(size), int | None):
            return f"{size} is {receipt.get(size)!r}, no number"
    return None


def _one_after_the_other(
    instances: Sequence[Mapping[str, Any]], hosts: Sequence[dict[str, Any]], shared: bool
) -> list[dict[str, Any]]:
    remaining = copy.deepcopy(list(hosts))
    plans = []
    for instance in instances:
        planned = plan({**instance, "shares_gpus": shared}, remaining)
        passed = {key: instance[key] for key in PASSED_ON if key in instance}
        names = {"hosts": [host["name"] for host in hosts]}
        plans.append({**_defaults(instance, str(hosts[0]["name"])), **names, **passed, **planned})
        if planned["verdict"] in FITTING:
            reserve(remaining, str(instance.get("name") or ""), planned)
    return plans


def _defaults(instance: Mapping[str, Any], host: str) -> dict[str, Any]:
    address, port = instance.get("address") or "127.0.0.1", instance.get("port") or 8000
    # "Every address" is none that a client could ask.
    reached_at = host if str(address) in ("0.0.0.0", "::") else str(address)
    return {
        "name": instance.get("name"),
        "image": instance.get("image"),
        "checkpoint": instance["path"] if isinstance(instance["path"], str) else None,
        "task": instance.get("task") or instance["checkpoint"].get("task"),
        "smoke": _smoke(instance),
        "served_model_name": instance.get("served_model_name") or instance.get("name"),
        "address": address,
        "port": port,
        "endpoint": f"http://{bracketed(reached_at)}:{port}",
    }


def _smoke(instance: Mapping[str, Any]) -> str:
    """The kind of request that proves the engine: what it is for; of a chat model only where it has a chat template."""
    task = str(instance.get("task") or instance["checkpoint"].get("task") or "generate")
    tokenizer = instance["checkpoint"].get("tokenizer") or {"chat_template": True}
    if task == "generate":
        return "chat" if tokenizer["chat_template"] else "completion"
    return task


def _checkpoint(instance: Mapping[str, Any], checkpoints: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    path = instance.get("checkpoint")
    if isinstance(path, Mapping):
        return described(path)
    if not isinstance(path, str) or path not in checkpoints:
        known = ", ".join(sorted(map(str, checkpoints))) or "none"
        raise InstanceError(
            str(instance.get("name") or ""),
            "checkpoint",
            path,
            "was not described",
            f"Run gpufleet.vllm.checkpoint_info for it and pass its result in checkpoints (described are: {known}).",
        )
    return described(checkpoints[path])


def described(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """A description as it is; a config.json as it is published, described. Neither is touched."""
    published = "layers" not in checkpoint and ("architectures" in checkpoint or "model_type" in checkpoint)
    return describe_config(dict(checkpoint)) if published else checkpoint


def reserve(hosts: Sequence[dict[str, Any]], name: str, planned: Mapping[str, Any]) -> None:
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

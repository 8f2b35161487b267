# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Works out the one change that a finding proposes. Private to the collection.

Every proposal gets the variable (as a path in the instance: ``engine_args.max_model_len``), what the signature captured
from its line, and the context of diagnose. It returns {"variable", "from", "to"}, or None where too little is known for
a change that is sure to be one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

from .._catalogue import Release, UnknownRelease, known_releases, release

Change = dict[str, Any]
_Proposal = Callable[[str, dict[str, str], dict[str, Any]], Change | None]

# Memory that CUDA's context and the fragments of a process take beside what vLLM counts, as a share of the GPU.
_MARGIN = 0.02
_LARGEST_UTILIZATION = 0.95
_UTILIZATION_STEP = 0.05
_SMALLEST_UTILIZATION = 0.1
_KV_BYTES = "engine_args.kv_cache_memory_bytes"
_BYTES_STEP = 0.1
_MIB = 1 << 20
# Lengths are given in whole blocks of the KV cache; 16 tokens is the block of engine V0 and of V1 on CUDA.
_BLOCK = 16


def propose(change: dict[str, Any] | None, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """Returns the change that a signature describes, as {"variable", "from", "to"}."""
    if change is None:
        return None
    variable = change["variable"]
    if "propose" in change:
        return _PROPOSALS[change["propose"]](variable, groups, context)
    current = _current(variable, groups, context)
    return {"variable": variable, "from": change.get("from") if current is None else current, "to": change["to"]}


def current_value(variable: str, context: dict[str, Any]) -> Any:
    """The value of a variable of the instance, as far as context knows it; None where it does not."""
    return _current(variable, {}, context)


def _current(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Any:
    """The value now: from the line, the instance's pins, the plan, what vLLM logged, or the release's default."""
    if "from" in groups:
        return _number(groups["from"])
    section, _dot, name = variable.rpartition(".")
    instance = context.get("instance") or {}
    pins = instance.get(section) if section else instance
    if pins and name in pins:
        return pins[name]
    arguments = (context.get("plan") or {}).get("arguments") or []
    planned = next((argument["value"] for argument in arguments if argument["name"] == name), None)
    logged = (context.get("measured") or {}).get(name)
    if planned is not None or logged is not None:
        return planned if planned is not None else logged
    return _default(name, context) if section == "engine_args" else None


def release_of(context: dict[str, Any]) -> Release | None:
    """The pinned release, or that which logged. A build's suffix (+cpu, .post1.dev2) is none of the catalogue's."""
    plan, instance = context.get("plan") or {}, context.get("instance") or {}
    version = (plan.get("release") or {}).get("version") or instance.get("release") or instance.get("image")
    version = version or str((context.get("measured") or {}).get("version") or "").partition("+")[0]
    with contextlib.suppress(UnknownRelease):
        return release(version)
    return None


def _default(name: str, context: dict[str, Any]) -> Any:
    found = release_of(context)
    if found is None or found.argument(name) is None:
        return None
    gpus = [gpu for host in context.get("hosts") or [] for gpu in host.get("gpus") or []]
    return found.default(name, gpu=gpus[0] if gpus else None)


def _number(text: str) -> Any:
    try:
        return int(text.replace(",", ""))
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _double_tensor_parallel(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """Twice the GPUs for each layer, if one host has them and the attention heads can be divided."""
    current = _current(variable, groups, context) or 1
    hosts = _gpus_by_host(context)
    if hosts and 2 * current > min(map(len, hosts)):
        return None
    heads = _heads(context)
    if heads and heads % (2 * current):
        return None
    return {"variable": variable, "from": current, "to": 2 * current}


def _double_pipeline_parallel(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """Twice the stages, if the hosts have the GPUs for them."""
    current = _current(variable, groups, context) or 1
    tensor = _current("engine_args.tensor_parallel_size", {}, context) or 1
    gpus = sum(map(len, _gpus_by_host(context)))
    if gpus and 2 * current * tensor > gpus:
        return None
    return {"variable": variable, "from": current, "to": 2 * current}


def _gpus_by_host(context: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The GPUs that the instance may use, by host."""
    allowed = set(map(str, (context.get("instance") or {}).get("gpus") or []))
    return [
        [gpu for gpu in host.get("gpus") or [] if not allowed or {str(gpu.get("index")), gpu.get("uuid")} & allowed]
        for host in context.get("hosts") or []
    ]


def _heads(context: dict[str, Any]) -> int | None:
    """Attention heads, where the checkpoint of the instance is its description; in an inventory it is a path."""
    checkpoint = (context.get("instance") or {}).get("checkpoint")
    return checkpoint.get("num_attention_heads") if isinstance(checkpoint, dict) else None


def _halve(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    current = _current(variable, groups, context)
    if not isinstance(current, int) or current < 2:
        return None
    return {"variable": variable, "from": current, "to": current // 2}


def _estimated_max_model_len(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """vLLM's own estimate of what fits, in whole blocks."""
    if "estimated" not in groups:
        return None
    length = int(groups["estimated"]) // _BLOCK * _BLOCK
    wanted = _number(groups["wanted"]) if "wanted" in groups else _current(variable, groups, context)
    return {"variable": variable, "from": wanted, "to": length} if length else None


def _raise_utilization(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """A larger share, as far as memory is free; where the KV cache is given in bytes, vLLM looks at no share."""
    if _pool_bytes(context):
        return _more_bytes(context)
    current = _current(variable, groups, context)
    larger = min(largest_utilization(context), (current or 0) + _UTILIZATION_STEP)
    if current is None or larger <= current:
        return None
    return {"variable": variable, "from": current, "to": round(larger, 2)}


def largest_utilization(context: dict[str, Any]) -> float:
    """The share that is free on the tightest GPU of the instance, rounded down, where that is known."""
    taken = {(line.get("host"), line.get("gpu")) for line in (context.get("plan") or {}).get("budget") or []}
    numbers = {gpu for _host, gpu in taken}
    gpus = [gpu for gpus in _gpus_by_host(context) for gpu in gpus if not taken or gpu.get("index") in numbers]
    shares = [gpu["memory_free_mib"] / gpu["memory_total_mib"] - _MARGIN for gpu in gpus if gpu.get("memory_total_mib")]
    return min([_LARGEST_UTILIZATION, *(math.floor(share * 100) / 100 for share in shares)])


def _lower_utilization(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    pool = _pool_bytes(context)
    if pool:
        return _bytes(pool, pool * (1 - _BYTES_STEP))
    current = _current(variable, groups, context)
    if current is None or current < _SMALLEST_UTILIZATION + _UTILIZATION_STEP:
        return None
    return {"variable": variable, "from": current, "to": round(current - _UTILIZATION_STEP, 2)}


def _pool_bytes(context: dict[str, Any]) -> int:
    """What the KV cache is given in bytes; 0 where it is given a share."""
    given = _current(_KV_BYTES, {}, context)
    return int(given) if isinstance(given, (int, float)) else 0


def _more_bytes(context: dict[str, Any]) -> Change | None:
    """A larger KV cache, as far as the plan knows of free memory beside everything else that the engine takes."""
    pool = _pool_bytes(context)
    rooms = [_room_gib(line) for line in (context.get("plan") or {}).get("budget") or []]
    if not rooms:
        return None
    larger = min(min(rooms) * (1 << 30), pool * (1 + _BYTES_STEP))
    return _bytes(pool, larger) if larger > pool else None


def _room_gib(line: dict[str, Any]) -> float:
    parts = ("weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib")
    taken = sum(line[part]["high"] for part in parts if line.get(part))
    return float(line["free_gib"]["value"] - taken - _MARGIN * line["total_gib"]["value"])


def _bytes(pool: int, wanted: float) -> Change:
    return {"variable": _KV_BYTES, "from": pool, "to": int(wanted) // _MIB * _MIB}


def _utilization_of_free_memory(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """The share that was free, rounded down: vLLM compares it with the whole GPU."""
    if "free" not in groups:
        return None
    share = float(groups["free"]) / float(groups["total"]) - _MARGIN
    fitting = math.floor(share * 100) / 100
    return {"variable": variable, "from": _current(variable, groups, context), "to": fitting} if fitting > 0 else None


def _dividing_tensor_parallel_size(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    if "heads" not in groups or "from" not in groups:
        return None
    heads, current = int(groups["heads"]), int(groups["from"])
    size = next(size for size in range(current - 1, 0, -1) if heads % size == 0) if current > 1 else 1
    return {"variable": variable, "from": current, "to": size}


def _next_port(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    current = _current(variable, {}, context) or _number(groups.get("from", ""))
    return {"variable": variable, "from": current, "to": current + 1} if isinstance(current, int) else None


def _without_argument(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    if "argument" not in groups:
        return None
    name = groups["argument"].split("/")[-1].lstrip("-").replace("-", "_")
    path = f"{variable}.{name}"
    return {"variable": path, "from": _current(path, {}, context), "to": None}


def _remove(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    current = _current(variable, groups, context)
    return {"variable": variable, "from": current, "to": None}


def _captured(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    return {"variable": variable, "from": _current(variable, groups, context), "to": _number(groups["to"])}


def _release_with_architecture(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """The first release after the pinned one that has the architecture in its registry."""
    current, architecture = release_of(context), groups.get("architecture")
    if current is None or architecture is None or current.supports_architecture(architecture):
        return None
    later = known_releases()[known_releases().index(current.version) + 1 :]
    fitting = next((version for version in later if release(version).supports_architecture(architecture)), None)
    if fitting is None:
        return None
    image = (context.get("instance") or {}).get("image") or f"vllm/vllm-openai:v{current.version}"
    return {"variable": variable, "from": image, "to": f"{image.rpartition(':')[0]}:v{fitting}"}


def _triton_backend(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """Triton's kernels run on every card; where the pinned release has no such argument there is nothing to choose."""
    found = release_of(context)
    if found is not None and found.argument(variable.partition(".")[2]) is None:
        return None
    return {"variable": variable, "from": _current(variable, groups, context) or "auto", "to": "triton"}


def _communication(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """Without vLLM's own all-reduce first, as that costs least; where it is off already, without P2P."""
    if _current("engine_args.disable_custom_all_reduce", {}, context):
        return {"variable": "environment.NCCL_P2P_DISABLE", "from": None, "to": "1"}
    return {"variable": variable, "from": False, "to": True}


def _unknown_here(variable: str, groups: dict[str, str], context: dict[str, Any]) -> Change | None:
    """The variable is known, its right value is not: no change is better than a guess."""
    return None


_PROPOSALS: dict[str, _Proposal] = {
    "captured": _captured,
    "communication": _communication,
    "dividing_tensor_parallel_size": _dividing_tensor_parallel_size,
    "double_pipeline_parallel": _double_pipeline_parallel,
    "double_tensor_parallel": _double_tensor_parallel,
    "estimated_max_model_len": _estimated_max_model_len,
    "halve": _halve,
    "lower_utilization": _lower_utilization,
    "network_interface": _unknown_here,
    "newer_release": _unknown_here,
    "next_port": _next_port,
    "quantization_of_checkpoint": _remove,
    "raise_utilization": _raise_utilization,
    "release_with_architecture": _release_with_architecture,
    "remove": _remove,
    "template_file": _unknown_here,
    "triton_backend": _triton_backend,
    "utilization_of_free_memory": _utilization_of_free_memory,
    "without_argument": _without_argument,
}

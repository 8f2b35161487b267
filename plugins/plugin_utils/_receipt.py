# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM measured at boot, beside what the plan predicted. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Of several GPUs the budget must hold the heaviest, and the smallest pool bounds all.
_PER_GPU: dict[str, Callable[[list[float]], float]] = {
    "weights_gib": max,
    "activation_gib": max,
    "non_torch_gib": max,
    "cuda_graph_gib": max,
    "kv_pool_gib": min,
}
_MEASURED_ONLY = ("cuda_graph_estimate_gib", "gpu_total_gib", "gpu_free_gib", "load_seconds", "init_seconds")
# From this difference of the KV pool on, in percent, the plan should not be trusted for its like.
_REMARKABLE_PERCENT = 10.0


def receipt(plan: Mapping[str, Any], boot: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the receipt of one start.

    plan: what plan() returned for the instance. boot: what boot_info or wait_ready returned for its engine.
    Shape: {"release", "engine_version", "image", "card", "tensor_parallel_size", "pipeline_parallel_size", "arguments",
    "planned", "measured", "difference", "warnings"}. planned and measured have sizes in GiB per GPU, kv_tokens and
    max_concurrency; difference has for each figure that both know {"value": measured - planned, "percent"}. There is no
    clock in it: the receipt of a start is always the same.
    """
    measured = boot["measured"]
    planned = _planned(plan)
    found = {name: measured.get(name) for name in [*planned, *_MEASURED_ONLY]}
    difference = _differences(planned, found)
    parallel = plan.get("parallel") or {}
    return {
        "release": plan["release"]["version"],
        "engine_version": measured.get("version"),
        "image": plan.get("image") or plan["release"].get("image"),
        "card": plan.get("card") or _card(plan.get("budget") or []),
        "tensor_parallel_size": parallel.get("tensor_parallel_size"),
        "pipeline_parallel_size": parallel.get("pipeline_parallel_size"),
        "arguments": {argument["name"]: argument["value"] for argument in plan.get("arguments") or []},
        "planned": planned,
        "measured": found,
        "difference": difference,
        "warnings": _warnings(measured, difference),
    }


def _planned(plan: Mapping[str, Any]) -> dict[str, Any]:
    budget, kv = plan.get("budget") or [], plan.get("kv") or {}
    planned: dict[str, Any] = {}
    for name, combine in _PER_GPU.items():
        values = [_value(gpu[name]) for gpu in budget if name in gpu]
        planned[name] = combine(values) if values else None
    planned["kv_tokens"] = kv.get("tokens")
    planned["max_concurrency"] = kv.get("max_concurrency")
    planned["max_model_len"] = kv.get("max_model_len")
    return planned


def _value(term: Any) -> float:
    return float(term["value"] if isinstance(term, Mapping) else term)


def _card(budget: Sequence[Mapping[str, Any]]) -> str | None:
    return budget[0].get("name") if budget else None


def _differences(planned: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {
        name: {"value": round(measured[name] - value, 2), "percent": _percent(measured[name], value)}
        for name, value in planned.items()
        if value is not None and measured[name] is not None
    }


def _percent(measured: float, planned: float) -> float | None:
    return round(100 * (measured - planned) / planned, 2) if planned else None


def _warnings(measured: Mapping[str, Any], difference: Mapping[str, Any]) -> list[str]:
    warnings = []
    estimate = measured.get("cuda_graph_estimate_gib")
    if estimate is not None and estimate < 0:
        warnings.append(
            f"vLLM estimated {estimate} GiB for the CUDA graphs, which cannot be: memory was released on the GPU "
            "during the profile run. The KV pool is too large; start the engine again while nothing else changes there."
        )
    percent = (difference.get("kv_pool_gib") or difference.get("kv_tokens") or {}).get("percent")
    if percent is not None and abs(percent) > _REMARKABLE_PERCENT:
        warnings.append(f"The KV cache differs from the plan by {percent:+} %.")
    return warnings

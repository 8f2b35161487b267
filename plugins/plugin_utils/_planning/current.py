# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps what runs: no restart for a few MiB of free memory. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .case import Case, basis_of
from .hosts import Gpu
from .parallelism import Layout
from .search import Choice, base_settings, default_sequences, default_tokens, has_room, keeps, predict
from .verdicts import FITTING


def keep_current(case: Case, current: Mapping[str, Any] | None) -> Choice | None:
    """The choice of the plan that runs now, where the same is asked for and its GPUs still have room for it.

    Returns None where anything was changed, a GPU is gone or the engine would no longer fit: then it is planned anew.
    """
    if not current or current.get("verdict") not in FITTING or current.get("basis") != basis_of(case):
        return None
    gpus = _gpus(case, current.get("devices") or {})
    parallel = current.get("parallel") or {}
    tensor, pipeline = int(parallel.get("tensor_parallel_size") or 1), int(parallel.get("pipeline_parallel_size") or 1)
    layout = Layout(tensor, pipeline, gpus, case.engines_here)
    return _check(case, layout, current) if len(gpus) == layout.size else None


def _gpus(case: Case, devices: Mapping[str, Any]) -> tuple[Gpu, ...]:
    known = {(gpu.host, gpu.uuid or str(gpu.index)): gpu for host in case.hosts for gpu in host.gpus}
    wanted = [(host, uuid) for host, uuids in devices.items() for uuid in uuids]
    return tuple(known[key] for key in wanted if key in known)


def _check(case: Case, layout: Layout, current: Mapping[str, Any]) -> Choice | None:
    workload = current.get("workload") or {}
    values = {argument["name"]: argument["value"] for argument in current.get("arguments") or ()}
    context = int(workload.get("context") or case.goal.context)
    goal = replace(
        case.goal,
        context=context,
        sequences=int(workload.get("sequences") or 1),
        typical_context=workload.get("typical_context"),
    )
    sequences = int(values.get("max_num_seqs") or default_sequences(case, layout.gpus[0]))
    tokens = int(values.get("max_num_batched_tokens") or default_tokens(case, layout.gpus[0], goal, sequences))
    settings = base_settings(case, goal, sequences, tokens)
    if values.get("gpu_memory_utilization"):
        settings = replace(settings, gpu_memory_utilization=float(values["gpu_memory_utilization"]))
    if values.get("kv_cache_memory_bytes"):
        settings = replace(
            settings,
            kv_cache_memory_bytes=case.pins.integer("kv_cache_memory_bytes") or int(values["kv_cache_memory_bytes"]),
        )
    found = predict(case, layout, settings)
    reduced = (context, goal.sequences) < (
        case.goal.context,
        case.goal.sequences,
    ) or goal.sequences < case.goal.sequences
    if reduced:
        return Choice(found, goal, reduced=True, fits=True) if has_room(case, found) and found.holds(1, 16) else None
    return Choice(found, goal, reduced=False, fits=True) if keeps(case, found, goal) else None

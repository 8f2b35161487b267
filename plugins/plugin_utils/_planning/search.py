# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the layout and the settings of a case, in the order: fit, length, room, batch. Private to gpufleet.vllm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .budget import Prediction
from .budget import predict as predict_start
from .case import Case, Goal
from .estimate import MIB
from .hosts import Gpu
from .parallelism import Layout, division_faults, layouts
from .settings import Pins, Settings, cache_switches
from .span_layouts import span_layouts

UTILIZATION_STEP = 0.01
UTILIZATION_MOST = 0.98
POOL_STEP = 16 * MIB
SEQUENCES_LADDER = (256, 128, 64, 32, 16, 8)
BATCHED_TOKENS_LADDER = (4096, 2048)
LAYOUT_PINS = ("tensor_parallel_size", "pipeline_parallel_size")
WORTH_STAGES = 1.25
"""So many times as much of a promise that is cut anyhow is worth the latency of stages, less is not."""
LEAST_USEFUL_CONTEXT = 1024
"""A shorter context than this is no service: the model does not fit."""


@dataclass(frozen=True)
class Choice:
    """A start and the goal that it reaches.

    reduced where the goal is less than what was asked for; trimmed where max_num_seqs is what the pool holds.
    """

    start: Prediction
    goal: Goal
    reduced: bool
    fits: bool
    trimmed: bool = False


def choose(case: Case) -> Choice | None:
    """The first layout that keeps every promise; else the one that keeps the most; None where there is no layout.

    Layouts whose GPUs cannot hold the weights are not predicted, but for the one that comes nearest to it.
    """
    best: Choice | None = None
    nearest: Layout | None = None
    for layout in case_layouts(case):
        if lacks_room(case, layout):
            nearest = layout if nearest is None or layout.size > nearest.size else nearest
            continue
        choice = choose_settings(case, layout)
        if choice.fits and not choice.reduced:
            return choice
        if best is None or _keeps_more(case, choice, best):
            best = choice
    if best is None and nearest is not None:
        best = choose_settings(case, nearest)
    return best


def lacks_room(case: Case, layout: Layout) -> bool:
    """Whether an equal share of the weights is more than a GPU has free: no setting would help."""
    return case.model.least_weights(layout, _smallest(case)) > min(gpu.free_bytes for gpu in layout.gpus)


def _smallest(case: Case) -> Settings:
    """The settings with the smallest batch: the weights depend on none of them but those that are pinned."""
    if "smallest" not in case.memo:
        case.memo["smallest"] = base_settings(case, case.goal, 1, 1)
    settings: Settings = case.memo["smallest"]
    return settings


def _keeps_more(case: Case, left: Choice, right: Choice) -> bool:
    """Whether left is the better choice; stages on one host must be worth their latency where tensor parallelism
    alone could divide the model over as many GPUs."""
    kept, before = _kept(left), _kept(right)
    if right.fits and _needs_no_stages(case, left.start.layout):
        return kept[1] > before[1] * WORTH_STAGES
    return kept > before


def _needs_no_stages(case: Case, layout: Layout) -> bool:
    if layout.pipeline_parallel_size == 1 or layout.hosts > 1 or any(name in case.pins for name in LAYOUT_PINS):
        return False
    expert_parallel = bool(case.pins.flag("enable_expert_parallel"))
    return not division_faults(case.shape, layout.size // case.engines_here, expert_parallel, case.engines)


def _kept(choice: Choice) -> tuple[float, ...]:
    """What a choice keeps of the promise: of equals, the first layout is the better. Where nothing fits, how near it
    comes."""
    if choice.fits:
        return 1, choice.goal.sequences * choice.goal.context
    return 0, 0, choice.start.tokens("low"), min(budget.pool.low for budget in choice.start.distinct)


def case_layouts(case: Case) -> Iterator[Layout]:
    if case.spans:
        return span_layouts(case)
    return layouts(
        case.shape,
        case.hosts,
        case.pins.integer("tensor_parallel_size"),
        case.pins.integer("pipeline_parallel_size"),
        bool(case.pins.flag("enable_expert_parallel")),
        case.engines,
        case.engines_here,
    )


def choose_settings(case: Case, layout: Layout) -> Choice:
    """The settings of a layout: the release's batch limits first, smaller ones where only they make room."""
    goal = case.goal
    limits = list(batch_limits(case, layout, goal))
    smallest = attempt(case, layout, *limits[-1])
    if not keeps(case, smallest, goal):
        return _reduce(case, smallest, goal)
    # The smallest batch fits: take the largest that does.
    candidates = (attempt(case, layout, *limit) for limit in limits)
    found = next(candidate for candidate in candidates if keeps(case, candidate, goal))
    trimmed = _trim_sequences(case, found, goal)
    return Choice(trimmed, goal, reduced=False, fits=True, trimmed=trimmed is not found)


def attempt(case: Case, layout: Layout, sequences: int, tokens: int) -> Prediction:
    """A start with that batch, its memory limit chosen for the whole promise."""
    return with_memory(case, layout, base_settings(case, case.goal, sequences, tokens), case.goal)


def keeps_promise(case: Case, layout: Layout) -> bool:
    """Whether a layout keeps the whole promise, with the smallest batch if need be."""
    smallest = list(batch_limits(case, layout, case.goal))[-1]
    return keeps(case, attempt(case, layout, *smallest), case.goal)


def keeps(case: Case, candidate: Prediction, goal: Goal) -> bool:
    return has_room(case, candidate) and all(candidate.holds(count, context) for count, context in goal.needs)


def has_room(case: Case, candidate: Prediction) -> bool:
    """Every GPU can give what vLLM asks for, and keeps its headroom; a pinned limit is obeyed with less of it."""
    if any(budget.start_margin < 0 for budget in candidate.distinct):
        return False
    if "gpu_memory_utilization" in case.pins or "kv_cache_memory_bytes" in case.pins:
        return all(budget.headroom.value >= 0 for budget in candidate.distinct)
    # Pools are rounded to whole steps: a MiB must not decide.
    return all(budget.headroom.low >= least_headroom(case, budget.gpu) - MIB for budget in candidate.distinct)


def least_headroom(case: Case, gpu: Gpu) -> float:
    return case.headroom(gpu.total_bytes)


def batch_limits(case: Case, layout: Layout, goal: Goal) -> Iterator[tuple[int, int]]:
    """(max_num_seqs, max_num_batched_tokens) to try: the defaults of the release for this card, then smaller ones."""
    pinned_tokens = case.pins.integer("max_num_batched_tokens")
    promised = goal.sequences_per_engine
    sequences = case.pins.integer("max_num_seqs") or max(default_sequences(case, layout.gpus[0]), promised)
    ladder = [sequences]
    if "max_num_seqs" not in case.pins:
        ladder += [fewer for fewer in SEQUENCES_LADDER if promised <= fewer < sequences]
    for fewer in ladder:
        yield fewer, pinned_tokens or default_tokens(case, layout.gpus[0], goal, fewer)
    if not pinned_tokens and case.model.generates:
        tokens = default_tokens(case, layout.gpus[0], goal, ladder[-1])
        yield from ((ladder[-1], fewer) for fewer in BATCHED_TOKENS_LADDER if ladder[-1] <= fewer < tokens)


def default_sequences(case: Case, gpu: Gpu) -> int:
    return _default(case, gpu, "max_num_seqs")


def _default(case: Case, gpu: Gpu, name: str) -> int:
    """The release's own value for this kind of card, looked up once a case."""
    key = name, gpu.name, gpu.compute_capability, gpu.total_bytes
    if key not in case.memo:
        case.memo[key] = int(case.release.default(name, dict(gpu.facts)))
    return int(case.memo[key])


def default_tokens(case: Case, gpu: Gpu, goal: Goal, sequences: int) -> int:
    """The release's own max_num_batched_tokens for this card (vllm/engine/arg_utils.py, get_batch_defaults): with
    chunked prefill no more than all sequences can have, without it at least the longest prompt."""
    tokens = _default(case, gpu, "max_num_batched_tokens")
    if case.model.generates and case.pins.flag("enable_chunked_prefill") is not False:
        return min(tokens, sequences * goal.context)
    return max(tokens, goal.context)


def base_settings(case: Case, goal: Goal, sequences: int, tokens: int) -> Settings:
    pins = case.pins
    default = float(case.release.default("gpu_memory_utilization"))
    return Settings(
        gpu_memory_utilization=pins.number("gpu_memory_utilization") or default,
        kv_cache_memory_bytes=pins.integer("kv_cache_memory_bytes"),
        max_model_len=goal.context,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        dtype=case.precision.dtype,
        quantization=pins.text("quantization"),
        kv_cache_dtype=case.precision.kv_cache_dtype,
        block_size=pins.integer("block_size"),
        enforce_eager=bool(pins.flag("enforce_eager")),
        enable_expert_parallel=bool(pins.flag("enable_expert_parallel")),
        data_parallel_size=case.engines,
        decode_context_parallel_size=pins.integer("decode_context_parallel_size") or 1,
        cpu_offload_bytes=int((pins.number("cpu_offload_gb") or 0) * 2**30),
        num_gpu_blocks_override=pins.integer("num_gpu_blocks_override"),
        cache=cache_switches(pins),
        layer_partition=case.layer_partition,
    )


def run_facts(case: Case) -> Mapping[str, Any]:
    """What only the overhead depends on: environment and arguments that switch runners, graphs and encoders."""
    environment = case.instance.get("environment") or {}
    compilation = case.pins.mapping("compilation_config") or {}
    limits = case.pins.mapping("limit_mm_per_prompt")
    largest = case.pins.integer("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
    return {
        "v2_runner": _switch(environment.get("VLLM_USE_V2_MODEL_RUNNER")),
        "graph_estimate": _switch(environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")),
        "max_capture_size": int(largest) if largest else None,
        "multimodal": not (limits and all(_nothing(limit) for limit in limits.values()))
        and not case.pins.flag("language_model_only"),
    }


def _nothing(limit: Any) -> bool:
    return (limit.get("count") if isinstance(limit, Mapping) else limit) in (0, "0")


def _switch(value: Any) -> bool | None:
    return None if value in (None, "") else str(value).lower() in ("1", "true", "yes")


def predict(case: Case, layout: Layout, settings: Settings) -> Prediction:
    return predict_start(case.model, layout, settings, run_facts(case))


def with_memory(case: Case, layout: Layout, settings: Settings, goal: Goal) -> Prediction:
    """The start with the memory limit chosen: pinned, the release's default, more or less as needed, or bytes."""
    candidate = predict(case, layout, settings)
    if settings.kv_cache_memory_bytes is not None:
        return _with_start_check(case, candidate)
    if "gpu_memory_utilization" in case.pins:
        return candidate
    if (case.shares_gpus or any(gpu.shared for gpu in layout.gpus)) and case.release.argument("kv_cache_memory_bytes"):
        return _with_pinned_pool(case, candidate, goal)
    return _with_utilization(case, candidate, goal)


def with_receipt(case: Case) -> Case:
    """The case with its receipt compared with what is planned today, without it, for the arguments of that start."""
    receipt = case.model.receipt
    if receipt is None or not receipt.arguments:
        return case
    sizes = {
        "tensor_parallel_size": receipt.tensor_parallel_size,
        "pipeline_parallel_size": receipt.pipeline_parallel_size,
    }
    pins = Pins({**case.pins.values, **receipt.arguments, **sizes}, case.pins.extra, case.name)
    bare = replace(case, pins=pins, model=replace(case.model, receipt=None))
    layout = next(case_layouts(bare), None)
    if layout is None:
        return case
    start = predict(bare, layout, base_settings(bare, bare.goal, *next(batch_limits(bare, layout, bare.goal))))
    weights = max((budget.weights for budget in start.distinct), key=lambda estimate: estimate.value)
    pool = min((budget.pool for budget in start.distinct), key=lambda estimate: estimate.value)
    return replace(case, model=replace(case.model, receipt=receipt.compared_with(weights, pool)))


def needed_bytes(candidate: Prediction, goal: Goal, stage: int) -> float:
    """KV pool that the goal takes on a GPU of a pipeline stage."""
    if not candidate.kv.groups:
        return 0.0
    share = candidate.settings.decode_context_parallel_size
    blocks = max(count * candidate.kv.blocks_per_request(-(-context // share)) for count, context in goal.needs)
    return float(blocks * candidate.kv.block_bytes[stage])


def _with_utilization(case: Case, candidate: Prediction, goal: Goal) -> Prediction:
    default = candidate.settings.gpu_memory_utilization
    needed, most = 0.0, UTILIZATION_MOST
    for stage, budget in candidate.staged:
        taken = budget.requested - budget.pool.low
        needed = max(needed, (needed_bytes(candidate, goal, stage) + taken) / budget.gpu.total_bytes)
    for budget in candidate.distinct:
        size = float(budget.gpu.total_bytes)
        spare = min(budget.headroom.low - least_headroom(case, budget.gpu), budget.start_margin)
        most = min(most, (budget.requested + spare) / size)
    chosen = default
    if default > most:
        chosen = _step_down(most)
    elif needed > default:
        chosen = min(_step_up(needed), _step_down(most))
    if chosen == default or chosen <= 0:
        return candidate
    return candidate.at_utilization(chosen)


def _step_down(value: float) -> float:
    return round(math.floor(value / UTILIZATION_STEP + 1e-6) * UTILIZATION_STEP, 2)


def _step_up(value: float) -> float:
    return round(math.ceil(value / UTILIZATION_STEP - 1e-6) * UTILIZATION_STEP, 2)


def _with_pinned_pool(case: Case, candidate: Prediction, goal: Goal) -> Prediction:
    """On a shared card the pool is what the goal needs, in bytes: a share of the card would count the others' part."""
    needed = max(needed_bytes(candidate, goal, stage) for stage, _budget in candidate.staged)
    if not goal.stated:
        needed *= 8
    probe = predict(case, candidate.layout, replace(candidate.settings, kv_cache_memory_bytes=0))
    room = min(budget.headroom.low - least_headroom(case, budget.gpu) for budget in probe.distinct)
    pool = min(math.ceil(needed / POOL_STEP), math.floor(max(room, 0) / POOL_STEP)) * POOL_STEP
    pinned = predict(case, candidate.layout, replace(candidate.settings, kv_cache_memory_bytes=pool))
    return _with_start_check(case, pinned)


def _with_start_check(case: Case, candidate: Prediction) -> Prediction:
    """vLLM checks at start that the utilization's share of the card is free, even where the pool is given in bytes."""
    if "gpu_memory_utilization" in case.pins or all(budget.start_margin >= 0 for budget in candidate.distinct):
        return candidate
    most = min((budget.requested + budget.start_margin) / budget.gpu.total_bytes for budget in candidate.distinct)
    lowered = max(_step_down(most), UTILIZATION_STEP)
    return predict(case, candidate.layout, replace(candidate.settings, gpu_memory_utilization=lowered))


def _trim_sequences(case: Case, found: Prediction, goal: Goal) -> Prediction:
    """Where a typical length is promised: no more requests at once than the pool holds of them, or vLLM preempts."""
    typical = case.workload.typical_context
    if not typical or "max_num_seqs" in case.pins or not found.kv.groups:
        return found
    per_request = found.kv.blocks_per_request(min(typical, goal.context))
    most = max(goal.sequences_per_engine, found.blocks("low") // per_request)
    if most >= found.settings.max_num_seqs:
        return found
    tokens = found.settings.max_num_batched_tokens
    if "max_num_batched_tokens" not in case.pins:
        tokens = min(tokens, default_tokens(case, found.layout.gpus[0], goal, most))
    trimmed = predict(case, found.layout, replace(found.settings, max_num_seqs=most, max_num_batched_tokens=tokens))
    return trimmed if keeps(case, trimmed, goal) else found


def _reduce(case: Case, found: Prediction, goal: Goal) -> Choice:
    """Cut what the user prefers less, then the other, until the rest fits; nothing left to cut is no fit."""
    if not has_room(case, found):
        return Choice(found, goal, reduced=True, fits=False)
    orders = {"context": (_fewer_sequences, _shorter), "sequences": (_shorter, _fewer_sequences)}
    for cut in orders[case.workload.prefer]:
        smaller = cut(found, goal)
        if smaller is not None:
            return Choice(_with_length(case, found, smaller.context), smaller, reduced=True, fits=True)
    smaller = _shorter(found, replace(goal, sequences=goal.engines, typical_context=None))
    if smaller is not None:
        return Choice(_with_length(case, found, smaller.context), smaller, reduced=True, fits=True)
    return Choice(found, goal, reduced=True, fits=False)


def _with_length(case: Case, found: Prediction, context: int) -> Prediction:
    if context == found.settings.max_model_len:
        return found
    return predict(case, found.layout, replace(found.settings, max_model_len=context))


def _fewer_sequences(found: Prediction, goal: Goal) -> Goal | None:
    """As many requests of the full context as the pool surely holds."""
    if not found.holds(1, goal.context):
        return None
    length = min(goal.typical_context or goal.context, goal.context)
    count = found.blocks("low") // max(1, found.kv.blocks_per_request(length))
    return replace(goal, sequences=min(count * goal.engines, goal.sequences)) if count else None


def _shorter(found: Prediction, goal: Goal) -> Goal | None:
    """The longest context, in blocks of 16 tokens, that the promised number of requests can have."""
    if goal.context_is_fixed:
        return None
    context = longest_context(found, goal.sequences_per_engine, goal.context)
    typical = goal.typical_context
    if context < max(LEAST_USEFUL_CONTEXT, typical or 0):
        return None
    return replace(goal, context=context)


def longest_context(found: Prediction, sequences: int, most: int) -> int:
    """Tokens of the longest request of which the pool surely holds so many (by halving; 0 where there is none)."""
    low, high = 0, most // 16
    while low < high:
        middle = (low + high + 1) // 2
        if found.holds(sequences, middle * 16):
            low = middle
        else:
            high = middle - 1
    return low * 16

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the planner says about its choice: decisions, warnings, and what would make it fit. Private to gpufleet.vllm."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from . import overhead
from .budget import Prediction, least_capability
from .case import Case
from .estimate import GIB
from .hosts import Gpu, Host
from .parallelism import Layout, division_faults, divisors, link, nearest
from .reasons import why_divided, why_one_gpu
from .search import (
    LEAST_USEFUL_CONTEXT,
    Choice,
    base_settings,
    batch_limits,
    choose_settings,
    has_room,
    keeps_promise,
    lacks_room,
    longest_context,
    predict,
    with_memory,
)

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MEMORY_PINS = ("gpu_memory_utilization", "kv_cache_memory_bytes")
MOST_GPUS = 64
GPUS_OF_A_HOST = 8
"""The most that hosts are commonly built with; more GPUs than that are thought of as several hosts."""

Decision = dict[str, Any]


def decisions_of(case: Case, choice: Choice | None) -> list[Decision]:
    """In the order of the steps; each with its reason and its cost."""
    decisions = list(case.precision.decisions)
    if choice is not None:
        decisions += [*_parallel(case, choice), *_length(case, choice), *_room(case, choice), *_idle(case, choice)]
    return sorted(decisions, key=lambda decision: int(decision["step"]))


def _decision(step: int, decision: str, why: str, cost: str) -> Decision:
    return {"step": step, "decision": decision, "why": why, "cost": cost}


def _parallel(case: Case, choice: Choice) -> Iterator[Decision]:
    layout = choice.start.layout
    if not choice.fits:
        yield _decision(
            1,
            f"does not fit on {_count(layout.size, 'GPU')} (tensor parallel {layout.tensor_parallel_size}, "
            f"pipeline parallel {layout.pipeline_parallel_size})",
            _breakdown(case, choice),
            "nothing is started",
        )
        return
    if all(name in case.pins for name in ("tensor_parallel_size", "pipeline_parallel_size")):
        return
    if layout.size == 1:
        more = sum(len(host.gpus) for host in case.hosts) > 1
        yield _decision(
            1,
            f"one GPU: {layout.gpus[0].label}",
            why_one_gpu(case, choice),
            "the KV pool of the other GPUs is not used" if more else "none",
        )
        return
    costs = {
        "communication between the GPUs in every layer": layout.tensor_parallel_size > 1,
        "latency of the stages": layout.pipeline_parallel_size > 1,
        "each engine has a queue and a KV pool of its own": layout.data_parallel_size > 1,
    }
    yield _decision(
        1,
        f"{layout.size} GPUs: tensor parallel {layout.tensor_parallel_size}, "
        f"pipeline parallel {layout.pipeline_parallel_size}"
        + (f", data parallel {layout.data_parallel_size}" if layout.data_parallel_size > 1 else ""),
        why_divided(case, choice),
        "; ".join(cost for cost, paid in costs.items() if paid),
    )


def _length(case: Case, choice: Choice) -> Iterator[Decision]:
    goal, asked = choice.goal, case.goal
    costs = {"context": "longer requests are refused", "sequences": "further requests wait, or preempt each other"}
    names = {"context": "context", "sequences": "requests at once"}
    if not case.workload.stated and "max_model_len" not in case.pins:
        yield _decision(
            2,
            f"planned for one request of {goal.context:,} tokens",
            "no workload is stated; state workload.context and workload.sequences to plan for the real load",
            costs["context"],
        )
    for cut in case.cuts:
        decision = f"{names[cut.promise]} cut from {cut.asked:,} to {cut.kept:,}"
        yield _decision(2, decision, cut.why, costs[cut.promise])
    held = {"context": (asked.context, goal.context), "sequences": (asked.sequences, goal.sequences)}
    for promise, (before, after) in held.items():
        if choice.reduced and after < before:
            decision = f"{names[promise]} cut from {before:,} to {after:,}"
            yield _decision(2, decision, "the KV pool holds no more", costs[promise])


def _room(case: Case, choice: Choice) -> Iterator[Decision]:
    for budget in choice.start.budgets:
        if budget.gpu.shared:
            yield _decision(
                3,
                f"{budget.gpu.others_bytes / GIB:.2f} GiB of {budget.gpu.label} belong to others and are left alone",
                "what is free now is planned with",
                "a smaller KV pool than the whole card would give",
            )


def _idle(case: Case, choice: Choice) -> Iterator[Decision]:
    """Cards that the engine does not take: what they could do, as replicas or as a larger tensor parallel size."""
    layout = choice.start.layout
    if not choice.fits or layout.hosts > 1:
        return
    taken = {(gpu.host_index, gpu.uuid or gpu.index) for gpu in layout.gpus}
    for host in case.set_aside or case.hosts:
        idle = [gpu for gpu in host.gpus if (gpu.host_index, gpu.uuid or gpu.index) not in taken and not gpu.shared]
        if not idle:
            continue
        alike = tuple(gpu for gpu in idle if any(gpu in there.gpus for there in case.hosts))
        replicas = len(_replicas(case, choice, replace(host, gpus=alike)))
        yield _decision(
            1,
            f"{_count(len(idle), 'GPU')} of {host.name} idle",
            f"{_count(replicas, 'more replica')} of this engine would fit there"
            if replicas
            else "no replica of this engine would fit there",
            "none; replicas add throughput, a larger tensor parallel size adds communication",
        )
        if len(idle) >= layout.size and idle[0].host_index == layout.gpus[0].host_index:
            yield from _larger_division(case, choice, host, tuple(idle[: layout.size]))


def _replicas(case: Case, choice: Choice, idle: Host) -> list[tuple[Gpu, ...]]:
    """The groups of idle cards that would keep what this engine keeps."""
    layout, groups = choice.start.layout, []
    while len(idle.gpus) >= layout.size:
        gpus = nearest(idle, layout.size)
        if not _as_roomy(layout.gpus, gpus):
            there = choose_settings(case, replace(layout, gpus=gpus))
            if (
                not there.fits
                or there.goal.sequences < choice.goal.sequences
                or there.goal.context < choice.goal.context
            ):
                break
        groups.append(gpus)
        idle = replace(idle, gpus=tuple(gpu for gpu in idle.gpus if gpu not in gpus))
    return groups


def _as_roomy(chosen: Sequence[Gpu], others: Sequence[Gpu]) -> bool:
    """Whether others are cards of the same kind with as much free memory, so that nothing need be computed."""
    kinds = {(gpu.name, gpu.total_bytes) for gpu in (*chosen, *others)}
    return len(kinds) == 1 and min(gpu.free_bytes for gpu in others) >= min(gpu.free_bytes for gpu in chosen)


def _larger_division(case: Case, choice: Choice, host: Host, idle: tuple[Gpu, ...]) -> Iterator[Decision]:
    """One engine over twice the cards against two engines: KV gained, communication paid; to be measured by tuning."""
    layout, start = choice.start.layout, choice.start
    size = 2 * layout.tensor_parallel_size
    pinned = any(name in case.pins for name in ("tensor_parallel_size", "kv_cache_memory_bytes", "data_parallel_size"))
    apart = layout.pipeline_parallel_size > 1 or any(gpu.divided for gpu in idle)
    if pinned or apart or start.settings.kv_cache_memory_bytes or not start.tokens("value"):
        return
    if len({(gpu.name, gpu.total_bytes) for gpu in (*layout.gpus, *idle)}) > 1:
        return
    if division_faults(case.shape, size):
        return
    larger = predict(case, Layout(size, 1, layout.gpus + idle), start.settings)
    now, then = start.tokens("value"), larger.tokens("value")
    links = sorted(
        {
            link(host, left.index, right.index) or "an unknown link"
            for left, right in itertools.combinations(larger.layout.gpus, 2)
        }
    )
    share = case.shape.hidden_size * overhead.DTYPE_BYTES.get(start.settings.dtype, 2) / 1024
    yield _decision(
        1,
        f"not divided over {size} GPUs, where one engine would hold {then:,} tokens of KV cache",
        f"KV gained: {then - now:+,} tokens, and {then - 2 * now:+,} against two engines of {now:,}; communication "
        f"paid: each token passes 2 all-reduces of {share:g} KiB in each of {case.shape.num_layers} layers, over "
        f"{', '.join(links)}",
        f"what it does to latency is to be measured by tuning: pin tensor_parallel_size {size} and compare",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def warnings_of(case: Case, choice: Choice | None) -> list[str]:
    """What the user must know beside the verdict."""
    checkpoint = case.model.checkpoint
    warnings = [str(warning) for warning in checkpoint.get("warnings") or ()]
    warnings += [f"{finding.get('title')}: {finding.get('next')}" for finding in checkpoint.get("findings") or ()]
    warnings += [*case.precision.warnings, *case.warnings]
    if case.model.unverified:
        warnings.append(f"unverified: {case.model.unverified} is not understood; the low end is planned with")
    if checkpoint.get("requires_trust_remote_code") and not case.trusts_remote_code:
        warnings.append(
            "the checkpoint brings Python code; if vLLM asks for it, read the code and set trust_remote_code: true"
        )
    if choice is not None:
        warnings += _choice_warnings(case, choice)
    return list(dict.fromkeys(warnings))


def _choice_warnings(case: Case, choice: Choice) -> Iterator[str]:
    pinned, most = case.pins.integer("max_model_len"), case.shape.max_model_len
    if pinned and most and pinned > most:
        yield f"max_model_len {pinned:,} is more than the model's {most:,}: check the answers to long requests"
    for budget in choice.start.budgets:
        if "gpu_memory_utilization" in case.pins and budget.headroom.low < case.headroom(budget.gpu.total_bytes):
            yield (
                f"{budget.gpu.label}: the pinned gpu_memory_utilization leaves "
                f"{max(budget.headroom.low, 0) / GIB:.2f} GiB; below "
                f"{case.headroom(budget.gpu.total_bytes) / GIB:.2f} GiB vLLM may run out of memory later"
            )


def needs_of(case: Case, choice: Choice | None) -> list[str]:
    """What would make it fit, each way by itself; computed, not guessed."""
    if choice is None:
        return [_no_layout(case)]
    remedies = [cut.remedy for cut in case.cuts]
    if choice.fits and not choice.reduced:
        return remedies
    needs = [*_smaller_share(case, choice), *_more_gpus(case, choice), *_less_context(case, choice)]
    needs += [*_fewer_bits(case, choice), *remedies]
    return needs or [_breakdown(case, choice)]


def _no_layout(case: Case) -> str:
    pinned = {name: case.pins.integer(name) for name in SIZES}
    wanted = math.prod(size or 1 for size in pinned.values())
    have = ", ".join(f"{host.name}: {len(host.gpus)}" for host in case.hosts)
    sizes = " x ".join(f"{name} {size or 1}" for name, size in pinned.items() if size or name != "data_parallel_size")
    most = max(len(host.gpus) for host in case.hosts)
    right = ", ".join(
        str(size) for size in divisors(case.shape, most, bool(case.pins.flag("enable_expert_parallel")), case.engines)
    )
    return f"{_count(wanted, 'GPU')} ({sizes}); usable are {have}; tensor_parallel_size could be {right}"


def _smaller_share(case: Case, choice: Choice) -> Iterator[str]:
    """The share of the card that is free, where more of it was pinned: vLLM refuses to start then."""
    if "gpu_memory_utilization" not in case.pins:
        return
    for budget in choice.start.distinct:
        over = -min(budget.start_margin, budget.headroom.value)
        share = math.floor((budget.requested - over) / budget.gpu.total_bytes * 100) / 100
        if over > 0 and share > 0:
            yield (
                f"gpu_memory_utilization of at most {share:g}, or no pin: of {budget.gpu.total_bytes / GIB:.1f} GiB of "
                f"{budget.gpu.label} {budget.gpu.free_bytes / GIB:.1f} are free, and CUDA takes its part"
            )
            return


def _more_gpus(case: Case, choice: Choice) -> Iterator[str]:
    """The fewest cards of the best kind here that keep every promise: on one host, then in stages (by halving)."""
    largest = max((gpu for host in case.hosts for gpu in host.gpus), key=lambda gpu: gpu.free_bytes)
    per_host = max(GPUS_OF_A_HOST, *(len(host.gpus) for host in case.hosts)) // case.engines_here
    expert_parallel = bool(case.pins.flag("enable_expert_parallel"))
    powers = [2**power for power in range(per_host.bit_length()) if 2**power <= per_host]
    tensors = [size for size in powers if not division_faults(case.shape, size, expert_parallel, case.engines)] or [1]

    def keeps_all(tensor: int, stages: int) -> bool:
        size = tensor * stages * case.engines_here
        # The cards of a stage stand on one host; which is which does not matter for the memory.
        gpus = tuple(gpu for stage in range(size // tensor) for gpu in (_copy(largest, stage),) * tensor)
        imagined = Layout(tensor, stages, gpus, case.engines_here)
        more = size > choice.start.layout.size
        return more and not lacks_room(case, imagined) and keeps_promise(case, imagined)

    found = next(((tensor, 1) for tensor in tensors if keeps_all(tensor, 1)), None)
    if found is None:
        counts = range(2, min(MOST_GPUS // tensors[-1], case.shape.num_layers or 1) + 1)
        first = bisect.bisect_left(counts, True, key=lambda stages: keeps_all(tensors[-1], stages))
        found = (tensors[-1], counts[first]) if first < len(counts) else None
    if found:
        pinned = any(name in case.pins for name in ("tensor_parallel_size", "pipeline_parallel_size"))
        yield _imagined_gpus(case, largest.name, *found, per_host) + (" in place of the pinned sizes" if pinned else "")
    elif not choice.fits and not any(name in case.pins for name in MEMORY_PINS):
        yield f"cards with more memory: {MOST_GPUS} like {largest.name} do not keep the promise"


def _imagined_gpus(case: Case, name: str, tensor: int, stages: int, per_host: int) -> str:
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    said = ", ".join(f"{size} {number}" for size, number in sizes.items() if number > 1)
    gpus = _count(tensor * stages * case.engines_here, "GPU")
    if tensor * stages <= per_host:
        return f"{gpus} like {name} on one host ({said})"
    if tensor == 1:
        return f"{gpus} like {name} over {-(-stages // per_host)} hosts ({said})"
    return f"{stages} hosts with {_count(tensor * case.engines_here, 'GPU')} like {name} each ({said})"


def _copy(gpu: Gpu, host: int) -> Gpu:
    return replace(gpu, host_index=host, uuid=f"imagined-{host}")


def _less_context(case: Case, choice: Choice) -> Iterator[str]:
    found = choice.start
    longest = longest_context(found, 1, case.shape.max_model_len or choice.goal.context)
    if longest and longest < choice.goal.context:
        yield f"a context of at most {longest:,} tokens for one request (max_model_len, now {choice.goal.context:,})"
    elif case.goal.sequences > 1 and longest:
        several = longest_context(found, case.goal.sequences_per_engine, case.goal.context)
        if 0 < several < case.goal.context:
            yield f"a context of {several:,} tokens for {case.goal.sequences} requests at once"


def _fewer_bits(case: Case, choice: Choice) -> Iterator[str]:
    """What a smaller checkpoint or KV cache would do on the same GPUs: 8 bits, 4 where those are too many."""
    unquantised = not case.precision.quantization and case.shape.quantization is None
    for article, bits, method in (("an", 8, "fp8"), ("a", 4, "bitsandbytes")) if unquantised else ():
        found, longest = _imagined_precision(case, choice, quantization=method)
        if longest < LEAST_USEFUL_CONTEXT:
            continue
        was, now = (sum(item.weights.value for item in start.budgets) for start in (choice.start, found))
        limit = "" if longest >= case.goal.context // 16 * 16 else f" and a context of {longest:,} tokens"
        yield f"{article} {bits}-bit checkpoint ({now / GIB:.1f} GiB of weights in place of {was / GIB:.1f}){limit}"
        if not limit:
            break
    capability = least_capability(choice.start.layout.gpus)
    if "kv_cache_dtype" in case.pins or case.precision.kv_cache_dtype != "auto" or not choice.start.kv.groups:
        return
    if capability and float(capability) >= FP8_CAPABILITY:
        _found, longest = _imagined_precision(case, choice, kv_cache_dtype="fp8")
        if longest >= case.goal.context // 16 * 16:
            yield "kv_cache_dtype: fp8 (half the KV cache; compare answers before you rely on it)"


FP8_CAPABILITY = 8.9
"""Least compute capability that computes in FP8."""


def _imagined_precision(case: Case, choice: Choice, **precision: str) -> tuple[Prediction, int]:
    """The same GPUs with another precision, and the context that the promised requests could have there."""
    goal, layout = case.goal, choice.start.layout
    sequences, tokens = list(batch_limits(case, layout, goal))[-1]
    settings = replace(base_settings(case, goal, sequences, tokens), **precision)  # type: ignore[arg-type]
    found = with_memory(case, layout, settings, goal)
    return found, longest_context(found, goal.sequences_per_engine, goal.context) if has_room(case, found) else 0


def _breakdown(case: Case, choice: Choice) -> str:
    budget = min(choice.start.budgets, key=lambda item: item.pool.low)
    overhead = budget.engine.value - budget.weights.value
    return (
        f"{budget.gpu.label} has {budget.gpu.free_bytes / GIB:.1f} GiB free; weights take "
        f"{budget.weights.value / GIB:.1f}, activation, non-torch and graphs {overhead / GIB:.1f} GiB"
    )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the planner says about its choice: decisions, warnings, and what would make it fit. Private to gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .case import Case
from .estimate import GIB
from .hosts import Gpu
from .parallelism import Layout, division_faults
from .search import (
    LEAST_USEFUL_CONTEXT,
    Choice,
    base_settings,
    batch_limits,
    choose_settings,
    has_room,
    longest_context,
    predict,
    with_memory,
)

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
    if "tensor_parallel_size" in case.pins or "pipeline_parallel_size" in case.pins:
        return
    if layout.size == 1:
        yield _decision(
            1,
            f"one GPU: {layout.gpus[0].label}",
            "the promise fits there; more GPUs are capacity, not speed",
            "the KV pool of the other GPUs is not used",
        )
        return
    yield _decision(
        1,
        f"{layout.size} GPUs: tensor parallel {layout.tensor_parallel_size}, "
        f"pipeline parallel {layout.pipeline_parallel_size}",
        "the fewest GPUs that keep the promise" if not choice.reduced else "all that there is, and not enough",
        "communication between the GPUs in every layer" if layout.tensor_parallel_size > 1 else "latency of the stages",
    )


def _length(case: Case, choice: Choice) -> Iterator[Decision]:
    goal, asked = choice.goal, case.goal
    if not case.workload.stated and "max_model_len" not in case.pins:
        yield _decision(
            2,
            f"planned for one request of {goal.context:,} tokens",
            "no workload is stated; state workload.context and workload.sequences to plan for the real load",
            "longer requests are refused",
        )
    if choice.reduced and goal.context < asked.context:
        yield _decision(
            2,
            f"context cut from {asked.context:,} to {goal.context:,} tokens",
            "the KV pool holds no more",
            "longer requests are refused",
        )
    if choice.reduced and goal.sequences < asked.sequences:
        yield _decision(
            2,
            f"requests at once cut from {asked.sequences} to {goal.sequences}",
            "the KV pool holds no more",
            "further requests wait, or preempt each other",
        )


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
    taken = {(gpu.host_index, gpu.uuid or gpu.index) for gpu in layout.gpus}
    for host in case.hosts:
        idle = [gpu for gpu in host.gpus if (gpu.host_index, gpu.uuid or gpu.index) not in taken and not gpu.shared]
        if not idle or layout.hosts > 1:
            continue
        replicas = len(idle) // layout.size
        yield _decision(
            1,
            f"{_count(len(idle), 'GPU')} of {host.name} idle",
            f"{_count(replicas, 'more replica')} of this engine would fit there"
            if replicas
            else "too few for another replica",
            "none; replicas add throughput, a larger tensor parallel size adds communication",
        )
        if len(idle) >= layout.size and idle[0].host_index == layout.gpus[0].host_index:
            yield from _larger_division(case, choice, tuple(idle[: layout.size]))


def _larger_division(case: Case, choice: Choice, idle: tuple[Gpu, ...]) -> Iterator[Decision]:
    """One engine over twice the cards against two engines: KV gained, communication paid; to be measured by tuning."""
    layout, start = choice.start.layout, choice.start
    size = 2 * layout.tensor_parallel_size
    pinned = "tensor_parallel_size" in case.pins or "kv_cache_memory_bytes" in case.pins
    apart = layout.pipeline_parallel_size > 1 or any(gpu.divided for gpu in idle)
    if pinned or apart or division_faults(case.shape, size):
        return
    larger = predict(case, Layout(size, 1, layout.gpus + idle), start.settings)
    if start.tokens("value") and larger.tokens("value") > 2 * start.tokens("value"):
        yield _decision(
            1,
            f"not divided over {size} GPUs, though their KV pool would hold {larger.tokens('value'):,} tokens",
            f"two engines hold {2 * start.tokens('value'):,} and never wait for each other; "
            "pin tensor_parallel_size and measure, if one long queue matters more",
            "the weights are stored twice",
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
        warnings.append(
            f"unverified: the memory of {case.shape.model_type} is not understood; the low end is planned with"
        )
    if checkpoint.get("requires_trust_remote_code") and not case.instance.get("trust_remote_code"):
        warnings.append(
            "the checkpoint brings Python code; if vLLM asks for it, read the code and set trust_remote_code: true"
        )
    if choice is not None:
        warnings += _choice_warnings(case, choice)
    return list(dict.fromkeys(warnings))


def _choice_warnings(case: Case, choice: Choice) -> Iterator[str]:
    asked, most = case.workload.context, case.shape.max_model_len
    if asked and most and asked > most and "max_model_len" not in case.pins:
        yield f"workload.context {asked:,} is more than the model's {most:,}; {most:,} are planned"
    pinned = case.pins.integer("max_model_len")
    if pinned and asked and asked > pinned:
        yield f"workload.context {asked:,} is more than the pinned max_model_len {pinned:,}: longer ones are refused"
    if pinned and most and pinned > most:
        yield (
            f"max_model_len {pinned:,} is more than the model's {most:,}: vLLM refuses it unless rope scaling is set"
        )
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
    needs = [*_more_gpus(case, choice), *_less_context(case, choice), *_fewer_bits(case, choice)]
    return needs or [_breakdown(case, choice)]


def _no_layout(case: Case) -> str:
    tensor, pipeline = case.pins.integer("tensor_parallel_size"), case.pins.integer("pipeline_parallel_size")
    wanted = (tensor or 1) * (pipeline or 1)
    have = ", ".join(f"{host.name}: {len(host.gpus)}" for host in case.hosts)
    sizes = f"tensor_parallel_size {tensor or 1} x pipeline_parallel_size {pipeline or 1}"
    return f"{wanted} GPUs ({sizes}); usable are {have}"


def _more_gpus(case: Case, choice: Choice) -> Iterator[str]:
    """The fewest cards of the best kind here that keep every promise: on one host, then as stages over several."""
    largest = max((gpu for host in case.hosts for gpu in host.gpus), key=lambda gpu: gpu.free_bytes)
    per_host = max(GPUS_OF_A_HOST, *(len(host.gpus) for host in case.hosts))
    expert_parallel = bool(case.pins.flag("enable_expert_parallel"))
    pinned = any(name in case.pins for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    for tensor, stages in _sizes_to_imagine(case, per_host, expert_parallel):
        if tensor * stages <= choice.start.layout.size:
            continue
        imagined = tuple(_copy(largest, rank % tensor, rank // tensor) for rank in range(tensor * stages))
        if choose_settings(case, Layout(tensor, stages, imagined)).reduced is False:
            yield _imagined_gpus(largest.name, tensor, stages) + (" in place of the pinned sizes" if pinned else "")
            return


def _sizes_to_imagine(case: Case, per_host: int, expert_parallel: bool) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline): powers of two within a host, then the largest of them on each of several hosts."""
    powers = [2**power for power in range(1, per_host.bit_length()) if 2**power <= per_host]
    tensors = [size for size in powers if not division_faults(case.shape, size, expert_parallel)]
    yield from ((size, 1) for size in tensors)
    most = max(tensors, default=1)
    yield from ((most, hosts) for hosts in range(2, min(MOST_GPUS // most, case.shape.num_layers or 1) + 1))


def _imagined_gpus(name: str, tensor: int, stages: int) -> str:
    if stages == 1:
        return f"{tensor} GPUs like {name} on one host (tensor_parallel_size {tensor})"
    each = _count(tensor, "GPU")
    return (
        f"{stages} hosts with {each} like {name} each (tensor_parallel_size {tensor}, pipeline_parallel_size {stages})"
    )


def _copy(gpu: Gpu, index: int, host: int) -> Gpu:
    return replace(gpu, index=index, host_index=host, uuid=f"imagined-{host}-{index}")


def _less_context(case: Case, choice: Choice) -> Iterator[str]:
    found = choice.start
    longest = longest_context(found, 1, case.shape.max_model_len or choice.goal.context)
    if longest and longest < choice.goal.context:
        yield f"a context of at most {longest:,} tokens for one request (max_model_len, now {choice.goal.context:,})"
    elif case.goal.sequences > 1 and longest:
        several = longest_context(found, case.goal.sequences, case.goal.context)
        if 0 < several < case.goal.context:
            yield f"a context of {several:,} tokens for {case.goal.sequences} requests at once"


def _fewer_bits(case: Case, choice: Choice) -> Iterator[str]:
    """What an 8-bit checkpoint would do on the same GPUs, where this one has 16 bits."""
    if case.precision.quantization or case.shape.quantization is not None:
        return
    goal, layout = case.goal, choice.start.layout
    sequences, tokens = list(batch_limits(case, layout, goal))[-1]
    settings = replace(base_settings(case, layout, goal, sequences, tokens), quantization="fp8")
    found = with_memory(case, layout, settings, goal)
    longest = longest_context(found, goal.sequences, goal.context)
    if not has_room(case, found) or longest < LEAST_USEFUL_CONTEXT:
        return
    was, now = (sum(item.weights.value for item in start.budgets) for start in (choice.start, found))
    limit = f" and a context of {longest:,} tokens" if longest < goal.context // 16 * 16 else ""
    yield f"an 8-bit checkpoint ({now / GIB:.1f} GiB of weights in place of {was / GIB:.1f}){limit}"


def _breakdown(case: Case, choice: Choice) -> str:
    budget = min(choice.start.budgets, key=lambda item: item.pool.low)
    overhead = budget.engine.value - budget.weights.value
    return (
        f"{budget.gpu.label} has {budget.gpu.free_bytes / GIB:.1f} GiB free; weights take "
        f"{budget.weights.value / GIB:.1f}, activation, non-torch and graphs {overhead / GIB:.1f} GiB"
    )

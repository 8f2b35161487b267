# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch arguments of a choice, each with why, step and cost. Private to the collection gpufleet.vllm.

Only what is pinned, or differs from what the release does by itself, becomes an argument: the command stays short.
A promised length is always one, even where the model takes no more.
The steps are those of the design: 1 fit the model, 2 length to the load, 3 leave room, 4 batch last; 0 is given.
"""

from __future__ import annotations

from typing import Any

from .case import POOLING_TASKS, Case
from .estimate import GIB
from .reasons import why_pipeline_parallel, why_tensor_parallel
from .search import Choice, default_sequences, default_tokens

STEPS = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "dtype": 1,
    "quantization": 1,
    "kv_cache_dtype": 1,
    "enable_expert_parallel": 1,
    "cpu_offload_gb": 1,
    "max_model_len": 2,
    "gpu_memory_utilization": 3,
    "kv_cache_memory_bytes": 3,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 4,
}

PIN_COSTS = {
    "tensor_parallel_size": "every layer waits for all its GPUs",
    "pipeline_parallel_size": "each token passes the stages one after the other",
    "gpu_memory_utilization": "what it takes is gone for everybody else on the card",
    "kv_cache_memory_bytes": "vLLM skips its memory profile: the plan's figures stand in for it",
    "enforce_eager": "no CUDA graphs: slower decoding",
    "kv_cache_dtype": "a smaller type saves memory and may cost accuracy",
    "cpu_offload_gb": "offloaded weights cross PCIe in every step",
    "max_model_len": "longer requests are refused",
    "max_num_seqs": "more requests than that wait",
    "max_num_batched_tokens": "a smaller batch makes long prompts slower, a larger one takes activation memory",
}

Argument = dict[str, Any]


def arguments_of(case: Case, choice: Choice) -> list[Argument]:
    """All arguments in the order of the steps, the given ones last."""
    planned = [*_parallel(case, choice), *_precision(case), *_length(case, choice), *_memory(case, choice)]
    planned += [*_batch(case, choice), *_task(case)]
    names = {argument["name"] for argument in planned}
    given = [_pinned(name, value) for name, value in case.pins.values.items() if name not in names]
    given += [argument for argument in _given(case) if argument["name"] not in case.pins]
    return sorted(planned + given, key=lambda argument: (argument["step"] or 9, argument["name"]))


def _argument(name: str, value: Any, why: str, cost: str) -> Argument:
    return {"name": name, "value": value, "why": why, "step": STEPS.get(name, 0), "cost": cost}


def _pinned(name: str, value: Any) -> Argument:
    return _argument(name, value, "pinned in engine_args", PIN_COSTS.get(name, "none that the plan knows of"))


def _parallel(case: Case, choice: Choice) -> list[Argument]:
    layout = choice.start.layout
    reasons = {
        "tensor_parallel_size": (layout.tensor_parallel_size, why_tensor_parallel(case, choice)),
        "pipeline_parallel_size": (layout.pipeline_parallel_size, why_pipeline_parallel(case, choice)),
    }
    return [_argument(name, size, why, PIN_COSTS[name]) for name, (size, why) in reasons.items() if why]


def _precision(case: Case) -> list[Argument]:
    dtype = case.precision.dtype_argument
    if dtype is None:
        return []
    return [_argument("dtype", dtype, "the card has no bfloat16", "a smaller range of numbers than bfloat16")]


def _length(case: Case, choice: Choice) -> list[Argument]:
    context = choice.goal.context
    most = case.shape.max_model_len
    if "max_model_len" in case.pins or (context == most and not case.workload.context):
        return []
    if context < case.goal.context:
        why = f"cut from the promised {case.goal.context:,} tokens to what the KV pool holds"
    elif case.workload.context:
        less = f", not the model's {most:,}" if most and most != context else ""
        why = "the workload's context" + less
    else:
        why = "no workload is stated" + (f"; the model could take {most:,}" if most else "")
    return [_argument("max_model_len", context, why, PIN_COSTS["max_model_len"])]


def _memory(case: Case, choice: Choice) -> list[Argument]:
    settings = choice.start.settings
    default = float(case.release.default("gpu_memory_utilization"))
    arguments = []
    if settings.kv_cache_memory_bytes is not None and "kv_cache_memory_bytes" not in case.pins:
        why = (
            f"the card is shared: {settings.kv_cache_memory_bytes / GIB:.2f} GiB hold the promise, "
            "a share of the whole card would count what others use"
        )
        cost = PIN_COSTS["kv_cache_memory_bytes"]
        arguments.append(_argument("kv_cache_memory_bytes", settings.kv_cache_memory_bytes, why, cost))
    if settings.gpu_memory_utilization != default and "gpu_memory_utilization" not in case.pins:
        arguments.append(
            _argument(
                "gpu_memory_utilization",
                settings.gpu_memory_utilization,
                _utilization_reason(case, choice, default),
                PIN_COSTS["gpu_memory_utilization"],
            )
        )
    return arguments


def _utilization_reason(case: Case, choice: Choice, default: float) -> str:
    settings = choice.start.settings
    if settings.kv_cache_memory_bytes is not None:
        return "vLLM refuses to start unless this share of the card is free; the pool is given in bytes"
    if settings.gpu_memory_utilization > default:
        return f"the promise needs more than the default {default} of the card, and the card has it free"
    least = min(choice.start.budgets, key=lambda budget: budget.gpu.free_bytes)
    return (
        f"the default {default} would leave less than {case.headroom(least.gpu.total_bytes) / GIB:.2f} GiB free on "
        f"{least.gpu.label} ({least.gpu.free_bytes / GIB:.2f} GiB are free now)"
    )


def _batch(case: Case, choice: Choice) -> list[Argument]:
    settings, gpu = choice.start.settings, choice.start.layout.gpus[0]
    sequences = default_sequences(case, gpu)
    tokens = default_tokens(case, gpu, choice.goal, settings.max_num_seqs)
    arguments = []
    if settings.max_num_seqs != sequences and "max_num_seqs" not in case.pins:
        why = f"the default {sequences} takes memory for its sampler that the KV pool needs"
        if settings.max_num_seqs > sequences:
            why = f"the workload promises so many requests at once; with the default {sequences} the others would wait"
        elif choice.trimmed:
            why = (
                f"of {case.workload.typical_context:,} tokens the KV pool holds no more; vLLM would preempt the others"
            )
        arguments.append(_argument("max_num_seqs", settings.max_num_seqs, why, PIN_COSTS["max_num_seqs"]))
    if settings.max_num_batched_tokens != tokens and "max_num_batched_tokens" not in case.pins:
        why = f"the default {tokens:,} takes activation memory that the KV pool needs"
        cost = PIN_COSTS["max_num_batched_tokens"]
        arguments.append(_argument("max_num_batched_tokens", settings.max_num_batched_tokens, why, cost))
    return arguments


def _task(case: Case) -> list[Argument]:
    """A pooling task in the words of the release: --task up to 0.12, then --runner and --convert."""
    task = str(case.instance.get("task") or "")
    if task not in POOLING_TASKS or any(name in case.pins for name in ("task", "runner", "convert")):
        return []
    why, cost = f"the instance's task is {task}", "the engine answers no completions"
    old = case.release.argument("task")
    if old is not None and not (case.release.argument("runner") and case.release.argument("convert")):
        return [_argument("task", "embed" if task == "embedding" else "score" if task == "rerank" else task, why, cost)]
    arguments = [_argument("runner", "pooling", why, cost)]
    if case.release.architecture_task(case.shape.architecture) == "generate":
        convert = "classify" if task in ("classify", "score", "rerank") else "reward" if task == "reward" else "embed"
        choices = getattr(case.release.argument("convert"), "choices", ()) or ()
        if not choices or convert in choices:
            arguments.append(_argument("convert", convert, f"the architecture generates; converted for {task}", cost))
    return arguments


def _given(case: Case) -> list[Argument]:
    if not case.trusts_remote_code:
        return []
    return [
        _argument(
            "trust_remote_code",
            True,
            "the instance says trust_remote_code: true",
            "Python files of the checkpoint run inside the container",
        )
    ]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a tuning begins with: values, limits and the load. Private to the collection.

A case is written into the first row of the ledger, so that a tuning which was interrupted goes on with the same one,
whatever runs on the host by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._catalogue import release
from .._diagnosis.change import current_value

# In the order in which they are moved: first what memory must hold, then what is done with it.
PARAMETERS = (
    "max_model_len",
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "kv_cache_dtype",
    "tensor_parallel_size",
)
OBJECTIVES = ("output_throughput", "total_token_throughput", "request_throughput")
TASKS = ("generate", "embed")
# What an engine that embeds has nothing of: it answers at once, and keeps no keys and values for later.
_NOT_FOR_EMBEDDING = ("enable_prefix_caching", "kv_cache_dtype")
STARTS = ("small", "running")
LOAD = ("input_tokens", "output_tokens", "prefix_tokens", "concurrency", "prompts", "repeats")
# What the benchmark of vLLM is asked for.
BOUNDS = tuple(
    f"{statistic}_{latency}_ms"
    for latency in ("ttft", "tpot", "itl", "e2el")
    for statistic in ("mean", "median", "p90", "p95", "p99")
)
MEMORY_PARAMETERS = ("kv_cache_memory_bytes", "gpu_memory_utilization")
# Held, so that the plan of a start does not move it with another one.
_VALUES = (*PARAMETERS, "kv_cache_memory_bytes", "pipeline_parallel_size")

# Engines compute FP8 from this compute capability on; below it an FP8 cache depends on the attention backend.
_FP8_COMPUTE_CAPABILITY = (8, 9)
_SMALL_LENGTH = 2048
_SMALL_SEQUENCES = 8
_LOWER_UTILIZATION = 0.1
_SMALLER_SHARE_OF_BYTES = 0.5
_MIB = 1 << 20

_LOAD_LENGTH = 1024
_LOAD_SEQUENCES = 32
# A random prompt may become longer by some tokens when its text is tokenized again.
_FILLED_SHARE = 0.9
_PROMPT_SHARE = 0.75
_ROUNDS, _LEAST_PROMPTS, _MOST_PROMPTS = 4, 16, 512


class TuningError(ValueError):
    """Something that nobody can tune."""


@dataclass(frozen=True)
class Case:
    """values: what each parameter is now. memory: the parameter that bounds the memory, "least" to "most". target: the
    longest request to allow, in tokens. load: what the benchmark sends. cards: GPUs that the instance may use."""

    values: Mapping[str, Any]
    memory: str
    least_memory: float
    most_memory: float
    target: int
    promised: int
    load: Mapping[str, int]
    maximize: str
    bounds: Mapping[str, float]
    parameters: Sequence[str]
    start: str
    cards: int
    heads: int | None
    fp8_cards: bool
    known: Sequence[str]
    task: str = "generate"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def load_length(self) -> int:
        return self.load["prefix_tokens"] + self.load["input_tokens"] + self.load["output_tokens"]

    @property
    def small(self) -> dict[str, Any]:
        """Short requests, few at once, little memory."""
        longest = int(self.values["max_model_len"] or self.target)
        length = min(self.target, max(_SMALL_LENGTH, _blocks(self.load_length / _FILLED_SHARE)))
        small = {"max_model_len": min(longest, length), self.memory: self.least_memory}
        sequences = self.values.get("max_num_seqs") or self.load["concurrency"]
        small["max_num_seqs"] = min(int(sequences), _SMALL_SEQUENCES, self.load["concurrency"])
        moved = [self.memory if name == "gpu_memory_utilization" else name for name in self.parameters]
        return {**self.values, **{name: value for name, value in small.items() if name in moved}}


def read_case(problem: Mapping[str, Any]) -> Case:
    """Reads the case of a tuning that begins.

    problem: "instance" as in vllm_instances, "plan" (of the instance as it is), "hosts" (what gpu_info returned),
    "checkpoint" (its description), "maximize", "bounds", "load", "parameters", "start", "max_model_len".
    Raises TuningError.
    """
    instance, plan = problem["instance"], problem["plan"]
    _check(problem)
    found = release(str(plan["release"]["version"]))
    context = {"instance": instance, "plan": plan, "hosts": problem["hosts"]}
    known = [name for name in _VALUES if found.argument(name) is not None]
    values = {name: current_value(f"engine_args.{name}", context) for name in known}
    values["max_model_len"] = values.get("max_model_len") or (plan.get("kv") or {}).get("max_model_len")
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        values[name] = (plan.get("parallel") or {}).get(name) or values.get(name)
    task = _task(plan)
    memory = next(name for name in MEMORY_PARAMETERS if values.get(name))
    workload = instance.get("workload") or {}
    return Case(
        values={name: value for name, value in values.items() if value is not None},
        memory=memory,
        **_memory_range(memory, values[memory]),
        target=_target(problem, workload, values["max_model_len"]),
        promised=int(workload.get("context") or 0),
        load=_load(problem.get("load") or {}, workload, task),
        maximize=_objective(problem, task),
        bounds={str(name): float(value) for name, value in (problem.get("bounds") or {}).items()},
        parameters=[name for name in _parameters_for(task) if name in (problem.get("parameters") or PARAMETERS)],
        start=str(problem.get("start") or "small"),
        cards=_cards(instance, problem["hosts"]),
        heads=(problem.get("checkpoint") or {}).get("num_attention_heads"),
        fp8_cards=_have_fp8(problem["hosts"]),
        known=known,
        task=task,
    )


def _check(problem: Mapping[str, Any]) -> None:
    plan = problem["plan"]
    if plan["verdict"] not in ("fits", "fits_reduced", "unverified"):
        raise TuningError(f"{plan['name']} does not fit as it is in the inventory. Next: plan_vllm says what would fit")
    if plan.get("launch"):
        raise TuningError(f"{plan['name']} spans several hosts; only engines on one host can be tuned")
    task = _task(plan)
    if task not in TASKS:
        raise TuningError(f"{plan['name']} is for {task}; only engines for {' or '.join(TASKS)} can be tuned")
    _known("vllm_tune_parameters", problem.get("parameters") or (), PARAMETERS)
    _known("vllm_tune_maximize", [problem.get("maximize") or OBJECTIVES[0]], OBJECTIVES)
    _known("vllm_tune_start", [problem.get("start") or STARTS[0]], STARTS)
    bounds = BOUNDS if task == "generate" else [name for name in BOUNDS if "_e2el_" in name]
    _known("vllm_tune_bounds", problem.get("bounds") or (), bounds)
    _known("vllm_tune_load", problem.get("load") or (), LOAD)


def _task(plan: Mapping[str, Any]) -> str:
    task = str(plan.get("task") or "generate")
    return "embed" if task == "embedding" else task


def _parameters_for(task: str) -> list[str]:
    return [name for name in PARAMETERS if task == "generate" or name not in _NOT_FOR_EMBEDDING]


def _objective(problem: Mapping[str, Any], task: str) -> str:
    """An engine that embeds puts out no tokens: those that it takes in are counted."""
    asked = str(problem.get("maximize") or OBJECTIVES[0])
    return "total_token_throughput" if task == "embed" and asked == "output_throughput" else asked


def _known(variable: str, given: Iterable[Any], known: Sequence[str]) -> None:
    unknown = sorted(set(map(str, given)) - set(known))
    if unknown:
        raise TuningError(f"{variable}: {', '.join(unknown)} is unknown; known are {', '.join(known)}")


def _memory_range(memory: str, value: Any) -> dict[str, float]:
    """What the plan takes is the most: it knows the card and who else uses it."""
    if memory == "gpu_memory_utilization":
        return {"least_memory": round(max(0.1, float(value) - _LOWER_UTILIZATION), 3), "most_memory": float(value)}
    least = int(float(value) * _SMALLER_SHARE_OF_BYTES) // _MIB * _MIB
    return {"least_memory": max(_MIB, least), "most_memory": int(value)}


def _target(problem: Mapping[str, Any], workload: Mapping[str, Any], length: Any) -> int:
    """What is asked for; else what was promised; else all that the model has."""
    model = (problem.get("checkpoint") or {}).get("max_model_len")
    asked = int(problem.get("max_model_len") or workload.get("context") or model or length)
    return min(asked, int(model)) if model else asked


def _load(given: Mapping[str, Any], workload: Mapping[str, Any], task: str) -> dict[str, int]:
    length = int(_FILLED_SHARE * (workload.get("typical_context") or workload.get("context") or _LOAD_LENGTH))
    prefix = int(given.get("prefix_tokens") or 0)
    answer = 0 if task == "embed" else int(given.get("output_tokens") or max(1, length - int(_PROMPT_SHARE * length)))
    prompt = length if task == "embed" else int(_PROMPT_SHARE * length)
    concurrency = int(given.get("concurrency") or workload.get("sequences") or _LOAD_SEQUENCES)
    return {
        "prefix_tokens": prefix,
        "input_tokens": int(given.get("input_tokens") or max(1, prompt - prefix)),
        "output_tokens": answer,
        "concurrency": concurrency,
        "prompts": int(given.get("prompts") or min(_MOST_PROMPTS, max(_LEAST_PROMPTS, _ROUNDS * concurrency))),
        "repeats": max(2, int(given.get("repeats") or 3)),
    }


def _cards(instance: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> int:
    if instance.get("gpus"):
        return len(instance["gpus"])
    return sum(len(host.get("gpus") or ()) for host in hosts)


def _have_fp8(hosts: Sequence[Mapping[str, Any]]) -> bool:
    capabilities = [gpu.get("compute_capability") or "0.0" for host in hosts for gpu in host.get("gpus") or ()]
    found = [tuple(int(part) for part in str(capability).split(".")) for capability in capabilities]
    return bool(found) and min(found) >= _FP8_COMPUTE_CAPABILITY


def _blocks(tokens: float, block: int = 16) -> int:
    """Whole blocks of the KV cache that hold the tokens."""
    return -(-int(tokens) // block) * block

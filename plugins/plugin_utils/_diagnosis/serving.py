# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why an engine that runs is slow or does not answer. Private to the collection.

Two looks at /metrics some seconds apart tell a queue from a full cache, and both from an engine that does nothing; the
log and the facts say what it is that it waits for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...module_utils import _boot_log_patterns as patterns
from ...module_utils._boot_log import parse_boot_log
from .change import current_value
from .kernels import Kernel, other_kernel, selected_kernels
from .lines import Line, read_lines
from .metrics import Metrics, parse_metrics

Finding = dict[str, Any]

# A cache is never quite full: a request is preempted when the blocks that it needs next are not there.
_FULL_CACHE = 0.95
# A step of a large prompt on a slow card takes seconds, not ten of them.
_SECONDS_OF_STANDSTILL = 4.0
# timeout(1)
_TIMED_OUT = 124
# A disk below this reads 100 GB in more than eight minutes.
_SLOW_MIB_PER_SECOND = 200
_MIB_PER_GIB = 1024
_SLOW_FILE_SYSTEMS = re.compile(r"nfs|cifs|smb|fuse|ceph|gluster|lustre|9p|juicefs", re.IGNORECASE)
_DOWNLOAD = re.compile(
    r"(?:huggingface\.co|hf-mirror|modelscope\.cn).{0,200}"
    r"(?:retr|timed? ?out|Max retries|Failed to resolve|refused|unreachable)"
    r"|(?:Retrying in|thrown while requesting) .{0,200}huggingface\.co|Error retrieving (?:file list|safetensors)",
    re.IGNORECASE,
)
_BROADCAST = re.compile(r"No available (?:shared memory broadcast )?block found in \d+ second")
_NO_CUSTOM_ALL_REDUCE = re.compile(r"Custom allreduce is disabled")
_REFERENCE = "https://docs.vllm.ai/en/latest/usage/troubleshooting/"
_OPTIMIZATION = "https://docs.vllm.ai/en/latest/configuration/optimization/"


@dataclass(frozen=True)
class Look:
    """One look at an engine. seconds: since the first look. metrics: None where /metrics did not answer."""

    seconds: float
    metrics: Metrics | None
    healthy: bool | None


@dataclass(frozen=True)
class _Engine:
    looks: list[Look]
    lines: list[Line]
    measured: dict[str, Any]
    context: dict[str, Any]

    def value(self, name: str) -> Any:
        return current_value(f"engine_args.{name}", {**self.context, "measured": self.measured})

    @property
    def gpus(self) -> int:
        return int((self.value("tensor_parallel_size") or 1) * (self.value("pipeline_parallel_size") or 1))


def diagnose_serving(
    samples: list[dict[str, Any]], log: str = "", context: dict[str, Any] | None = None
) -> list[Finding]:
    """Returns why an engine is slow or does not answer, most probable first; of one that works, nothing.

    samples: at least two looks, each {"seconds": since the first, "metrics": the text of /metrics or None, "healthy":
    whether /health answered 200}. log: of the current start. context: as for diagnose, and "checkpoint" (what
    checkpoint_info tells of the disk: "filesystem", and its size "gib"), "phase" (what boot_info tells) and "request"
    (what came of a request between the looks: {"rc"}, 124 for no answer). Each finding is one of diagnose's shape.
    """
    known = context or {}
    looks = [
        Look(float(one["seconds"]), parse_metrics(one.get("metrics") or ""), one.get("healthy")) for one in samples
    ]
    engine = _Engine(looks, read_lines(log), known.get("measured") or parse_boot_log(log), known)
    findings = [*_standstill(engine), *_queue(engine), *_slow_loading(engine), *_downloads(engine)]
    return sorted(findings, key=lambda finding: -finding["confidence"])


def _standstill(engine: _Engine) -> Iterator[Finding]:
    """Requests run, and not one token comes out of them."""
    first, last = _first_and_last(engine)
    if first is None or last is None or last.seconds - first.seconds < _SECONDS_OF_STANDSTILL:
        return
    before, after = first.metrics, last.metrics
    unanswered = (engine.context.get("request") or {}).get("rc") == _TIMED_OUT
    if before is None or after is None or _tokens(before) != _tokens(after):
        return
    # The figures are those of the last step that ended: of a first step that hangs they show nothing.
    if not unanswered and (not before.running or not after.running):
        return
    told = (
        f"{after.running or 0:.0f} requests run, {after.waiting or 0:.0f} wait, and in "
        f"{last.seconds - first.seconds:.0f} seconds not one token was made (/metrics)."
    )
    if unanswered:
        told += " A request of our own got no answer in that time."
    if engine.gpus > 1:
        yield _collective(engine, told)
    for kernel in selected_kernels(engine.lines):
        found = _kernel(kernel, engine, told)
        if found:
            yield found
    if engine.gpus == 1 and not selected_kernels(engine.lines):
        yield _finding(
            "kernel_backend",
            "The engine stands still in a computation",
            told,
            "One GPU waits for no other, so it is a kernel that does not end. Look at what py-spy dump shows of the "
            "process "
            "EngineCore, and start once with enforce_eager to see whether compilation or graphs have to do with it.",
            {"variable": "engine_args.enforce_eager", "from": engine.value("enforce_eager") or False, "to": True},
            0.55,
        )


def _collective(engine: _Engine, told: str) -> Finding:
    line = next((line for line in engine.lines if _BROADCAST.search(line.text)), None)
    disabled = engine.value("disable_custom_all_reduce") or any(
        _NO_CUSTOM_ALL_REDUCE.search(line.text) for line in engine.lines
    )
    change = (
        {"variable": "environment.NCCL_P2P_DISABLE", "from": None, "to": "1"}
        if disabled
        else {"variable": "engine_args.disable_custom_all_reduce", "from": False, "to": True}
    )
    return _finding(
        "nccl_hang",
        "The GPUs wait for each other",
        told,
        "All ranks compute together, and one of them does not arrive: P2P between the GPUs does not work here "
        "(IOMMU, ACS, "
        "virtualization), or a rank is stuck. py-spy dump of each worker shows where; nvidia-smi shows 100 % on "
        "those that "
        "wait.",
        change,
        0.8 if line else 0.65,
        line,
    )


def _kernel(kernel: Kernel, engine: _Engine, told: str) -> Finding | None:
    if not kernel.deep_gemm and kernel.part == "linear" and "fp8" not in kernel.name.lower():
        return None
    change = other_kernel(kernel, engine.context)
    part = "the experts" if kernel.part == "moe" else "the linear layers"
    return _finding(
        "kernel_backend",
        f"A kernel of {part} does not end",
        told,
        f"The log names {kernel.name} for {part}. DeepGEMM is switched off with VLLM_USE_DEEP_GEMM=0, for linear "
        "layers and "
        "experts; linear_backend chooses for linear layers alone, moe_backend for experts alone.",
        change,
        0.7 if kernel.deep_gemm else 0.5,
        kernel.line,
    )


def _queue(engine: _Engine) -> Iterator[Finding]:
    looks = [look.metrics for look in engine.looks if look.metrics]
    if len(looks) < 2:
        return
    usage = min(look.kv_cache_usage or 0.0 for look in looks)
    preempted = (looks[-1].preemptions or 0) - (looks[0].preemptions or 0)
    waiting = min((look.waiting or 0) - look.deferred for look in looks)
    if preempted > 0 or (usage >= _FULL_CACHE and waiting > 0):
        yield _full_cache(engine, looks, usage, preempted)
    elif waiting > 0:
        yield from _sequence_limit(engine, looks, waiting)


def _full_cache(engine: _Engine, looks: list[Metrics], usage: float, preempted: float) -> Finding:
    """Requests that were preempted are computed again: fewer at once are faster than more."""
    running = int(max(look.running or 0 for look in looks))
    limit = engine.value("max_num_seqs")
    fewer = max(1, running * 3 // 4) if running else None
    change = {"variable": "engine_args.max_num_seqs", "from": limit, "to": fewer} if fewer and preempted else None
    told = (
        f"KV cache {usage:.0%} full, {preempted:.0f} preemptions between the looks, {running} requests run (/metrics)."
    )
    more = (
        "What is preempted is computed again, so fewer requests at once give more tokens."
        if preempted
        else "Requests wait for blocks. That is a queue and no fault: a larger cache (gpu_memory_utilization, "
        "kv_cache_dtype fp8, a shorter max_model_len) or another replica serves more at once."
    )
    return _finding(
        "other", "The KV cache is full", told, more, change, 0.85 if preempted else 0.75, None, _OPTIMIZATION
    )


def _sequence_limit(engine: _Engine, looks: list[Metrics], waiting: float) -> Iterator[Finding]:
    limit = engine.value("max_num_seqs")
    running = min(look.running or 0 for look in looks)
    # Each engine behind one front end has its own limit.
    engines = int(engine.value("data_parallel_size") or 1)
    if not isinstance(limit, int) or running < limit * engines:
        return
    usage = max(look.kv_cache_usage or 0.0 for look in looks)
    yield _finding(
        "other",
        "Requests wait for max_num_seqs",
        f"{running:.0f} of at most {limit * engines} requests run, {waiting:.0f} wait, and the KV cache is {usage:.0%} "
        "full (/metrics).",
        "The engine may not run more at once, although the cache has room for them.",
        {"variable": "engine_args.max_num_seqs", "from": limit, "to": 2 * limit},
        0.85,
        None,
        _OPTIMIZATION,
    )


def _slow_loading(engine: _Engine) -> Iterator[Finding]:
    """Loading that is slow, or was: the disk is the reason, or too little memory for its cache."""
    rate, line = _loading_rate(engine)
    if rate is None or rate >= _SLOW_MIB_PER_SECOND:
        return
    disk = engine.context.get("checkpoint") or {}
    system = disk.get("filesystem") or engine.measured.get("checkpoint_filesystem") or ""
    network = bool(_SLOW_FILE_SYSTEMS.search(str(system)))
    where = f" It lies on {system}, a network file system: copy it to a local disk." if network else ""
    yield _finding(
        "disk_full",
        "The disk of the checkpoint is slow",
        f"The weights are read with {rate:.0f} MiB/s.",
        "A local NVMe disk reads some thousand MiB/s, a disk that turns 100 to 200. The start is long, the engine is "
        "not "
        f"stuck.{where}",
        None,
        0.8 if engine.context.get("phase") == patterns.LOADING else 0.45,
        line,
    )


def _loading_rate(engine: _Engine) -> tuple[float | None, Line | None]:
    size = engine.measured.get("checkpoint_gib") or engine.measured.get("weights_gib")
    seconds = engine.measured.get("read_seconds")
    if size and seconds:
        line = next((line for line in engine.lines if "Loading weights took" in line.text), None)
        return size * _MIB_PER_GIB / seconds, line
    size = (engine.context.get("checkpoint") or {}).get("gib") or engine.measured.get("checkpoint_gib")
    line = next((line for line in reversed(engine.lines) if patterns.SHARDS.search(line.text)), None)
    elapsed = re.search(r"\[(?:(\d+):)?(\d+):(\d\d)<", line.text) if line else None
    if not size or line is None or elapsed is None:
        return None, None
    hours, minutes, second = (int(part or 0) for part in elapsed.groups())
    took = 3600 * hours + 60 * minutes + second
    shards = patterns.SHARDS.search(line.text)
    if shards is None or not took or not int(shards["done"]):
        return None, None
    return size * _MIB_PER_GIB * int(shards["done"]) / int(shards["total"]) / took, line


def _downloads(engine: _Engine) -> Iterator[Finding]:
    """Attempts to reach a hub, each of which waits until it gives up."""
    found = [line for line in engine.lines if _DOWNLOAD.search(line.text)]
    if len(found) < 2:
        return
    environment = (engine.context.get("instance") or {}).get("environment") or {}
    offline = environment.get("HF_HUB_OFFLINE")
    yield _finding(
        "model_not_found_offline",
        "The engine tries to download something",
        "",
        f"It asked a hub {len(found)} times, and each attempt waits until it gives up; the first request may wait as "
        "well, for "
        "a processor, a tokenizer or a template that the checkpoint lacks. Offline it fails at once and names the "
        "file.",
        None if offline else {"variable": "environment.HF_HUB_OFFLINE", "from": offline, "to": "1"},
        0.7,
        found[0],
    )


def _first_and_last(engine: _Engine) -> tuple[Look | None, Look | None]:
    looks = [look for look in engine.looks if look.metrics]
    return (looks[0], looks[-1]) if len(looks) > 1 else (None, None)


def _tokens(metrics: Metrics) -> tuple[float | None, float | None, float | None]:
    return metrics.prompt_tokens, metrics.generation_tokens, metrics.finished


def _finding(
    failure_class: str,
    title: str,
    told: str,
    explanation: str,
    change: dict[str, Any] | None,
    confidence: float,
    line: Line | None = None,
    reference: str = _REFERENCE,
) -> Finding:
    """A finding whose evidence is a line of the log, or what the looks told where the log has none."""
    return {
        "class": failure_class,
        "title": title,
        "evidence": {"line": line.text[:400] if line else told, "line_number": line.number if line else 0},
        "explanation": f"{told} {explanation}".strip() if line else explanation,
        "change": change,
        "confidence": confidence,
        "reference": reference,
    }

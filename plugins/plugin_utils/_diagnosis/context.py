# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts, plan and unit tell beside the log. Private to the collection."""

from __future__ import annotations

import math
from typing import Any

from .change import release_of

Finding = dict[str, Any]

_MEMORY_CLASSES = ("gpu_shared_free_memory", "oom_weights", "oom_kv_cache", "oom_runtime", "oom_cudagraph")
_KILLED = 9
_KILLED_TITLE = "The kernel killed the engine because the host ran out of memory"
_KILLED_BY_OTHERS = {
    "title": "The engine was ended by SIGKILL, and not by the kernel",
    "explanation": "The kernel's out-of-memory killer left no trace of it. Somebody or something sent the signal: "
    "docker kill, a stop that took too long, or a limit of the container. Look at what else manages containers.",
    "confidence": 0.8,
}
# A difference of plan and log that may be the reason why memory is short.
_NOTABLE_GIB = 0.5
_COMPARED = {
    "free memory": ("free_gib", "gpu_free_gib"),
    "weights": ("weights_gib", "weights_gib"),
    "activations": ("activation_gib", "activation_gib"),
    "memory outside of PyTorch": ("non_torch_gib", "non_torch_gib"),
}


def sharpen(findings: list[Finding], context: dict[str, Any]) -> list[Finding]:
    """Returns the findings with what the context knows of their causes, and those that only the context knows."""
    told = [_with_facts(finding, context) for finding in findings]
    # An engine that runs with an old driver has no trouble with it.
    for known in (_old_driver(context) if told else None, _killed(context)):
        if known and all((finding["class"], finding["title"]) != (known["class"], known["title"]) for finding in told):
            told = _placed(known, told)
    return told


def _placed(known: Finding, findings: list[Finding]) -> list[Finding]:
    """What the context knows comes before what the log only suggests, and behind what it proves."""
    before = [finding for finding in findings if finding["confidence"] > known["confidence"]]
    return [*before, known, *(finding for finding in findings if finding not in before)]


def _with_facts(finding: Finding, context: dict[str, Any]) -> Finding:
    facts: list[str] = []
    if finding["title"] == _KILLED_TITLE and context.get("oom_killed") is False:
        return {**finding, **_KILLED_BY_OTHERS}
    if finding["class"] == "gpu_shared_free_memory" and _is_free_again(finding, context):
        told = "Now nothing else holds memory of these GPUs and enough of it is free: start the engine again."
        return {**finding, "explanation": f"{finding['explanation']} {told}", "change": None}
    if finding["class"] in _MEMORY_CLASSES:
        facts = [*_plan_against_log(context), *_holders(context)]
    elif finding["class"] == "driver_cuda_mismatch":
        facts = _drivers(context)
    return {**finding, "explanation": " ".join([finding["explanation"], *facts])} if facts else finding


def _is_free_again(finding: Finding, context: dict[str, Any]) -> bool:
    """Whether what was taken at the start is free now, as far as gpu_info tells."""
    share = (finding["change"] or {}).get("from")
    gpus = [gpu for host in context.get("hosts") or [] for gpu in host.get("gpus") or []]
    if not gpus or not isinstance(share, (int, float)) or _holders(context):
        return False
    return all(gpu.get("memory_free_mib", 0) >= share * gpu.get("memory_total_mib", math.inf) for gpu in gpus)


def _plan_against_log(context: dict[str, Any]) -> list[str]:
    """Where what vLLM measured is not what was planned. The tightest GPU of the plan counts."""
    budget, measured = (context.get("plan") or {}).get("budget") or [], context.get("measured") or {}
    told = []
    for figure, (planned_name, name) in _COMPARED.items():
        planned = [_figure(gpu.get(planned_name)) for gpu in budget]
        values = [value for value in planned if value is not None]
        seen = measured.get(name)
        if not values or seen is None:
            continue
        expected = min(values) if name == "gpu_free_gib" else max(values)
        difference = expected - seen if name == "gpu_free_gib" else seen - expected
        if difference >= _NOTABLE_GIB:
            told.append(f"Planned with {expected:.1f} GiB of {figure}, measured {seen:.1f}: {difference:.1f} GiB off.")
    return told


def _figure(value: Any) -> float | None:
    """A figure of the budget is a number, or {"value", "low", "high", "source"}."""
    if isinstance(value, dict):
        value = value.get("value")
    return float(value) if isinstance(value, (int, float)) else None


def _holders(context: dict[str, Any]) -> list[str]:
    """Which processes of others hold memory of which GPU. The instance's own container is not named."""
    own = f"vllm-{(context.get('instance') or context.get('plan') or {}).get('name')}"
    return [
        f"On {host.get('name', 'the host')}, GPU {gpu.get('index')}: {process.get('name')} (pid {process.get('pid')}) "
        f"holds {process.get('used_memory_mib')} MiB."
        for host in context.get("hosts") or []
        for gpu in host.get("gpus") or []
        for process in gpu.get("processes") or []
        if process.get("container") != own and process.get("used_memory_mib")
    ]


def _drivers(context: dict[str, Any]) -> list[str]:
    found = release_of(context)
    if found is None or not found.min_driver:
        return []
    return [
        f"{host.get('name', 'The host')} has driver {host['driver_version']}; the image (CUDA {found.cuda}) needs at "
        f"least {found.min_driver}."
        for host in context.get("hosts") or []
        if host.get("driver_version") and _older(host["driver_version"], found.min_driver)
    ]


def _old_driver(context: dict[str, Any]) -> Finding | None:
    """A driver that is older than the image needs, whatever the log says of it."""
    drivers = [
        host
        for host in context.get("hosts") or []
        if (found := release_of(context)) and _older(host.get("driver_version") or "", found.min_driver_minor_version)
    ]
    if not drivers:
        return None
    return {
        "class": "driver_cuda_mismatch",
        "title": "The driver of the host is older than the image can run with",
        "evidence": {
            "line": f"{drivers[0].get('name', 'The host')}: driver {drivers[0]['driver_version']} (gpu_info)",
            "line_number": 0,
        },
        "explanation": " ".join(
            [
                *_drivers(context),
                "Update the driver of the host, or take an image of the same release with an older CUDA.",
            ]
        ),
        "change": None,
        "confidence": 0.6,
        "reference": "https://docs.nvidia.com/deploy/cuda-compatibility/",
    }


def _older(version: str, than: str) -> bool:
    """Whether a driver is older than another, as "580.65.06" is than "580.95.05"."""
    numbers = [[int(part) for part in text.split(".") if part.isdigit()] for text in (version, than)]
    return bool(numbers[0]) and numbers[0] < numbers[1]


def _killed(context: dict[str, Any]) -> Finding | None:
    """The kernel's out-of-memory killer leaves no line in the log of what it killed."""
    unit = context.get("unit") or {}
    if unit.get("result") != "oom-kill" and (unit.get("exec_code"), unit.get("exec_status")) != ("killed", _KILLED):
        return None
    return {
        "class": "other",
        "title": _KILLED_TITLE,
        "evidence": {"line": f"{unit.get('name')}: {unit.get('result')}, killed by signal {_KILLED}", "line_number": 0},
        "explanation": "It is the host's RAM that was full, not the GPU's. Look at dmesg and at what else runs there.",
        "change": None,
        "confidence": 0.95,
        "reference": "https://docs.vllm.ai/en/latest/usage/troubleshooting/",
    }

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts, plan and unit tell beside the log. Private to the collection."""

from __future__ import annotations

from typing import Any

from .change import release_of

Finding = dict[str, Any]

_MEMORY_CLASSES = ("gpu_shared_free_memory", "oom_weights", "oom_kv_cache", "oom_runtime", "oom_cudagraph")
_KILLED = 9


def sharpen(findings: list[Finding], context: dict[str, Any]) -> list[Finding]:
    """Returns the findings with what the context knows of their causes, and those that only the context knows."""
    told = [_with_facts(finding, context) for finding in findings]
    killed = _killed(context)
    return [killed, *told] if killed and all(finding["title"] != killed["title"] for finding in told) else told


def _with_facts(finding: Finding, context: dict[str, Any]) -> Finding:
    facts: list[str] = []
    if finding["class"] in _MEMORY_CLASSES:
        facts = _holders(context)
    elif finding["class"] == "driver_cuda_mismatch":
        facts = _drivers(context)
    return {**finding, "explanation": " ".join([finding["explanation"], *facts])} if facts else finding


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
        "title": "The kernel killed the engine because the host ran out of memory",
        "evidence": {"line": f"{unit.get('name')}: {unit.get('result')}, killed by signal {_KILLED}", "line_number": 0},
        "explanation": "It is the host's RAM that was full, not the GPU's. Look at dmesg and at what else runs there.",
        "change": None,
        "confidence": 0.95,
        "reference": "https://docs.vllm.ai/en/latest/usage/troubleshooting/",
    }

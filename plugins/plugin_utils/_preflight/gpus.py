# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, GPUs, fabric manager and persistence mode of a host. Private."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .case import DEPLOY, Case, Check, limits

Problem = Mapping[str, Any]


def driver(case: Case) -> Iterator[Check]:
    """The errors of the host as a whole: no driver, two versions of it, no GPU, a driver that hangs."""
    found = [problem for problem in _errors(case) if problem["gpu"] is None and not _is_fabric(problem)]
    for problem in found:
        yield _from_problem("driver", "failed", problem, "host")
    if not found:
        version = case.facts.get("driver_version")
        yield Check("driver", "ok", f"driver {version} answers", "host")


def gpu(case: Case) -> Iterator[Check]:
    """The errors of single GPUs; of one that no engine uses only where it keeps every container from starting."""
    found = [problem for problem in _errors(case) if problem["gpu"] is not None and not _is_fabric(problem)]
    for problems in _alike(found):
        used = [problem for problem in problems if _concerns(case, problem)]
        yield _from_problem(
            "gpu", "failed" if used else "warning", used[0] if used else problems[0], _where(used or problems)
        )
    if not found and case.gpus:
        yield Check("gpu", "ok", f"{len(case.gpus)} x {case.gpus[0].get('name')}", "host")


def fabric_manager(case: Case) -> Iterator[Check]:
    """NVSwitches without a running fabric manager, or a fabric that is not set up."""
    found = [problem for problem in _errors(case) if _is_fabric(problem)]
    for problems in _alike(found):
        yield _from_problem("fabric_manager", "failed", problems[0], _where(problems))
    if not found and case.facts.get("fabric_manager"):
        yield Check("fabric_manager", "ok", "the fabric is set up", "host")


def persistence_mode(case: Case) -> Iterator[Check]:
    """Without persistence mode the driver is unloaded with its last user, and loaded again for each start."""
    off = [gpu for gpu in case.gpus if gpu.get("persistence_mode") == "Disabled"]
    if not off:
        if any(gpu.get("persistence_mode") for gpu in case.gpus):
            yield Check("persistence_mode", "ok", "persistence mode is on", "host")
        return
    yield Check(
        check="persistence_mode",
        status="warning",
        what="persistence mode is off: the driver is unloaded with its last user, so that starts and probes are slow",
        where=_gpus_text([gpu.get("index") for gpu in off]),
        fix="switch it on, or set vllm_host_persistence_mode to true: then each boot does",
        next=case.command(DEPLOY, "vllm_host_persistence_mode=true"),
        fixed_by="vllm_host_persistence_mode",
        will_be_fixed=bool(case.fixes.get("vllm_host_persistence_mode")),
    )


def notices(case: Case) -> Iterator[Check]:
    """What gpu_info says of GPUs that work."""
    found = [problem for problem in case.facts.get("notices") or [] if _concerns(case, problem)]
    for problems in _alike(found):
        unified = problems[0]["code"] == "unified_memory"
        if unified and case.engines and all(engine.headroom_mib for engine in case.engines):
            yield Check("unified_memory", "ok", "headroom_mib is set for every instance", _where(problems))
        else:
            name = "unified_memory" if unified else "driver" if problems[0]["gpu"] is None else "gpu"
            yield _from_problem(name, "warning", problems[0], _where(problems))


def _errors(case: Case) -> Sequence[Problem]:
    return case.facts.get("errors") or []


def _is_fabric(problem: Problem) -> bool:
    return str(problem["code"]).startswith("fabric_")


def _concerns(case: Case, problem: Problem) -> bool:
    if problem["gpu"] is None or problem["code"] in limits()["errors_for_every_container"]:
        return True
    return problem["gpu"] in [gpu.get("index") for gpu in case.gpus]


def _alike(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Problems that differ by the GPU alone, together: one row for the eight GPUs of a host."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem["code"], _message(problem)), []).append(problem)
    return list(groups.values())


def _message(problem: Problem) -> str:
    return str(problem["message"]).removeprefix(f"GPU {problem['gpu']}: ")


def _where(problems: Sequence[Problem]) -> str:
    return _gpus_text([problem["gpu"] for problem in problems])


def _gpus_text(indices: Sequence[Any]) -> str:
    known = [str(index) for index in indices if index is not None]
    return f"GPU {', '.join(known)}" if known else "host"


def _from_problem(check: str, status: str, problem: Problem, where: str) -> Check:
    """gpu_info puts commands in single quotes: the first of them is the next one to try."""
    command = re.search(r"'([^']+)'", problem["next_step"])
    return Check(
        check=check,
        status=status,
        what=_message(problem),
        where=where,
        fix=problem["next_step"],
        next=command.group(1) if command else "nvidia-smi",
    )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All checks of a host, in the order in which one depends on the other. Private."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import container_runtime, gpus, images, resources
from .case import COMMANDS, DEPLOY, PLAN, Case, Check, limits, read_engine

CHECKS: tuple[Callable[[Case], Iterator[Check]], ...] = (
    gpus.driver,
    gpus.gpu,
    gpus.fabric_manager,
    gpus.persistence_mode,
    gpus.notices,
    images.images,
    container_runtime.docker,
    container_runtime.nvidia_toolkit,
    container_runtime.nvidia_runtime,
    container_runtime.cgroup_driver,
    resources.systemd,
    resources.commands,
    resources.image_disk,
    resources.model_disk,
    resources.memory,
    resources.ports,
)

#: What a check can be called, in the same order.
CHECK_NAMES = (
    "driver",
    "gpu",
    "fabric_manager",
    "persistence_mode",
    "unified_memory",
    "release",
    "driver_for_image",
    "card_for_image",
    "docker",
    "nvidia_toolkit",
    "nvidia_runtime",
    "cgroup_driver",
    "systemd",
    "commands",
    "image_disk",
    "model_disk",
    "memory",
    "port",
)


def preflight(
    facts: Mapping[str, Any],
    plans: Sequence[Mapping[str, Any]] = (),
    host: str = "",
    fixes: Mapping[str, Any] | None = None,
    tolerate: Sequence[str] = (),
    image_gib: float | None = None,
    commands: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Judges a host by what gpu_info returned for it (with all of its subsets).

    plans: plans of the filter plan, or entries of vllm_instances. host: its inventory name. fixes: the variables of the
    role vllm_host by name. tolerate: names of checks of which a failure is only a warning. image_gib: GiB that an image
    takes on Docker's disk while it is pulled. commands: the command lines of the playbooks, {"plan", "deploy"}.

    Returns [{"check", "status" (ok, warning, failed), "what", "where", "fix", "next" (a command), "fixed_by" (a
    variable or None), "will_be_fixed"}]. What the facts do not tell is not judged.
    """
    needed = image_gib or limits()["image"]["unpacked_gib"] + limits()["image"]["compressed_gib"]
    case = Case(
        host=host,
        facts=facts,
        engines=tuple(read_engine(plan) for plan in plans),
        image_gib=float(needed),
        fixes=fixes or {},
        commands={**COMMANDS, **(commands or {})},
    )
    found = [_tolerated(check, tolerate) for judge in CHECKS for check in judge(case)]
    return [asdict(_with_command(case, check)) for check in found]


def _with_command(case: Case, check: Check) -> Check:
    """The next command: the deployment where that fixes it, else the check's own, else to plan what was changed."""
    if check.status == "ok":
        return check
    return replace(check, next=case.command(DEPLOY) if check.will_be_fixed else check.next or case.command(PLAN))


def _tolerated(check: Check, tolerate: Sequence[str]) -> Check:
    return replace(check, status="warning") if check.status == "failed" and check.check in tolerate else check

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is judged, a host and the engines that are to run on it, and the form of a judgement. Private."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .._catalogue import Release, UnknownRelease, release

# The playbooks by the names under which their commands are handed over.
PLAN, DEPLOY = "plan", "deploy"
COMMANDS = {PLAN: "ansible-playbook gpufleet.vllm.plan_vllm", DEPLOY: "ansible-playbook gpufleet.vllm.deploy_vllm"}


@cache
def limits() -> dict[str, Any]:
    """The figures of limits.yml."""
    loaded: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "limits.yml").read_text(encoding="utf-8"))
    return loaded


@dataclass(frozen=True)
class Check:
    """One judgement. fixed_by: the variable by which the role fixes it; will_be_fixed: whether it is switched on."""

    check: str
    status: str
    what: str
    where: str
    fix: str = ""
    next: str = ""
    fixed_by: str | None = None
    will_be_fixed: bool = False


@dataclass(frozen=True)
class Engine:
    """One engine, of a plan or of an instance that is not planned yet. gpus: UUIDs or indices; None: any."""

    name: str
    image: str
    address: str
    port: int
    checkpoint: str | None
    environment: Mapping[str, str]
    gpus: frozenset[str] | None
    workers: int
    headroom_mib: int | None
    arguments: Mapping[str, Any]

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    def find_release(self) -> Release | UnknownRelease:
        """The release of the image, or why there is none."""
        try:
            return release(self.image)
        except UnknownRelease as error:
            return error


@dataclass(frozen=True)
class Case:
    """A host's facts as gpu_info gives them, its engines, what the role may fix (variable: value), the commands."""

    host: str
    facts: Mapping[str, Any]
    engines: tuple[Engine, ...]
    image_gib: float
    fixes: Mapping[str, Any]
    commands: Mapping[str, str]

    @property
    def container_runtime(self) -> Mapping[str, Any]:
        return self.facts.get("container_runtime") or {}

    @property
    def resources(self) -> Mapping[str, Any]:
        return self.facts.get("host") or {}

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that the engines use: all, unless every engine names its own."""
        return [gpu for gpu in self.facts.get("gpus") or [] if self.uses(gpu)]

    def uses(self, gpu: Mapping[str, Any]) -> bool:
        parts = [part.get("uuid") for part in (gpu.get("mig") or {}).get("instances") or []]
        names = {str(name) for name in (gpu.get("index"), gpu.get("uuid"), *parts) if name is not None}
        return not self.engines or any(engine.gpus is None or engine.gpus & names for engine in self.engines)

    def command(self, playbook: str, extra: str = "") -> str:
        """A playbook for this host, as one types it."""
        limit = f" --limit {self.host}" if self.host else ""
        return f"{self.commands[playbook]}{limit}" + (f" --extra-vars {extra}" if extra else "")


def read_engine(entry: Mapping[str, Any]) -> Engine:
    """An engine of a plan (filter plan) or of an entry of vllm_instances."""
    arguments = {**(entry.get("engine_args") or {})}
    arguments.update({item["name"]: item["value"] for item in entry.get("arguments") or []})
    devices = entry.get("devices")
    chosen = [uuid for uuids in devices.values() for uuid in uuids] if devices else entry.get("gpus")
    return Engine(
        name=str(entry.get("name") or ""),
        image=str(entry.get("image") or ""),
        address=str(entry.get("address") or "127.0.0.1"),
        port=int(entry.get("port") or 8000),
        checkpoint=entry.get("checkpoint"),
        environment={str(key): str(value) for key, value in (entry.get("environment") or {}).items()},
        gpus=frozenset(str(item) for item in chosen) if chosen else None,
        workers=_workers(entry, arguments),
        headroom_mib=entry.get("headroom_mib"),
        arguments=arguments,
    )


def _workers(entry: Mapping[str, Any], arguments: Mapping[str, Any]) -> int:
    """Worker processes on one host: as planned, else as pinned, else one."""
    planned = (entry.get("parallel") or {}).get("gpus_per_host")
    if planned:
        return int(planned)
    return int(arguments.get("tensor_parallel_size") or 1) * int(arguments.get("pipeline_parallel_size") or 1)


def older(version: str, than: str) -> bool:
    """Whether a version is older than another, by the numbers at its start (28.2.2, 20.10.24+dfsg1, 1.19.0~rc.2)."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in match.group(0).split(".")] if match else []

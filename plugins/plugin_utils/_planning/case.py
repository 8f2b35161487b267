# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that is known before anything is chosen: the case that the planner decides. Private to gpufleet.vllm."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._catalogue import Release, UnknownRelease
from .._catalogue import release as find_release
from .budget import Model
from .dimensions import Dimensions, dimensions
from .errors import InstanceError
from .estimate import GIB, MIB
from .extras import read_extras
from .hosts import Host, read_hosts
from .quantization import Precision, choose_precision
from .receipts import read_receipt
from .settings import CONTEXT_WITHOUT_WORKLOAD, Pins, Workload, read_pins, read_workload

POOLING_TASKS = {"embed", "embedding", "classify", "score", "reward", "rerank", "pooling"}

UNVERIFIED_ARCHITECTURES = ("DeepseekV4",)
"""How the architectures begin whose measured memory the formulas do not explain: all their terms are unverified."""

HEADROOM_RELATIVE = 0.02
HEADROOM_LEAST = 0.25 * GIB
HEADROOM_MOST = 2.0 * GIB
"""Free memory to leave on a card: gpt-oss-20b died in the sampler's warm-up with less than 786 MiB free of 80 GB."""


@dataclass(frozen=True)
class Goal:
    """What must fit into the KV pool: pairs of requests at once and tokens of each. hard: promised or pinned."""

    context: int
    sequences: int
    typical_context: int | None
    context_is_fixed: bool
    stated: bool

    @property
    def needs(self) -> tuple[tuple[int, int], ...]:
        if self.typical_context and self.typical_context < self.context:
            return (1, self.context), (self.sequences, self.typical_context)
        return ((self.sequences, self.context),)


@dataclass(frozen=True)
class Case:
    """An instance on its hosts, read and checked."""

    name: str
    instance: Mapping[str, Any]
    release: Release
    model: Model
    hosts: tuple[Host, ...]
    pins: Pins
    workload: Workload
    precision: Precision
    task: str
    shares_gpus: bool
    headroom_mib: int | None
    errors: tuple[Mapping[str, Any], ...]
    checkpoint_name: str
    warnings: tuple[str, ...] = ()

    @property
    def shape(self) -> Dimensions:
        return self.model.shape

    def headroom(self, total_bytes: float) -> float:
        """Bytes to leave free on a card of that size."""
        if self.headroom_mib is not None:
            return float(self.headroom_mib * MIB)
        return min(max(total_bytes * HEADROOM_RELATIVE, HEADROOM_LEAST), HEADROOM_MOST)

    @property
    def goal(self) -> Goal:
        most = self.shape.max_model_len or CONTEXT_WITHOUT_WORKLOAD
        pinned = self.pins.integer("max_model_len")
        context = pinned or min(self.workload.context or CONTEXT_WITHOUT_WORKLOAD, most)
        promised = min(self.workload.context or context, context)
        typical = self.workload.typical_context
        if pinned and self.workload.context and self.workload.context < pinned:
            typical = min(typical or promised, promised)
        return Goal(context, self.workload.sequences or 1, typical, bool(pinned), self.workload.stated)


def read_case(instance: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> Case:
    """Read an instance and its hosts. Raises InstanceError for what nobody can plan with."""
    name = str(instance.get("name") or "unnamed")
    release = read_release(instance, name)
    checkpoint = instance.get("checkpoint")
    if not isinstance(checkpoint, Mapping) or "layers" not in checkpoint:
        raise InstanceError(
            name,
            "checkpoint",
            checkpoint if isinstance(checkpoint, str) else "...",
            "is not a described checkpoint",
            "Give what gpufleet.vllm.checkpoint_info returns for its folder.",
        )
    if not checkpoint["layers"]:
        raise InstanceError(
            name,
            "checkpoint",
            checkpoint.get("architecture"),
            "has no layers that could be counted",
            "Compare its config.json with the published one: num_hidden_layers or its like is missing.",
        )
    checkpoint_name = fingerprint(checkpoint)
    pins, errors = read_pins(instance, release)
    workload = read_workload(instance)
    read = read_hosts(hosts, instance)
    shape = dimensions(checkpoint)
    task = read_task(instance, checkpoint, pins)
    precision = choose_precision(shape, checkpoint, read, release, pins)
    cards = list(dict.fromkeys(gpu.name for host in read for gpu in host.gpus))
    extras, extra_warnings = read_extras(checkpoint, pins)
    receipt, receipt_warnings = read_receipt(instance, release.version, cards)
    model = Model(
        checkpoint=checkpoint,
        shape=shape,
        release=release,
        generates=task not in POOLING_TASKS,
        unverified=is_unverified(checkpoint),
        extras=extras,
        cache=_cache_of(checkpoint_name, release.version),
        receipt=receipt,
    )
    return Case(
        name=name,
        instance=instance,
        release=release,
        model=model,
        hosts=read,
        pins=pins,
        workload=workload,
        precision=precision,
        task=task,
        shares_gpus=bool(instance.get("shares_gpus")),
        headroom_mib=_headroom(instance, name),
        errors=tuple(errors),
        checkpoint_name=checkpoint_name,
        warnings=(*receipt_warnings, *extra_warnings),
    )


@functools.lru_cache(maxsize=64)
def _cache_of(checkpoint: str, release: str) -> dict[Any, Any]:
    """What was computed of a checkpoint in a release, by the checkpoint's content: a fleet serves few of them."""
    return {}


def read_release(instance: Mapping[str, Any], name: str) -> Release:
    """The release of an image with a tag. Raises InstanceError for no tag, `latest` and what the catalogue lacks."""
    image = instance.get("image")
    variable = "image" if image else "release"
    text = str(image or instance.get("release") or "")
    if image and not re.search(r":[^/@]+(@|$)", text):
        raise InstanceError(
            name, "image", text, "has no tag", "Write the tag of a release, e.g. vllm/vllm-openai:v0.32.0."
        )
    try:
        return find_release(text)
    except UnknownRelease as error:
        raise InstanceError(name, variable, text, "names no release that can be planned", str(error)) from None


def read_task(instance: Mapping[str, Any], checkpoint: Mapping[str, Any], pins: Pins) -> str:
    """What the engine will do. Pinned arguments win, as vLLM obeys them: --task, later --runner and --convert.

    A pinned conversion makes the engine pool by itself (vllm/config/model.py, _get_runner_type).
    """
    asked = str(instance.get("task") or checkpoint.get("task") or "generate")
    runner, convert = pins.text("runner"), pins.text("convert")
    if pins.text("task"):
        return str(pins.text("task"))
    if runner and runner != "pooling":
        return runner
    if convert in POOLING_TASKS:
        return str(convert)
    return "pooling" if runner and asked not in POOLING_TASKS else asked


def _headroom(instance: Mapping[str, Any], name: str) -> int | None:
    value = instance.get("headroom_mib")
    if value in (None, ""):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise InstanceError(name, "headroom_mib", value, "is not a number of MiB", "Write e.g. headroom_mib: 2048.")
    return number


def is_unverified(checkpoint: Mapping[str, Any]) -> bool:
    names = checkpoint.get("architectures") or ()
    return checkpoint.get("known") is False or any(str(name).startswith(UNVERIFIED_ARCHITECTURES) for name in names)


def fingerprint(value: Any) -> str:
    """A short name for a value; equal values have equal names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def basis_of(case: Case) -> str:
    """A fingerprint of what was asked for: while it is the same, a running plan stays as it is if it can."""
    keys = (
        "image",
        "release",
        "workload",
        "engine_args",
        "extra_args",
        "environment",
        "task",
        "gpus",
        "headroom_mib",
        "trust_remote_code",
    )
    return fingerprint([case.checkpoint_name, {key: case.instance.get(key) for key in keys}])

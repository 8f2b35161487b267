# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that is known before anything is chosen: the case that the planner decides. Private to gpufleet.vllm."""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .._catalogue import Release, UnknownRelease, known_releases
from .._catalogue import release as find_release
from .._catalogue.serve_args import as_boolean
from .budget import Model
from .dimensions import Dimensions, dimensions
from .errors import Faults, InstanceError, refused_pin
from .estimate import GIB, MIB
from .extras import read_extras
from .hosts import Host, read_hosts
from .kv_cache import is_described
from .quantization import Precision, choose_precision
from .receipts import read_receipt
from .settings import CONTEXT_WITHOUT_WORKLOAD, Pins, Workload, read_partition, read_pins, read_workload

POOLING_TASKS = {"embed", "embedding", "classify", "score", "reward", "rerank", "pooling"}

UNVERIFIED_ARCHITECTURES = ("DeepseekV4",)
"""How the architectures begin whose measured memory the formulas do not explain: all their terms are unverified."""

HEADROOM_RELATIVE = 0.02
HEADROOM_LEAST = 0.25 * GIB
HEADROOM_MOST = 2.0 * GIB
"""Free memory to leave on a card: gpt-oss-20b died in the sampler's warm-up with less than 786 MiB free of 80 GB."""


@dataclass(frozen=True)
class Goal:
    """What must fit into the KV pools: requests at once over all data parallel engines, and the tokens of each."""

    context: int
    sequences: int
    typical_context: int | None
    context_is_fixed: bool
    stated: bool
    engines: int = 1

    @property
    def sequences_per_engine(self) -> int:
        return -(-self.sequences // self.engines)

    @property
    def needs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of requests at once and tokens of each."""
        if self.typical_context and self.typical_context < self.context:
            return (1, self.context), (self.sequences_per_engine, self.typical_context)
        return ((self.sequences_per_engine, self.context),)


@dataclass(frozen=True)
class Cut:
    """A promise of the workload that model or pins forbid, whatever the memory."""

    promise: str
    asked: int
    kept: int
    why: str
    remedy: str


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
    layer_partition: tuple[int, ...] = ()
    """The layers on each pipeline stage, where the environment fixes them."""
    set_aside: tuple[Host, ...] = ()
    """The hosts with all their cards, where some are not planned with for their lower precision."""

    @property
    def shape(self) -> Dimensions:
        return self.model.shape

    def headroom(self, total_bytes: float) -> float:
        """Bytes to leave free on a card of that size."""
        if self.headroom_mib is not None:
            return float(self.headroom_mib * MIB)
        return min(max(total_bytes * HEADROOM_RELATIVE, HEADROOM_LEAST), HEADROOM_MOST)

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """What was computed of the case once."""
        return {}

    @cached_property
    def goal(self) -> Goal:
        """The promise, as far as model and pins allow it."""
        most = self.shape.max_model_len or CONTEXT_WITHOUT_WORKLOAD
        pinned = self.pins.integer("max_model_len")
        context = pinned or min(self.workload.context or CONTEXT_WITHOUT_WORKLOAD, most)
        promised = min(self.workload.context or context, context)
        typical = self.workload.typical_context
        if pinned and self.workload.context and self.workload.context < pinned:
            typical = min(typical or promised, promised)
        sequences = min([self.workload.sequences or 1, *(cut.kept for cut in self.cuts if cut.promise == "sequences")])
        return Goal(context, sequences, typical, bool(pinned), self.workload.stated, self.engines)

    @property
    def spans(self) -> bool:
        """Whether it is one engine over all the hosts."""
        return bool(self.instance.get("span"))

    @property
    def trusts_remote_code(self) -> bool:
        return bool(as_boolean(self.instance.get("trust_remote_code") or False)) or bool(
            self.pins.flag("trust_remote_code")
        )

    @property
    def engines(self) -> int:
        """Data parallel engines: each holds the whole model and a KV pool of its own."""
        return self.pins.integer("data_parallel_size") or 1

    @property
    def engines_here(self) -> int:
        """Those of them that stand on the instance's hosts; the rest is started elsewhere, by hand."""
        if self.spans:
            return self.engines
        return min(self.pins.integer("data_parallel_size_local") or self.engines, self.engines)

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        return tuple(cut for cut in (self._context_cut(), self._sequences_cut()) if cut is not None)

    def _context_cut(self) -> Cut | None:
        asked, most, pinned = self.workload.context, self.shape.max_model_len, self.pins.integer("max_model_len")
        if asked and pinned and asked > pinned:
            why = f"max_model_len is pinned to {pinned:,}"
            return Cut("context", asked, pinned, why, f"max_model_len of {asked:,}, or no pin")
        if asked and most and not pinned and asked > most:
            remedy = f"a model that takes {asked:,} tokens, or one stretched by hf_overrides and a pinned max_model_len"
            return Cut("context", asked, most, f"the model takes no more than {most:,} tokens", remedy)
        return None

    def _sequences_cut(self) -> Cut | None:
        asked, pinned = self.workload.sequences, self.pins.integer("max_num_seqs")
        if not asked or not pinned or asked <= pinned * self.engines:
            return None
        why = f"max_num_seqs is pinned to {pinned}" + (
            f" for each of {self.engines} engines" if self.engines > 1 else ""
        )
        return Cut("sequences", asked, pinned * self.engines, why, f"max_num_seqs of {asked}, or no pin")


def read_case(instance: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> Case:
    """Read an instance and its hosts. Raises InstanceError with all that nobody can plan with."""
    name, faults = str(instance.get("name") or "unnamed"), Faults()
    release = faults.attempt(read_release, instance, name)
    checkpoint = faults.attempt(read_checkpoint, instance, name)
    workload = faults.attempt(read_workload, instance)
    read = faults.attempt(read_hosts, hosts, instance)
    headroom_mib = faults.attempt(_headroom, instance, name)
    partition = faults.attempt(read_partition, instance)
    pins, errors = (faults.attempt(read_pins, instance, release) if release else None) or (Pins({}, {}, name), [])
    if faults.found:
        faults.found += [refused_pin(name, error) for error in errors]
        faults.refuse()
    case = _case(instance, name, release, checkpoint, workload, read, headroom_mib, pins, errors)
    return replace(case, layer_partition=partition) if partition else case


def read_checkpoint(instance: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The description of the checkpoint. Raises InstanceError for what is none, or has no layers."""
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
    return checkpoint


def _case(
    instance: Mapping[str, Any],
    name: str,
    release: Release,
    checkpoint: Mapping[str, Any],
    workload: Workload,
    hosts: tuple[Host, ...],
    headroom_mib: int | None,
    pins: Pins,
    errors: Sequence[Mapping[str, Any]],
) -> Case:
    checkpoint_name = checkpoint_fingerprint(checkpoint)
    cache = cache_of(checkpoint_name, release.version)
    shape = cache["shape"] = cache.get("shape") or dimensions(checkpoint)
    task = read_task(instance, checkpoint, pins)
    precision = choose_precision(shape, checkpoint, hosts, release, pins)
    cards = list(dict.fromkeys(gpu.name for host in hosts for gpu in host.gpus))
    extras, extra_warnings = read_extras(checkpoint, pins)
    receipt, receipt_warnings = read_receipt(instance, release.version, cards)
    model = Model(
        checkpoint=checkpoint,
        shape=shape,
        release=release,
        generates=task not in POOLING_TASKS,
        unverified=not_understood(checkpoint, precision.kv_cache_dtype),
        extras=extras,
        cache=cache,
        receipt=receipt,
    )
    return Case(
        name=name,
        instance=instance,
        release=release,
        model=model,
        hosts=hosts,
        pins=pins,
        workload=workload,
        precision=precision,
        task=task,
        shares_gpus=bool(instance.get("shares_gpus")),
        headroom_mib=headroom_mib,
        errors=tuple(errors),
        checkpoint_name=checkpoint_name,
        warnings=(*_tag_warnings(instance), *receipt_warnings, *extra_warnings),
    )


def strongest_cards(case: Case) -> Case:
    """The case with only those cards that have the highest compute capability, where the others would lower the
    precision or break a rule; else the case itself."""
    known = {gpu.compute_capability for host in case.hosts for gpu in host.gpus if gpu.compute_capability}
    if len(known) < 2:
        return case
    strongest = max(known, key=float)
    hosts = tuple(
        replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.compute_capability == strongest))
        for host in case.hosts
    )
    precision = choose_precision(case.shape, case.model.checkpoint, hosts, case.release, case.pins)
    return (
        case if precision == case.precision else replace(case, hosts=hosts, precision=precision, set_aside=case.hosts)
    )


@functools.lru_cache(maxsize=64)
def cache_of(checkpoint: str, release: str) -> dict[Any, Any]:
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
    except UnknownRelease:
        fault, remedy = unknown_release(text)
        raise InstanceError(name, variable, text, fault, remedy) from None


NEAREST_RELEASES = 3
TAG = re.compile(r"(?:^|:)v?(\d+(?:\.\d+)+)([-\w.]*)(?:@|$)")


def unknown_release(text: str) -> tuple[str, str]:
    """What is wrong with an image or release that the catalogue lacks, and what would be right: the releases nearest
    to the one that was asked for, the newest first where there is none."""
    known = known_releases()
    asked = TAG.search(text)
    if asked is None:
        return "names no release", f"Write the tag of a release, e.g. vllm/vllm-openai:v{known[-1]}."
    if asked[1] in known:
        return f"has the suffix '{asked[2]}', which is not known", f"Without it: v{asked[1]}."
    wanted = _number(asked[1])
    near = sorted(reversed(known), key=lambda version: abs(_number(version) - wanted))[:NEAREST_RELEASES]
    remedy = f"Near it: {', '.join('v' + version for version in near)}."
    if wanted > _number(known[-1]):
        remedy += " A newer collection may know it: ansible-galaxy collection install --upgrade gpufleet.vllm"
    return f"is of a release that is not known; known are v{known[0]} to v{known[-1]}", remedy


def _number(version: str) -> int:
    """A version as one number, so that releases have a distance: 0.9.0.1 is 9,000,001."""
    parts = (*map(int, version.split(".")), 0, 0, 0, 0)
    return ((parts[0] * 1000 + parts[1]) * 1000 + parts[2]) * 1000 + parts[3]


def _tag_warnings(instance: Mapping[str, Any]) -> list[str]:
    """The official image's tags start with v: v0.32.0 is there, 0.32.0 is not."""
    official = re.search(r"(?:^|/)vllm/vllm-openai:(\d[^@]*)", str(instance.get("image") or ""))
    if not official:
        return []
    return [f"image: the tags of vllm/vllm-openai start with v; {official[1]} is not there, v{official[1]} is"]


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
        number = -1 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise InstanceError(name, "headroom_mib", value, "is not a number of MiB", "Write e.g. headroom_mib: 2048.")
    return number


def not_understood(checkpoint: Mapping[str, Any], kv_cache_dtype: str) -> str:
    """What of an engine's memory the formulas do not explain; empty where they do."""
    names = checkpoint.get("architectures") or ()
    if checkpoint.get("known") is False or any(str(name).startswith(UNVERIFIED_ARCHITECTURES) for name in names):
        return f"the memory of {checkpoint.get('model_type')}"
    if not is_described(kv_cache_dtype):
        return f"the KV cache of kv_cache_dtype {kv_cache_dtype}, counted as 8 bits a value,"
    return ""


def fingerprint(value: Any) -> str:
    """A short name for a value; equal values have equal names."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def checkpoint_fingerprint(checkpoint: Mapping[str, Any]) -> str:
    """The fingerprint of a checkpoint, made once for a fleet: its description is long, and the hosts share it."""
    try:
        return _described_fingerprint(marshal.dumps(dict(checkpoint), PLAIN_MARSHAL))
    except ValueError:  # Ansible's own kinds of text
        return fingerprint(checkpoint)


PLAIN_MARSHAL = 2
"""The last version of the format in which equal values give equal bytes."""


@functools.lru_cache(maxsize=64)
def _described_fingerprint(described: bytes) -> str:
    return fingerprint(marshal.loads(described))


def basis_of(case: Case) -> str:
    """A fingerprint of what was asked for: while it is the same, a running plan stays as it is if it can."""
    keys = (
        "image",
        "release",
        "workload",
        "extra_args",
        "environment",
        "task",
        "gpus",
        "headroom_mib",
        "trust_remote_code",
    )
    # The pins as they were read: "8" from a survey and 8 from a file are the same wish.
    wish = [case.checkpoint_name, case.pins.values, {key: case.instance.get(key) for key in keys}]
    return fingerprint([*wish, case.instance["span"]] if case.spans else wish)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Receipts that are carried from one fleet to the next. Private to the collection.

An experience is {"version": 1, "receipts": [{"model": {"architecture", "checkpoint", "weights_bytes"}, "time",
"receipt"}]}. The planner takes what it says of the same release, card and division, and of one model it takes less for
sure than of the same (_planning/receipts.py). Only receipts of the same architecture are handed on: what a start takes
beside the weights depends on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._catalogue import UnknownRelease, release
from ._planning.fleet import described

Experience = dict[str, Any]
Receipt = Mapping[str, Any]
_VERSION = 1
# auto, fp8_e4m3, bfloat16, mp; no path, address or text of somebody's.
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")


class ExperienceError(ValueError):
    """A file that holds no experience."""


def read_experience(text: str) -> Experience:
    """Reads the text of an experience file; an empty one holds none. Raises ExperienceError."""
    if not text.strip():
        return {"version": _VERSION, "receipts": []}
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ExperienceError(f"it is not JSON: {error}") from error
    entries = content.get("receipts") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ExperienceError('it lacks the list "receipts" of objects with "model" and "receipt"')
    if content.get("version") != _VERSION:
        raise ExperienceError(f"it has version {content.get('version')}, and this collection reads {_VERSION}")
    return dict(content)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(part), dict) for part in ("model", "receipt"))


def model_of(path: str, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What tells one model from another, without the path, which is another one in another fleet.

    checkpoint: its description, or its config.json as it is published.
    """
    known = described(checkpoint)
    return {
        "architecture": known.get("architecture"),
        "checkpoint": path.rstrip("/").rpartition("/")[2],
        "weights_bytes": (known.get("weights") or {}).get("total_bytes"),
    }


def add_receipts(
    experience: Experience, receipts: Iterable[Receipt], model: Mapping[str, Any], time: str
) -> Experience:
    """Returns the experience with receipts of one model; of equal starts the newest counts."""
    entries = {_start(entry): entry for entry in experience["receipts"]}
    for receipt in receipts:
        entry = {"model": dict(model), "time": time, "receipt": _portable(receipt)}
        # A start that measured the same again is no news: the file stays as it is.
        if (entries.get(_start(entry)) or {}).get("receipt") != entry["receipt"]:
            entries[_start(entry)] = entry
    return {"version": _VERSION, "receipts": [entries[start] for start in sorted(entries)]}


def _portable(receipt: Receipt) -> dict[str, Any]:
    """The receipt without what is of one fleet alone: the registry of the image, paths and addresses in arguments."""
    found = dict(receipt)
    if found.get("image"):
        found["image"] = str(found["image"]).rpartition("/")[2]
    arguments = dict(found.get("arguments") or {})
    found["arguments"] = {name: value for name, value in arguments.items() if _is_setting(value)}
    return found


def _is_setting(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and bool(_WORD.fullmatch(value)))


def _start(entry: Mapping[str, Any]) -> str:
    receipt = entry["receipt"]
    names = ("release", "card", "tensor_parallel_size", "pipeline_parallel_size", "arguments")
    return json.dumps([entry["model"], *(receipt.get(name) for name in names)], sort_keys=True, default=str)


def with_experience(
    receipts: Mapping[str, Receipt],
    experience: Experience,
    instances: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
) -> dict[str, Receipt]:
    """Returns the receipts by name of the instance, with that of the nearest neighbour where an instance has none."""
    cards = {gpu.get("name") for host in hosts for gpu in host.get("gpus") or ()}
    found = dict(receipts)
    for instance in instances:
        name, path = str(instance.get("name")), instance.get("checkpoint")
        checkpoint = checkpoints.get(path) if isinstance(path, str) else None
        if name in found or instance.get("receipt") or checkpoint is None:
            continue
        neighbour = _neighbour(experience, instance, model_of(str(path), checkpoint), cards)
        if neighbour is not None:
            found[name] = neighbour
    return found


def _neighbour(
    experience: Experience, instance: Mapping[str, Any], model: Mapping[str, Any], cards: set[Any]
) -> Receipt | None:
    try:
        version = release(str(instance.get("image") or instance.get("release"))).version
    except UnknownRelease:
        return None
    near = [
        entry
        for entry in experience["receipts"]
        if entry["receipt"].get("release") == version
        and entry["receipt"].get("card") in cards
        and entry["model"].get("architecture") == model["architecture"]
    ]
    if not near:
        return None
    wanted = int((instance.get("engine_args") or {}).get("tensor_parallel_size") or 1)
    nearest: Mapping[str, Any] = min(near, key=lambda entry: _distance(entry, model, wanted))
    return dict(nearest["receipt"])


def _distance(entry: Mapping[str, Any], model: Mapping[str, Any], tensor_parallel_size: int) -> tuple[int, int, int]:
    """First the same model, then the same division, then the size of the weights. Of equals, the first in the file."""
    size = int(entry["receipt"].get("tensor_parallel_size") or 1)
    weights = int(entry["model"].get("weights_bytes") or 0)
    return (
        int(weights != model["weights_bytes"]),
        abs(size - tensor_parallel_size),
        abs(weights - int(model["weights_bytes"] or 0)),
    )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes between two vLLM releases (private to the collection)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from .releases import Argument, Release

SIMILAR_HELP = 0.85  # of difflib's ratio: below it, two arguments of one type are two arguments and no rename


def changes(old: Release, new: Release) -> dict[str, Any]:
    """Everything that differs, by kind; an empty list or dict where nothing does.

    ``{"arguments": {"added": [name], "removed": [name], "renamed": {old: new}, "default_changed": {name: [old, new]},
    "choices_changed": {name: {"added", "removed"}}, "deprecated": [name]}, "environment": {"added", "removed",
    "default_changed"}, "architectures": {"added", "removed"}, "quantization": {"added", "removed",
    "capability_changed"}, "routes": {"added", "removed", "opened"}, "image": {fact: [old, new]}}``

    ``opened`` are the routes that answer without the API key in ``new`` and did not in ``old``.
    """
    return {
        "arguments": _argument_changes(old, new),
        "environment": _table_changes(old.environment, new.environment, "default_changed"),
        "architectures": _set_changes(old.architectures, new.architectures),
        "quantization": _table_changes(old.quantization_methods, new.quantization_methods, "capability_changed"),
        "routes": {
            **_set_changes(old.routes, new.routes),
            "opened": sorted(set(new.unguarded_routes) - set(old.unguarded_routes)),
        },
        "image": _image_changes(old, new),
    }


def _argument_changes(old: Release, new: Release) -> dict[str, Any]:
    before, after = arguments_of(old), arguments_of(new)
    added, removed = set(after) - set(before), set(before) - set(after)
    renamed = _renamed([before[name] for name in sorted(removed)], [after[name] for name in sorted(added)])
    both = sorted(set(before) & set(after))
    return {
        "added": sorted(added - set(renamed.values())),
        "removed": sorted(removed - set(renamed)),
        "renamed": renamed,
        "default_changed": {
            name: [before[name].default, after[name].default]
            for name in both
            if before[name].default != after[name].default
        },
        "choices_changed": {
            name: _set_changes(before[name].values, after[name].values)
            for name in both
            if set(before[name].values) != set(after[name].values)
        },
        "deprecated": [name for name in both if after[name].deprecated and not before[name].deprecated],
    }


def arguments_of(release: Release) -> dict[str, Argument]:
    """All arguments of a release by name."""
    return {name: argument for name in release.argument_names if (argument := release.argument(name)) is not None}


def _renamed(removed: list[Argument], added: list[Argument]) -> dict[str, str]:
    """Pairs of an argument that went and one that came which are the same: an alias stayed, or the help did."""
    pairs: dict[str, str] = {}
    for gone in removed:
        candidates = [came for came in added if came.name not in pairs.values() and _same(gone, came)]
        if candidates:
            pairs[gone.name] = candidates[0].name
    return pairs


def _same(gone: Argument, came: Argument) -> bool:
    if set(gone.flags) & set(came.flags):
        return True
    if gone.type != came.type or not gone.help or not came.help:
        return False
    return difflib.SequenceMatcher(None, gone.help, came.help).ratio() >= SIMILAR_HELP


def _set_changes(old: Iterable[Any], new: Iterable[Any]) -> dict[str, list[Any]]:
    return {"added": sorted(set(new) - set(old), key=str), "removed": sorted(set(old) - set(new), key=str)}


def _table_changes(old: dict[str, Any], new: dict[str, Any], changed: str) -> dict[str, Any]:
    return {
        **_set_changes(old, new),
        changed: {key: [old[key], new[key]] for key in sorted(set(old) & set(new)) if old[key] != new[key]},
    }


def _image_changes(old: Release, new: Release) -> dict[str, list[Any]]:
    facts = ("cuda", "min_driver", "entrypoint", "has_ray", "compute_capabilities", "torch", "guarded_prefixes")
    return {
        fact: [getattr(old, fact), getattr(new, fact)] for fact in facts if getattr(old, fact) != getattr(new, fact)
    }

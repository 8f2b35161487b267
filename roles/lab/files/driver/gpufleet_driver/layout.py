# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the tables beside it (*.layout, *.fields): which tags and fields each driver version has."""

from __future__ import annotations

import os
import re
from typing import Callable, NamedTuple

_HERE = os.path.dirname(os.path.abspath(__file__))

_LINE = re.compile(
    r"(?P<indent> *)(?P<name>[^\s\[=?]+)"
    r"(?:\s+\[(?P<since>[\d.]*?)\.\.(?P<until>[\d.]*)\])?(?:\s+\?(?P<condition>\w+))?"
    r"(?:\s+=\s+(?P<fact>[\w.]+)(?:\s+(?P<form>.*\S))?)?\s*$"
)


class Entry(NamedTuple):
    """One line: a tag or a field, in which driver versions it is, and which fact it shows."""

    depth: int
    name: str
    since: tuple[int, ...]
    until: tuple[int, ...]
    condition: str | None
    fact: str | None
    form: str

    def in_version(self, version: tuple[int, ...]) -> bool:
        return self.since <= version < self.until


def _version(text: str | None, default: int) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) if text else (default,)


def _entry(line: str, name: str) -> Entry:
    match = _LINE.match(line)
    if not match:
        raise ValueError(f"{name}: cannot read the line {line!r}")
    depth = len(match["indent"]) // 2
    since, until = _version(match["since"], 0), _version(match["until"], 9999)
    return Entry(depth, match["name"], since, until, match["condition"], match["fact"], match["form"] or "")


def read(name: str, version: tuple[int, ...]) -> list[Entry]:
    """The entries that a driver of this version has. What is nested in an entry goes with it."""
    with open(os.path.join(_HERE, name), encoding="utf-8") as stream:
        lines = [line for line in stream if line.strip() and not line.startswith("#")]
    return keep([_entry(line, name) for line in lines], lambda entry: entry.in_version(version))


def keep(entries: list[Entry], wanted: Callable[[Entry], bool]) -> list[Entry]:
    """The wanted entries, each unwanted one left out with all that is nested in it."""
    kept: list[Entry] = []
    skipped_depth = None
    for entry in entries:
        if skipped_depth is not None and entry.depth > skipped_depth:
            continue
        skipped_depth = None if wanted(entry) else entry.depth
        if skipped_depth is None:
            kept.append(entry)
    return kept

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A log as lines that know their level, their phase and whether a traceback holds them. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...module_utils import _boot_log_patterns as patterns

# Of a paste that was wrapped or is one line of JSON, more than this is not worth an expression's time.
_LONGEST = 4000

_HARMLESS = re.compile(
    r"^(?:\(\w+(?: rank=\d+)?(?: pid=\d+)?[^)]*\) )*(?:\S+ )?(?:INFO|DEBUG|WARNING|WARN)\b:?\s|"
    r"\s(?:INFO|DEBUG|WARNING) \d\d-\d\d \d\d:\d\d:\d\d |\b(?:INFO|WARNING|DEBUG):\s{2,}|"
    r"- (?:INFO|WARNING|DEBUG) -|\w+Warning: "
)
# Where a process says that it ends, without a traceback of its own.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r"File \"[^\"]+\", line \d+|^\s*\^+\s*$")
_EXCEPTION = re.compile(r"(?:^|[\s\]])(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Failure|Timeout)\b")


@dataclass(frozen=True)
class Line:
    """One line of the log. number counts from 1; harmless: vLLM logged it as INFO, DEBUG or WARNING."""

    number: int
    text: str
    phase: str
    harmless: bool
    in_traceback: bool
    exception: bool


def read_lines(log: str) -> list[Line]:
    """Returns the lines of a log, without colours, each with the phase of the start-up in which it stands."""
    return list(_lines(log))


def _lines(log: str) -> Iterator[Line]:
    phase, open_traceback = patterns.STARTING, False
    for number, raw in enumerate(log.split("\n"), 1):
        text = patterns.ANSI.sub("", raw).replace("\r", " ").rstrip()[:_LONGEST]
        if not text.strip():
            continue
        harmless = bool(_HARMLESS.search(text))
        phase = _next_phase(phase, text)
        exception = not harmless and bool(_EXCEPTION.search(text))
        inside = open_traceback and not harmless
        if _TRACEBACK.search(text):
            open_traceback = inside = True
        elif exception and not _FRAME.search(text):
            open_traceback = False
        yield Line(number, text.strip(), phase, harmless, inside, exception)


def _next_phase(phase: str, text: str) -> str:
    """As parse_boot_log reads it, but a line that tells of the end still belongs to the phase in which it ended."""
    found = next((name for name, pattern in patterns.PHASES if pattern.search(text)), phase)
    if found in (patterns.FAILED, patterns.STOPPED):
        return phase
    if phase == patterns.SERVING and found != patterns.STARTING:
        return phase
    return found

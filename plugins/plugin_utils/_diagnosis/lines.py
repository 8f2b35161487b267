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
_LONGEST_TRACEBACK = 400
# An exception of pydantic says on the lines below its name what is wrong.
_LONGEST_MESSAGE = 3

_HARMLESS = re.compile(
    r"^(?:\(\w+(?: rank=\d+)?(?: pid=\d+)?[^)]*\) )*(?:(?!NCCL)\S+ )?(?:INFO|DEBUG|WARNING|WARN)\b:?\s|"
    r"\s(?:INFO|DEBUG|WARNING) \d\d-\d\d \d\d:\d\d:\d\d |\b(?:INFO|WARNING|DEBUG):\s{2,}|"
    r"- (?:INFO|WARNING|DEBUG) -|\[(?:INFO|WARNING|DEBUG)\]|\w+Warning: |\bWarning: "
    # glog, as PyTorch's C++ and torchrun write it; NCCL
    r"|(?:^|\s|\[)[IW]\d{3,4} \d\d:\d\d:\d\d|NCCL INFO|NCCL TRACE"
)
_ALARM = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|fatal|NCCL WARN)\b|[Ee]rror\b|core dumped|Killed\b|Aborted\b")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r"File \"[^\"]+\", line \d+|^\s*\^+\s*$")
_EXCEPTION = re.compile(r"(?:^|[\s\]])(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Failure|Timeout)\b")


@dataclass(frozen=True)
class Line:
    """One line of the log. number counts from 1; message is the text without process, level, time and place.

    harmless: it was logged as INFO, DEBUG or WARNING. alarming: it was logged as an error, or raised.
    """

    number: int
    text: str
    message: str
    phase: str
    harmless: bool
    in_traceback: bool
    exception: bool
    alarming: bool


def read_lines(log: str) -> list[Line]:
    """Returns the lines of a log, without colours, each with the phase of the start-up in which it stands."""
    return list(_lines(log))


def _lines(log: str) -> Iterator[Line]:
    phase, traceback_left = patterns.STARTING, 0
    for number, raw in enumerate(log.split("\n"), 1):
        text = patterns.ANSI.sub("", raw).replace("\r", " ").rstrip()[:_LONGEST]
        if not text.strip():
            continue
        harmless = bool(_HARMLESS.search(text))
        phase = _next_phase(phase, text)
        exception = not harmless and bool(_EXCEPTION.search(text))
        inside = traceback_left > 0 and not harmless
        traceback_left = _traceback_left(traceback_left - 1, text, exception)
        alarming = inside or exception or (not harmless and bool(_ALARM.search(text)))
        message = patterns.PREFIX.sub("", text).strip()
        yield Line(number, text.strip(), message, phase, harmless, inside, exception, alarming)


def _traceback_left(left: int, text: str, exception: bool) -> int:
    """How many of the next lines belong to a traceback at most: its frames, and then what its exception says."""
    if _TRACEBACK.search(text):
        return _LONGEST_TRACEBACK
    return min(left, _LONGEST_MESSAGE) if exception and not _FRAME.search(text) else left


def _next_phase(phase: str, text: str) -> str:
    """As parse_boot_log reads it, but a line that tells of the end still belongs to the phase in which it ended."""
    found = next((name for name, pattern in patterns.PHASES if pattern.search(text)), phase)
    if found in (patterns.FAILED, patterns.STOPPED):
        return phase
    if phase == patterns.SERVING and found != patterns.STARTING:
        return phase
    return found

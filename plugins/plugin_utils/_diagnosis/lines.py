# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A log as lines that know their level, their phase and whether a traceback holds them. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...module_utils import _boot_log_patterns as patterns
from ...module_utils._boot_log_lines import plain, split_prefix

# Of a paste that was wrapped or is one line of JSON, more than this is not worth an expression's time.
_LONGEST = 4000
_LONGEST_TRACEBACK = 400
# An exception of pydantic says on the lines below its name what is wrong; a terminal breaks a long message.
_LONGEST_MESSAGE = 3

_HARMLESS_LEVELS = ("INFO", "DEBUG", "WARNING")
_ALARMING_LEVELS = ("ERROR", "CRITICAL", "FATAL")
_HARMLESS = re.compile(
    r"^\w+Warning: |\b\w+Warning: |^Warning: |^\S*:? ?Warning: "
    # glog, as PyTorch's C++ and torchrun write it; NCCL
    r"|(?:^|\s|\[)[IW]\d{3,4} \d\d:\d\d:\d\d|NCCL INFO|NCCL TRACE"
    # Ray's C++, Gloo, tokenizers
    r"|^[IW] \d+ \d+\] \S+\.cc:\d+|^\[Gloo\] Rank \d|^huggingface/tokenizers: "
)
_ALARM = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|fatal|NCCL WARN)\b|[Ee]rror\b|core dumped|Killed\b|Aborted\b")
# What only programs print: the rank before a line, a bar of progress.
_PRINTED = re.compile(r"^\[rank\d+\]: ?|\d+%\||\d+% Completed \|")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_FRAME = re.compile(r"File \"[^\"]+\", line \d+|^\s*[\^~]+\s*$")
_EXCEPTION = re.compile(r"(?:^|[\s\]])(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Failure|Timeout)\b")
# An exception as Python ends a traceback with it: nothing but the line's prefix is before its name.
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)\b(?=:|\(|$)")


@dataclass(frozen=True)
class Line:
    """One line of the log. number counts from 1; message is the text without process, level, time and place.

    process: the label of who wrote it, or None. logged: it had a level or a process before it, or is a part of a
    traceback, as only logs have it. harmless: it was logged as INFO, DEBUG or WARNING. frame: it is one of a traceback.
    alarming: it was logged as an error, or raised.
    """

    number: int
    text: str
    message: str
    process: str | None
    phase: str
    logged: bool
    harmless: bool
    frame: bool
    in_traceback: bool
    exception: bool
    alarming: bool


def read_lines(log: str) -> list[Line]:
    """Returns the lines of a log, without colours, each with the phase of the start-up in which it stands."""
    return list(_lines(log))


def continued(lines: list[Line], index: int) -> str | None:
    """The message of an exception with the lines below it that go on with it, or None where there are none."""
    first = lines[index]
    if not first.exception or first.harmless:
        return None
    # What a terminal broke has lost the label of its process.
    near = lines[index + 1 : index + 1 + _LONGEST_MESSAGE * 4]
    below = [line for line in near if line.process in (first.process, None)]
    parts = []
    for line in below[:_LONGEST_MESSAGE]:
        if line.harmless or line.exception or _FRAME.search(line.text) or _TRACEBACK.search(line.text):
            break
        parts.append(line.message)
    return " ".join([first.message, *parts]) if parts else None


def _lines(log: str) -> Iterator[Line]:
    phase = patterns.STARTING
    # Of several ranks, each is in a traceback of its own.
    traceback_left: dict[str | None, int] = {}
    for number, raw in enumerate(log.split("\n"), 1):
        text = plain(raw).replace("\r", " ").rstrip()[:_LONGEST]
        if not text.strip():
            continue
        prefix, message = split_prefix(text)
        harmless = prefix.level in _HARMLESS_LEVELS or (prefix.level is None and bool(_HARMLESS.search(message)))
        phase = _next_phase(phase, text)
        exception = not harmless and bool(_EXCEPTION.search(message))
        left = traceback_left.get(prefix.process, 0)
        raised = prefix.level in _ALARMING_LEVELS and bool(_RAISED.match(message))
        inside = (left > 0 or raised) and not harmless
        traceback_left[prefix.process] = _traceback_left(left - 1, text, exception)
        frame = bool(_FRAME.search(text))
        alarm = prefix.level in _ALARMING_LEVELS or bool(_ALARM.search(message))
        yield Line(
            number,
            text.strip(),
            message,
            prefix.process,
            phase,
            logged=bool(prefix.level or prefix.process or inside or frame or _PRINTED.search(text)),
            harmless=harmless,
            frame=frame,
            in_traceback=inside,
            exception=exception,
            alarming=inside or exception or (not harmless and alarm),
        )


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

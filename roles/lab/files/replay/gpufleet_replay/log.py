# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes lines as vLLM's processes do: who, level, time, place."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from . import wording

_LOCK = threading.Lock()


def write(text: str) -> None:
    """Writes one text as it is. Threads do not break each other's lines."""
    with _LOCK:
        sys.stdout.write(text)
        sys.stdout.flush()


class Log:
    """The log of one process. label: how the process names itself, or None; first: it logs what is logged once."""

    def __init__(self, release: str, label: str | None, debug: bool, first: bool = True) -> None:
        self._release = release
        self._prefix = f"({label}) " if label else ""
        self._debug = debug
        self._first = first

    def line(self, name: str, **figures: Any) -> None:
        """Logs the line of that name of wording.json, if the release has it."""
        level, place, text = wording.of_release(wording.data("wording")["lines"][name], self._release)
        if level is None or (level == "DEBUG" and not self._debug) or (level == "ONCE" and not self._first):
            return
        self.say({"ONCE": "INFO"}.get(level, level), place, text.format(**figures))

    def say(self, level: str, place: str, text: str) -> None:
        """Logs a text, each of its lines with level, time and place."""
        stamp = f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] "
        self.raw("\n".join(stamp + row for row in text.split("\n")))

    def exception(self, name: str, traceback: str) -> None:
        """Logs that line with a traceback below it."""
        level, place, text = wording.of_release(wording.data("wording")["lines"][name], self._release)
        self.say(level, place, f"{text}\n{traceback}")

    def raw(self, text: str) -> None:
        """Writes lines that no logger formats: tracebacks, uvicorn."""
        write("".join(f"{self._prefix}{row}\n" for row in text.split("\n")))


def progress_bar(text: str, end: str = "\n") -> None:
    """Writes one step of a progress bar, which has no label."""
    write(text + end)

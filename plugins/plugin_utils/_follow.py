# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows long work on a host and prints how far it is. Private to the collection.

For action plugins whose module of the same name has the options ``wait`` and ``job`` and returns RV(job), with ``id``,
``state`` and ``progress``, while its job runs (module_utils/_job.py)::

    return {**result, **Follower(self, "gpufleet.vllm.image", task_vars, subject="image X").follow(arguments)}
"""

from __future__ import annotations

import textwrap
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from . import _startup as startup

_COLUMNS = 100
_GIB = 1 << 30
_MIB = 1 << 20
_SECONDS_BETWEEN_LINES = 10.0
# Work that does not move says so now and then.
_SECONDS_BETWEEN_STALLED_LINES = 60.0
# The rate is that of the last half minute: the whole work's would hide a link that has become slow.
_RATE_WINDOW_SECONDS = 30.0
# A host that does not answer some times in a row may be back at the next: its job goes on without us.
_TOLERATED_DISCONNECTIONS = 10


class Follower:
    """Runs a module on the host again and again until its job has ended."""

    def __init__(
        self, action: ActionBase, module: str, task_vars: dict[str, Any], subject: str, interval: float = 2.0
    ) -> None:
        self._action = action
        self._module = module
        self._task_vars = task_vars
        self._host = str(task_vars.get("inventory_hostname", "host"))
        self._subject = subject
        self._interval = interval
        self._progress = Progress()
        self.first: dict[str, Any] = {}

    def follow(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns what the module returned at the end; ``first`` is what it returned at the beginning.

        Raises AnsibleConnectionFailure where the host stays away.
        """
        told = self.first = self.run(arguments)
        while _is_running(told):
            self.tell(told["job"]["progress"])
            time.sleep(self._interval)
            told = self.run({**arguments, "job": told["job"]["id"]})
        return told

    def tell(self, progress: dict[str, Any]) -> None:
        """Prints how far the work is, if that is worth a line now; for work that the action itself does, too."""
        line = self._progress.line(progress, time.monotonic())
        if line:
            self.say(line)

    def say(self, text: str) -> None:
        """Prints one line. Hosts print side by side, so each line names its host."""
        start = f"{self._host}: {self._subject}"
        room = _COLUMNS - len(text) - 2
        # The figures matter more than the end of a long name.
        shown = start if len(start) <= room else start[: max(room - 3, 0)] + "..."
        self._action._display.display(f"{shown}: {text}"[:_COLUMNS])

    def run(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Runs the module once, and again where the connection was lost."""
        for _attempt in range(_TOLERATED_DISCONNECTIONS):
            try:
                return self._run_once(arguments)
            except AnsibleConnectionFailure as error:
                reason = textwrap.shorten(str(error), 50, placeholder=" ...")
                self.say(f"connection lost, trying again: {reason}")
                time.sleep(self._interval)
        return self._run_once(arguments)

    def _run_once(self, arguments: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = self._action._execute_module(
            module_name=self._module, module_args={**arguments, "wait": False}, task_vars=self._task_vars
        )
        # What the module was called with is of no use to the reader of the result.
        return {name: value for name, value in told.items() if name != "invocation"}


class Progress:
    """Decides what is worth a line: a new phase, bytes that moved, and now and then that none did."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._moments: list[tuple[float, int]] = []
        self._told_at = self._moved_at = float("-inf")
        self._told_bytes = -1

    def line(self, progress: dict[str, Any], now: float) -> str | None:
        """Returns the line to print at this moment, or None.

        progress: {"phase": str, "done_bytes": int, "total_bytes": int or None}, each of which may be missing; now: in
        seconds.
        """
        if not progress:
            return None
        phase, done, total = _figures(progress)
        if phase != self._phase:
            self._begin(phase, now)
        if not self._moments or done != self._moments[-1][1]:
            self._moved_at = now
            self._moments.append((now, done))
        self._moments = [moment for moment in self._moments if now - moment[0] <= _RATE_WINDOW_SECONDS] or [(now, done)]
        moved = done != self._told_bytes
        if now - self._told_at < (_SECONDS_BETWEEN_LINES if moved else _SECONDS_BETWEEN_STALLED_LINES):
            return None
        self._told_at, self._told_bytes = now, done
        stalled = "" if moved else f", unchanged for {startup.duration(now - self._moved_at)}"
        return f"{phase}{_amount(done, total)}{_speed(self._rate(now), done, total) if moved else stalled}"

    def _begin(self, phase: str, now: float) -> None:
        self._phase, self._moments = phase, []
        self._told_at, self._moved_at = float("-inf"), now
        self._told_bytes = -1

    def _rate(self, now: float) -> float:
        """Bytes per second."""
        began, before = self._moments[0]
        return (self._moments[-1][1] - before) / (now - began) if now > began else 0.0


def _is_running(told: dict[str, Any]) -> bool:
    return not told.get("failed") and (told.get("job") or {}).get("state") == "running"


def _figures(progress: dict[str, Any]) -> tuple[str, int, int | None]:
    return str(progress.get("phase") or "starting"), int(progress.get("done_bytes") or 0), progress.get("total_bytes")


def _amount(done: int, total: int | None) -> str:
    if total:
        # A total may be an estimate; 100 % is for what is done.
        return f", {min(99, 100 * done // total)} %, {size(done)} of {size(total)}"
    return f", {size(done)}" if done else ""


def _speed(rate: float, done: int, total: int | None) -> str:
    if rate <= 0:
        return ""
    left = f", {startup.duration((total - done) / rate)} left" if total and total > done else ""
    return f", {size(rate)}/s{left}"


def size(count: float) -> str:
    """Returns a count of bytes for people: "9.6 GiB", "52 MiB", "0.3 MiB"."""
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    return f"{count / _MIB:.0f} MiB" if count >= 10 * _MIB else f"{count / _MIB:.1f} MiB"

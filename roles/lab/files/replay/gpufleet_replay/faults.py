# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The faults that a test asks for, and the failures that an engine meets by itself."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import re
from typing import Any

from . import wording
from .settings import Settings

_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|==|<|>)\s*([\d.]+)\s*$")
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_KEYS = (
    "fault",
    "phase",
    "when",
    "release",
    "node_rank",
    "rank",
    "starts",
    "after_seconds",
    "after_requests",
    "exit_code",
)


class Failure(Exception):
    """The engine ends. name: one of faults.json; figures: what its text says; rank: which worker meets it first."""

    def __init__(self, name: str, rank: int | None = None, exit_code: int | None = None, **figures: Any) -> None:
        super().__init__(name)
        self.name = name
        self.rank = rank
        self.exit_code = exit_code
        self.figures = figures


def known() -> dict[str, dict[str, Any]]:
    """Returns every fault by its name."""
    return wording.data("faults")["faults"]


def text(name: str, release: str, figures: dict[str, Any], key: str = "error") -> str:
    """Returns what the exception of a fault says in that release."""
    entries = known()[name][key]
    if isinstance(entries, str):
        entries = wording.data("faults")["texts"][entries]
    return wording.of_release(entries, release)[0].format(**figures)


class Faults:
    """The faults of one start. config: the arguments with their defaults, which conditions compare."""

    def __init__(self, settings: Settings, config: dict[str, Any]) -> None:
        self._settings = settings
        self._config = config
        self._starts = _count_start(settings)

    def due(self, phase: str) -> list[dict[str, Any]]:
        """Returns the faults that are asked for in this phase and whose conditions hold, with defaults filled in."""
        return [fault for fault in map(self._complete, self._settings.faults) if self._holds(fault, phase)]

    def _complete(self, fault: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(set(fault) - set(_KEYS))
        if unknown or fault.get("fault") not in known():
            raise ValueError(
                f"replay: {fault} is no fault. Keys: {', '.join(_KEYS)}; faults: {', '.join(sorted(known()))}"
            )
        late = "after_seconds" in fault or "after_requests" in fault
        return {"phase": "serving" if late else known()[fault["fault"]]["phase"], **fault}

    def _holds(self, fault: dict[str, Any], phase: str) -> bool:
        if fault["phase"] != phase or fault.get("node_rank", self._config["node_rank"]) != self._config["node_rank"]:
            return False
        if self._starts > fault.get("starts", self._starts):
            return False
        release = str(self._settings["release"]).lstrip("v")
        if str(fault.get("release", release)).lstrip("v") != release:
            return False
        return all(self._compare(condition) for condition in str(fault.get("when") or "").split(" and ") if condition)

    def _compare(self, condition: str) -> bool:
        match = _CONDITION.match(condition)
        if match is None or match.group(1) not in self._config:
            raise ValueError(
                f"replay: cannot read the condition {condition!r}. Write one such as max_num_seqs > 64, of "
                f"{', '.join(sorted(self._config))}"
            )
        return _COMPARE[match.group(2)](float(self._config[match.group(1)]), float(match.group(3)))


def _count_start(settings: Settings) -> int:
    """Returns which start this is with these faults, counted over containers in the directory that they share."""
    asked = settings.faults
    if not any("starts" in fault for fault in asked):
        return 1
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    path = os.path.join(os.path.expanduser(settings["state_directory"]), f"replay-starts-{digest}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="utf-8") as stream:
        stream.write("x")
        return stream.tell()

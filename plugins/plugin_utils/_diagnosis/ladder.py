# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ordered next change for a class of failure. Private to the collection. The order is in ladder.yml."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .change import propose

Row = dict[str, Any]

_MAX_STEPS = 8
# The right value is a figure in the line that the finding gives as evidence.
_FROM_THE_LOG = ("estimated_max_model_len", "utilization_of_free_memory")


@cache
def _ladders() -> dict[str, list[dict[str, Any]]]:
    loaded: dict[str, list[dict[str, Any]]] = yaml.safe_load(
        (Path(__file__).parent / "ladder.yml").read_text(encoding="utf-8")
    )
    return loaded


def ladder(
    findings: list[dict[str, Any]],
    context: dict[str, Any] | None = None,
    ledger: list[Row] | None = None,
    max_steps: int = _MAX_STEPS,
) -> dict[str, Any]:
    """Returns the next single change to try after a failed start.

    findings: what diagnose told of the last start. context: as for diagnose; the pins of its instance, or its plan, are
    what the last start ran with. ledger: the changes tried so far, oldest first, each {"variable", "from", "to"}.
    Returns {"class", "change": {"variable", "from", "to"} or None, "why", "probe", "step", "steps_left", "verdict"}.
    verdict is "try" while there is a change, "exhausted" when nothing on the ladder is left, "look" for a class that no
    change of a variable helps.
    """
    tried = ledger or []
    if not findings:
        return _end("look", None, "There is no finding to act on.", len(tried), max_steps)
    finding = findings[0]
    failure_class = finding["class"]
    if len(tried) >= max_steps:
        return _end("exhausted", failure_class, f"{max_steps} changes were tried.", len(tried), max_steps)
    for rung in _rungs(finding, context or {}):
        change = _change(rung, finding, context or {})
        if change and _may_be_climbed(rung, change, tried):
            return {
                "class": failure_class,
                "change": change,
                "why": rung["why"],
                "probe": rung.get("probe", False),
                "step": len(tried) + 1,
                "steps_left": max_steps - len(tried) - 1,
                "verdict": "try",
            }
    if failure_class in _ladders():
        needs = "; ".join((context or {}).get("plan", {}).get("needs") or []) or "more or larger GPUs"
        return _end("exhausted", failure_class, f"No change helps. Needed: {needs}.", len(tried), max_steps)
    return _end("look", failure_class, finding["explanation"], len(tried), max_steps)


def _rungs(finding: dict[str, Any], context: dict[str, Any]) -> list[dict[str, Any]]:
    """The ladder of the class; of a class without one, the change that the finding itself proposes."""
    prefer = ((context.get("instance") or {}).get("workload") or {}).get("prefer")
    if finding["class"] in _ladders():
        return [rung for rung in _ladders()[finding["class"]] if rung.get("prefer") in (None, prefer)]
    change = finding.get("change")
    return [{**change, "why": finding["explanation"]}] if change else []


def _change(rung: dict[str, Any], finding: dict[str, Any], context: dict[str, Any]) -> dict[str, Any] | None:
    proposed = finding.get("change")
    if rung.get("propose") in _FROM_THE_LOG:
        return dict(proposed) if proposed and proposed["variable"] == rung["variable"] else None
    change = propose(rung, {}, context)
    return change if change and change["from"] != change["to"] else None


def _may_be_climbed(rung: dict[str, Any], change: dict[str, Any], tried: list[Row]) -> bool:
    climbed = Counter(row["variable"] for row in tried)[change["variable"]]
    seen = any((row["variable"], row["to"]) == (change["variable"], change["to"]) for row in tried)
    return not seen and climbed < rung.get("times", 1)


def _end(verdict: str, failure_class: str | None, why: str, step: int, max_steps: int) -> dict[str, Any]:
    return {
        "class": failure_class,
        "change": None,
        "why": why,
        "probe": False,
        "step": step,
        "steps_left": max(0, max_steps - step),
        "verdict": verdict,
    }

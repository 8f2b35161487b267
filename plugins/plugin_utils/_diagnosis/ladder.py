# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ordered next change for a class of failure. Private to the collection. The order is in ladder.yml.

A climb is a series of starts, each with one change more than the one before, and each a row of the ledger. What the
first plan chose is held, as a plan anew would move other values, too. Changes of memory add up; one that the plan
refuses is taken back. A switch (another kernel, another way to communicate) that did not help is taken back, so that an
engine that serves in the end has only changes that it needs. A probe shows where the trouble is and is taken back in
any case.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .change import current_value, largest_utilization, propose
from .signatures import signatures

Change = dict[str, Any]
Context = dict[str, Any]
Finding = dict[str, Any]
Row = dict[str, Any]
Rung = dict[str, Any]

_MAX_STEPS = 8
_MAX_MINUTES = 60.0
# What a plan chooses with an eye on the others.
_HELD = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
)
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
# The right value is a figure in the line that the finding gives as evidence.
_FROM_THE_LOG = ("estimated_max_model_len", "utilization_of_free_memory")
_KV_NEED = re.compile(
    r"(?P<needed>[\d.]+) GiB KV cache is needed.*?available KV cache memory \((?P<available>[\d.]+) GiB\)"
)


@cache
def _ladders() -> dict[str, list[Rung]]:
    loaded: dict[str, list[Rung]] = yaml.safe_load((Path(__file__).parent / "ladder.yml").read_text(encoding="utf-8"))
    return loaded


@cache
def _ladder_names() -> dict[tuple[str, str], str]:
    """The ladders of findings that have one of their own within their class."""
    return {(one.failure_class, one.title): one.ladder for one in signatures() if one.ladder}


@cache
def _switches() -> frozenset[str]:
    return frozenset(rung["variable"] for rungs in _ladders().values() for rung in rungs if rung.get("switch"))


def ladder(
    findings: list[Finding],
    context: Context | None = None,
    ledger: list[Row] | None = None,
    max_steps: int = _MAX_STEPS,
    max_minutes: float = _MAX_MINUTES,
    serves: bool = False,
) -> dict[str, Any]:
    """Returns the next single change to try after a start.

    findings: what diagnose told of the last start; serves: whether that start serves. context: as for diagnose; the
    pins of its instance, or its plan, are what the last start ran with. ledger: the rows of this climb, oldest first,
    each {"variable", "from", "to"} and, from ladder_row, {"class", "probe", "outcome", "kept", "minutes"}.
    Returns {"class", "change": {"variable", "from", "to"} or None, "why", "probe", "step", "steps_left",
    "minutes_left", "changes": every change that the next start has, by variable, "held": what it has beside them, as
    the last start had it, "proven": both, for the inventory, "needs": hardware that would help, "verdict"}.
    verdict is "try" while there is a change, "serves" when there is nothing left to do, "exhausted" when nothing on the
    ladder is left or the bounds are reached, "look" for a class that no change of a variable helps.
    """
    climb = _Climb(findings, context or {}, ledger or [], max_steps, max_minutes, serves)
    if serves and not climb.after_probe:
        return climb.end("serves", "The engine serves.")
    if not findings and not climb.after_probe:
        return climb.end("look", "There is no finding to act on.")
    if climb.out_of_bounds:
        return climb.settled() or climb.end("exhausted", climb.out_of_bounds)
    for rung in climb.rungs():
        change = climb.change(rung)
        if change and climb.may_try(rung, change):
            return climb.step(rung, change)
    return climb.settled() or climb.top()


def ladder_row(step: dict[str, Any], outcome: str, minutes: float, findings: list[Finding] | None = None) -> Row:
    """Returns the row of the ledger for a step that was tried.

    step: what ladder returned. outcome: serves, failed, or refused (by the plan: nothing was started). minutes: how
    long the start took. findings: of that start. "kept" says whether the change stays in the next start.
    """
    if outcome == "refused":
        findings = [{"class": step["class"], "title": "the plan refuses it"}]
    new_class = findings[0]["class"] if findings else None
    helped = outcome == "serves" or (new_class is not None and new_class != step["class"])
    lasting = outcome != "refused" and not step["probe"]
    kept = lasting and (helped or step["change"]["variable"] not in _switches())
    return {
        "step": step["step"],
        "class": step["class"],
        **step["change"],
        "why": step["why"],
        "probe": step["probe"],
        "outcome": outcome,
        "kept": kept,
        "minutes": round(minutes, 1),
        "finding": findings[0]["title"] if findings else None,
    }


class _Climb:
    """What is known at one moment between two starts."""

    def __init__(
        self,
        findings: list[Finding],
        context: Context,
        ledger: list[Row],
        max_steps: int,
        max_minutes: float,
        serves: bool,
    ) -> None:
        self.context, self.ledger = context, ledger
        last = ledger[-1] if ledger else {}
        self.after_probe = bool(serves and last.get("probe"))
        # A probe that serves says nothing of the class: it is still the one that was probed for.
        self.finding: Finding = findings[0] if findings and not serves else {"class": last.get("class"), "change": None}
        self.failure_class = self.finding["class"]
        self.steps_left = max(0, max_steps - len(ledger))
        self.minutes_left = max(0.0, max_minutes - sum(row.get("minutes") or 0 for row in ledger))
        self.out_of_bounds = (
            f"{max_steps} changes were tried."
            if not self.steps_left
            else f"The {max_minutes:g} minutes are over."
            if not self.minutes_left
            else ""
        )

    def rungs(self) -> list[Rung]:
        """The ladder of the finding; of a class without one, the change that the finding itself proposes."""
        name = _ladder_names().get((self.failure_class, self.finding.get("title", "")), self.failure_class)
        prefer = ((self.context.get("instance") or {}).get("workload") or {}).get("prefer")
        own = self.finding.get("change")
        if name not in _ladders():
            return [{**own, "why": self.finding["explanation"]}] if own else []
        rungs = [rung for rung in _ladders()[name] if rung.get("prefer") in (None, prefer)]
        # The line of the failure may name the very kernel: its rung comes first.
        line = str((self.finding.get("evidence") or {}).get("line", ""))
        named = [rung for rung in rungs if "named" in rung and re.search(rung["named"], line, re.IGNORECASE)]
        return [*named, *(rung for rung in rungs if rung not in named)]

    def change(self, rung: Rung) -> Change | None:
        own = self.finding.get("change")
        if rung.get("propose") in _FROM_THE_LOG:
            return dict(own) if own and own["variable"] == rung["variable"] else None
        change = propose(rung, {}, self.context)
        return change if change and change["from"] != change["to"] else None

    def may_try(self, rung: Rung, change: Change) -> bool:
        climbed = Counter(row["variable"] for row in self.ledger)[change["variable"]]
        # What a climb began with has failed, too.
        seen = any(
            row["variable"] == change["variable"] and change["to"] in (row["from"], row["to"]) for row in self.ledger
        )
        return not seen and climbed < rung.get("times", 1)

    def kept(self) -> dict[str, Any]:
        """The changes so far that the next start still has."""
        return {
            row["variable"]: row["to"]
            for row in self.ledger
            if row.get("kept", not row.get("probe") and row["variable"] not in _switches())
        }

    def held(self, change: Change | None = None) -> dict[str, Any]:
        """What the last plan chose. Memory is chosen anew only where a change takes in GPUs that have less free."""
        plan = self.context.get("plan") or {}
        if not plan:
            return {}
        chosen = {name: current_value(f"engine_args.{name}", self.context) for name in _HELD}
        chosen["max_model_len"] = chosen["max_model_len"] or (plan.get("kv") or {}).get("max_model_len")
        for name in _PARALLEL:
            chosen[name] = (plan.get("parallel") or {}).get(name) or chosen[name]
        changed = (change or {}).get("variable", "").partition(".")[2]
        if chosen["kv_cache_memory_bytes"] or (
            changed in _PARALLEL
            and largest_utilization({**self.context, "plan": None}) < (chosen["gpu_memory_utilization"] or 0)
        ):
            del chosen["gpu_memory_utilization"]
        return {f"engine_args.{name}": value for name, value in chosen.items() if value is not None and name != changed}

    def worth_saying(self) -> dict[str, Any]:
        """What is held, without that one card and one stage are one."""
        return {name: value for name, value in self.held().items() if value != 1 or not name.endswith("_parallel_size")}

    def step(self, rung: Rung, change: Change) -> dict[str, Any]:
        return {
            "class": self.failure_class,
            "change": change,
            "why": rung["why"],
            "probe": bool(rung.get("probe", False)),
            "step": len(self.ledger) + 1,
            "steps_left": self.steps_left - 1,
            "minutes_left": round(self.minutes_left, 1),
            "changes": {**self.kept(), change["variable"]: change["to"]},
            "held": self.held(change),
            "proven": {},
            "needs": [],
            "verdict": "try",
        }

    def settled(self) -> dict[str, Any] | None:
        """Where nothing better was found than a probe that serves, that is what stays."""
        probe = next((row for row in self.ledger if row.get("probe") and row.get("outcome") == "serves"), None)
        if probe is None:
            return None
        change = {name: probe[name] for name in ("variable", "from", "to")}
        rung = {"why": "Nothing else helped, and with this the engine serves, if slower."}
        return {**self.step(rung, change), "steps_left": self.steps_left}

    def top(self) -> dict[str, Any]:
        if self.failure_class not in _ladders():
            return self.end("look", self.finding["explanation"])
        return self.end("exhausted", f"No change helps. Needed: {'; '.join(self.needs())}.")

    def needs(self) -> list[str]:
        """The hardware that would help: the plan knows best; else what the line of the failure tells."""
        planned = (self.context.get("plan") or {}).get("needs") or []
        hardware = [need for need in map(str, planned) if "GPU" in need and "no pin" not in need]
        if hardware:
            return hardware
        match = _KV_NEED.search(str((self.finding.get("evidence") or {}).get("line", "")))
        if match:
            missing = math.ceil(10 * (float(match["needed"]) - float(match["available"]))) / 10
            return [f"{missing:.1f} GiB more KV cache on each GPU: a larger GPU, or more of them"]
        return ["more or larger GPUs"] if self.failure_class in _MEMORY else ["another host, GPU or release"]

    def end(self, verdict: str, why: str) -> dict[str, Any]:
        return {
            "class": self.failure_class,
            "change": None,
            "why": why,
            "probe": False,
            "step": len(self.ledger),
            "steps_left": self.steps_left,
            "minutes_left": round(self.minutes_left, 1),
            "changes": self.kept(),
            "held": self.held(),
            "proven": {**self.worth_saying(), **self.kept()} if verdict == "serves" else {},
            "needs": self.needs() if verdict == "exhausted" else [],
            "verdict": verdict,
        }


_MEMORY = ("oom_weights", "oom_kv_cache", "max_model_len_exceeds_kv", "oom_runtime", "oom_cudagraph")

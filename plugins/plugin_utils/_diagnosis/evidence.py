# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What evidence_info collected, diagnosed. Private to the collection."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from .diagnose import diagnose
from .serving import diagnose_serving

Diagnosis = dict[str, Any]
Finding = dict[str, Any]

_JOURNAL = "the journal of the current start"


def diagnose_evidence(evidence: dict[str, Any], context: dict[str, Any] | None = None, host: str = "") -> Diagnosis:
    """Returns what is wrong with one instance on one host now, and how it failed before.

    evidence: what evidence_info returned. context: as for diagnose; the plan is taken from the evidence where context
    has none. Returns {"host", "instance", "state", "findings", "source": the log in which the line numbers count,
    "earlier": the last archived failure as {"number", "time", "what", "title"} or None, "errors"}.
    """
    known = {"plan": _json(evidence["files"].get("plan.json")), "unit": evidence["unit"], **(context or {})}
    known.update(phase=evidence["phase"], request=evidence["request"])
    earlier = _earlier(evidence, known)
    if earlier and not _runs(evidence):
        known["oom_killed"] = earlier["oom_killed"]
    findings, source = _now(evidence, known)
    if not findings and earlier and not _runs(evidence):
        findings, source = earlier["findings"], f"failures/{earlier['number']}/log"
    return {
        "host": host,
        "instance": evidence["name"],
        "state": _state(evidence),
        "findings": findings,
        "source": source,
        "earlier": {name: earlier[name] for name in ("number", "time", "what", "title")} if earlier else None,
        "errors": evidence["errors"],
    }


def diagnose_log(log: str, context: dict[str, Any] | None = None, source: str = "the log") -> Diagnosis:
    """The same of a log that somebody pasted, without any host."""
    findings = diagnose(log, context)
    return {
        "host": "",
        "instance": (context or {}).get("instance", {}).get("name", ""),
        "state": "",
        "findings": findings,
        "source": source,
        "earlier": None,
        "errors": [],
    }


def _now(evidence: dict[str, Any], known: dict[str, Any]) -> tuple[list[Finding], str]:
    findings = diagnose(evidence["log"], known)
    if _runs(evidence):
        slow = diagnose_serving(evidence["samples"], evidence["log"], known)
        findings = sorted([*slow, *findings], key=lambda finding: -finding["confidence"])
    return findings, _JOURNAL


def _earlier(evidence: dict[str, Any], known: dict[str, Any]) -> dict[str, Any] | None:
    """The newest archived failure, with what its own plan and its own end say."""
    if not evidence["failures"]:
        return None
    newest = evidence["failures"][0]
    files = newest["files"]
    told = _json(files.get("failure.json"))
    ended = {"name": evidence["unit"]["name"], "result": "oom-kill" if told.get("oom_killed") else told.get("result")}
    # What the GPUs hold now says nothing of what they held then.
    context = {name: value for name, value in known.items() if name != "hosts"}
    context = {**context, "plan": _json(files.get("plan.json")), "unit": ended, "oom_killed": told.get("oom_killed")}
    findings = diagnose(files.get("log", ""), context)
    return {
        "oom_killed": told.get("oom_killed"),
        "number": newest["number"],
        "time": told.get("time", ""),
        "what": told.get("what", ""),
        "title": findings[0]["title"] if findings else "its log does not say why",
        "findings": findings,
    }


def _runs(evidence: dict[str, Any]) -> bool:
    return bool(evidence["unit"]["active_state"] == "active" and evidence["phase"] != "failed")


def _state(evidence: dict[str, Any]) -> str:
    unit = evidence["unit"]
    if unit["load_state"] == "not-found":
        return "not deployed"
    if unit["sub_state"] == "auto-restart":
        return f"restarting ({unit['n_restarts']} times)" if unit["n_restarts"] else "restarting"
    return str(evidence["phase"])


def _json(text: str | None) -> dict[str, Any]:
    """A file that is missing or no JSON object has nothing to tell."""
    with contextlib.suppress(ValueError):
        loaded = json.loads(text or "{}")
        return loaded if isinstance(loaded, dict) else {}
    return {}

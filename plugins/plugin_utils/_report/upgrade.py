# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrade reports of a fleet in words; what is found for several instances is said once. Private to gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .columns import table, wrap
from .words import count, named

SECTIONS = {
    "blocker": "Would not start",
    "change": "Would start, and something changes",
    "notice": "Good to know",
}
WORDS = {"blocked": "blocked", "attention": "in need of attention", "ready": "ready"}

MOST_NAMES_OF_A_ROW = 4
MOST_NAMES = 8
"""Of longer lists only so many names are printed; all of them are in the report itself, under changes."""

Finding = tuple[str, str, str]


def explain_upgrade(reports: Sequence[Mapping[str, Any]]) -> str:
    """The verdict and a table of the instances first, then each finding once, with the instances that it is about."""
    found = _gather(reports)
    blocks = ["\n".join([*wrap(_headline(reports)), "", *_table(reports)])]
    blocks += [_section(severity, found, len(reports)) for severity in SECTIONS]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(reports: Sequence[Mapping[str, Any]]) -> str:
    verdicts = [report["verdict"] for report in reports]
    counted = ", ".join(f"{verdicts.count(verdict)} {words}" for verdict, words in WORDS.items())
    targets = ", ".join(dict.fromkeys(report["to"] for report in reports))
    return f"Upgrade to vLLM {targets}: {count(len(reports), 'instance')}: {counted}"


def _table(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [("", "instance", "from", "on", "KV cache, tokens")]
    rows += [
        (
            report["verdict"],
            str(report["instance"]),
            report["from"],
            named(list(report.get("hosts") or ()), MOST_NAMES_OF_A_ROW),
            _cache(report),
        )
        for report in sorted(reports, key=lambda report: list(WORDS).index(report["verdict"]))
    ]
    yield from table(rows)


def _cache(report: Mapping[str, Any]) -> str:
    memory = report.get("memory")
    if not memory:
        return ""
    now, then = (_tokens(memory[when]) for when in ("now", "then"))
    return now if now == then else f"{now} -> {then}"


def _tokens(memory: Mapping[str, Any]) -> str:
    if memory["verdict"] not in ("fits", "fits_reduced"):
        return memory["verdict"].replace("_", " ")
    return f"{memory['tokens']:,}" if memory["tokens"] else "none"


def _gather(reports: Sequence[Mapping[str, Any]]) -> dict[Finding, list[str]]:
    """Each finding with its instances; no host in front of its subject, and routes of one kind together."""
    found: dict[Finding, list[str]] = {}
    for report in reports:
        hosts = report.get("hosts") or []
        who = f"{report['instance']}" + (f" on {', '.join(hosts)}" if hosts else "")
        for finding in _merged_routes(report["findings"]):
            subject = finding["subject"]
            for host in hosts:
                subject = subject.removeprefix(f"{host}: ")
            names = found.setdefault((finding["severity"], subject, _short(subject, finding["message"])), [])
            if who not in names:
                names.append(who)
    return found


def _merged_routes(findings: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    routes: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        kind, _colon, route = finding["subject"].partition(": ")
        if kind == "route":
            routes.setdefault((finding["severity"], finding["message"]), []).append(route)
        else:
            yield finding
    for (severity, message), several in routes.items():
        yield {"severity": severity, "subject": "routes", "message": f"{', '.join(several)}: {message}"}


def _short(subject: str, message: str) -> str:
    names = message.split(", ")
    if not subject.startswith("architectures") or len(names) <= MOST_NAMES:
        return message
    return f"{len(names)}, such as {', '.join(names[:MOST_NAMES])}"


def _section(severity: str, found: Mapping[Finding, Sequence[str]], instances: int) -> str:
    lines = []
    for (level, subject, message), who in found.items():
        if level == severity:
            lines += wrap(f"* {subject}: {message}", "  ", "    ")
            if severity != "notice" or len(who) < instances:
                lines += wrap(f"all {instances} instances" if len(who) == instances > 1 else "; ".join(who), "      ")
    return "\n".join([SECTIONS[severity], *lines]) if lines else ""

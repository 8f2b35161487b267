# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings for people: a table first, then each with its line and its one change. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...module_utils._boot_log_lines import plain, split_prefix
from .._report.columns import WIDTH, table, wrap

Diagnosis = dict[str, Any]
Finding = dict[str, Any]

_HEADINGS = ("HOST", "INSTANCE", "STATE", "CAUSE", "CHANGE")
_MORE = 3
_LONGEST_EVIDENCE = 400


def explain_diagnoses(diagnoses: list[Diagnosis], bundle: str = "", commands: list[str] | None = None) -> str:
    """Returns the text, of at most 100 columns. commands: what to type next, the last lines of the text."""
    lines = list(_table(diagnoses))
    for diagnosis in diagnoses:
        lines += ["", *_details(diagnosis)]
    if bundle:
        lines += ["", *wrap(f"For support, without secrets and names of users: {bundle}")]
    if commands:
        lines += ["", "Next:", *(f"  {command}" for command in commands)]
    return "\n".join(lines)


def change_text(change: dict[str, Any] | None, instance: str) -> str:
    """The change in the words of the inventory: vllm_instances[chat].engine_args.max_num_seqs: 256 -> 128."""
    if change is None:
        return "none"
    variable = f"vllm_instances[{instance or 'NAME'}].{change['variable']}"
    if change["to"] is None:
        return f"{variable}: take it out (now {_value(change['from'])})"
    before = f"{_value(change['from'])} -> " if change["from"] is not None else ""
    return f"{variable}: {before}{_value(change['to'])}"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(diagnoses: list[Diagnosis]) -> Iterator[str]:
    if not diagnoses:
        yield "There is no instance to diagnose."
        return
    rows = [
        (one["host"] or "-", one["instance"] or "-", one["state"] or "-", _cause(one), _short_change(one))
        for one in diagnoses
    ]
    yield from table([_HEADINGS, *rows], indent="", most=26)


def _cause(diagnosis: Diagnosis) -> str:
    if not diagnosis["findings"]:
        return "nothing found"
    first = diagnosis["findings"][0]
    return first["title"] if first["class"] == "other" else first["class"]


def _short_change(diagnosis: Diagnosis) -> str:
    change = diagnosis["findings"][0]["change"] if diagnosis["findings"] else None
    if not change:
        return "-" if not diagnosis["findings"] else "none; see below"
    after = "out" if change["to"] is None else _value(change["to"])
    before = f"{_value(change['from'])} -> " if change["from"] is not None and change["to"] is not None else ""
    return f"{change['variable']}: {before}{after}"


def _details(diagnosis: Diagnosis) -> Iterator[str]:
    where = " ".join(part for part in (diagnosis["host"], diagnosis["instance"]) if part) or "The log"
    findings = diagnosis["findings"]
    if not findings:
        yield from wrap(f"{where}: nothing that is known to go wrong is in {diagnosis['source']}.")
    else:
        yield from _finding(where, findings[0], diagnosis)
        for other in findings[1 : 1 + _MORE]:
            yield from wrap(f"Less probable ({_percent(other)}): {other['title']}. {_evidence(other)}", "  ", "    ")
    if diagnosis["earlier"]:
        earlier = diagnosis["earlier"]
        text = f"Last failure: {earlier['number']}, {earlier['time'] or 'time unknown'}: {earlier['title']}."
        yield from wrap(f"{text} {earlier['what']}".rstrip(), "  ", "    ")
    for error in diagnosis["errors"]:
        yield from wrap(f"Not read: {error}", "  ", "    ")


def _finding(where: str, finding: Finding, diagnosis: Diagnosis) -> Iterator[str]:
    yield from wrap(f"{where}: {finding['title']} ({_percent(finding)})")
    place = f", line {finding['evidence']['line_number']} of {diagnosis['source']}" if _line_number(finding) else ""
    yield from wrap(f"Evidence{place}:", "  ", "    ")
    yield from wrap(_evidence(finding), "    ", "    ")
    yield from wrap(finding["explanation"], "  ", "  ")
    yield from wrap(f"Change: {change_text(finding['change'], diagnosis['instance'])}", "  ", "    ")
    yield from wrap(f"More: {finding['reference']}", "  ", "    ")


def _line_number(finding: Finding) -> int:
    return int(finding["evidence"]["line_number"])


def _evidence(finding: Finding) -> str:
    _prefix, message = split_prefix(plain(finding["evidence"]["line"]))
    return message[:_LONGEST_EVIDENCE] if message else str(finding["evidence"]["line"])[:WIDTH]


def _percent(finding: Finding) -> str:
    return f"{finding['confidence']:.0%} sure"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of the preflight as text, for a terminal of 100 columns of which Ansible indents 8. Private."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH = 92
INDENT = 28
TITLES = {"failed": "FAILED", "warning": "warning", "ok": "ok"}


def table(checks: Sequence[Mapping[str, Any]], host: str) -> str:
    """One row for each check that is not ok, failures first, and the next command at the end."""
    counts = {status: sum(check["status"] == status for check in checks) for status in TITLES}
    blocking = [check for check in checks if check["status"] == "failed" and not check["will_be_fixed"]]
    verdict = (
        "cannot run this"
        if blocking
        else "can run this after what is to be fixed"
        if counts["failed"]
        else "can run this"
    )
    lines = [f"{host} {verdict}: {counts['failed']} failed, {_plural(counts['warning'], 'warning')}, {counts['ok']} ok"]
    order = sorted(
        (check for check in checks if check["status"] != "ok"), key=lambda check: check["status"] != "failed"
    )
    for check in order:
        lines += _row(check)
    if order:
        command = order[0]["next"]
        where = order[0].get("on", host)
        lines.append(f"Next{'' if command.startswith('ansible') else f', on {where}'}: {command}")
    return "\n".join(lines) + "\n"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _row(check: Mapping[str, Any]) -> Iterator[str]:
    title = f"  {TITLES[check['status']]:<9}{check['check']}"
    texts = [f"{check['where']}: {check['what']}"]
    if check["will_be_fixed"]:
        texts.append(f"will be fixed: {check['fixed_by']} is set")
    elif check["fix"]:
        texts.append(f"fix: {check['fix']}")
    for text in texts:
        for line in textwrap.wrap(text, WIDTH - INDENT, break_on_hyphens=False):
            yield f"{title:<{INDENT}}{line}"
            title = ""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of a fleet in a short table, with what to do next. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .columns import WIDTH, table, wrap
from .fleet import Group, by_reason, groups_of, unplanned, verdicts_of, without_instance
from .words import RUNNING, SEVERITY, VERDICTS, Plan, capacity, count, named

NO_PLAN = "NO PLAN"
MOST_NAMES_OF_A_ROW = 4

Row = tuple[str, str, str, str]


def summarize(
    plans: Sequence[Plan],
    hosts: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, Any],
    commands: Mapping[str, str],
) -> str:
    """Host, instance, verdict and first reason, the worst first, equal ones once; then the next commands.

    hosts: what gpu_info returned, by host, empty where it could not be read. failures: what Ansible returned for the
    task that failed, by host. commands: the next `plan`, `deploy` and `reach` (a host), as one types them.
    """
    reasons = unplanned(plans, hosts, failures)
    empty = without_instance(plans, hosts, failures)
    rows = [*_failed_rows(reasons), *_rows(groups_of(plans))]
    rows += [(named(empty, MOST_NAMES_OF_A_ROW), "–", "NOTHING", "vllm_instances is empty there")] if empty else []
    lines = wrap(_headline(plans, hosts, reasons))
    lines += ["", *table([("hosts", "instance", "verdict", "why"), *rows])] if rows else []
    lines += ["", *_next(plans, reasons, bool(empty), commands)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _headline(plans: Sequence[Plan], hosts: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    counted = [f"{VERDICTS[verdict].lower()} {number:,}" for verdict, number in reversed(verdicts_of(plans).items())]
    if reasons:
        counted.append(f"{count(len(reasons), 'host')} without a plan")
    told = f": {', '.join(counted)}" if counted else ""
    return f"SUMMARY: {count(len(plans), 'instance')} on {count(len(hosts), 'host')}{told}"


def _failed_rows(reasons: Mapping[str, str]) -> Iterator[Row]:
    for reason, hosts in by_reason(reasons).items():
        yield named(hosts, MOST_NAMES_OF_A_ROW), "–", NO_PLAN, reason


def _rows(groups: Sequence[Group]) -> Iterator[Row]:
    for verdict in SEVERITY:
        for group in groups:
            if group.verdict == verdict:
                hosts = named(list(dict.fromkeys(group.hosts)), MOST_NAMES_OF_A_ROW)
                yield hosts, group.name, VERDICTS[verdict], _why(group.plan)


def _why(plan: Plan) -> str:
    """The first reason of the verdict: of a plan that runs, what it holds."""
    if plan["verdict"] == "does_not_fit":
        found = [decision["why"] for decision in plan["decisions"] if decision["decision"].startswith("does not fit")]
        return str((found or plan["needs"] or ["see above"])[0])
    if plan["verdict"] == "fits_reduced":
        return str(next((item["decision"] for item in plan["decisions"] if item["step"] == 2), capacity(plan)))
    if plan["verdict"] in RUNNING and plan["kv"].get("tokens"):
        return capacity(plan)
    return str(([*plan["needs"], *plan["warnings"]] or ["see above"])[0])


def _next(plans: Sequence[Plan], reasons: Mapping[str, str], empty: bool, commands: Mapping[str, str]) -> Iterator[str]:
    """What there is to do, each with its command in lines of its own."""
    unreached = [host for host, reason in reasons.items() if reason.startswith("could not be reached")]
    if unreached:
        yield from _step("Next, for the hosts that could not be reached:", commands.get("reach"))
    if len(unreached) < len(reasons) or empty or any(plan["verdict"] not in RUNNING for plan in plans):
        told = "Next, where there is no plan that can run: change the inventory as the table says, and look again:"
        yield from _step(told, commands.get("plan"))
    if any(plan["verdict"] in RUNNING for plan in plans):
        yield from _step("Next, to start what can run:", commands.get("deploy"))


def _step(title: str, command: str | None) -> Iterator[str]:
    """The command can be copied also where it takes several lines."""
    if command:
        lines = wrap(command, "  ", "    ", WIDTH - 2)
        yield from (title, *(f"{line} \\" for line in lines[:-1]), lines[-1])

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan in words and bars, for a terminal of 100 columns. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .columns import WIDTH, wrap
from .difference import Difference, differences, written
from .fleet import groups_of, replicas_told
from .words import (
    DECISIONS,
    RUNNING,
    SOURCES,
    STEPS,
    TERMS,
    VERDICTS,
    Budget,
    Plan,
    alike,
    arguments_title,
    cards_named,
    count,
    decisions_of,
    merged,
    named,
    needs_title,
    summary,
)

BAR = 60
RULE = "\n" + "-" * WIDTH + "\n\n"

Running = Mapping[str, Mapping[str, Plan]]
"""The plans that run now, by host and name of the instance."""


def explain(plans: Sequence[Plan], running: Running | None = None) -> str:
    """Plans as text, equal ones once: the verdict first, then needs, warnings, memory, arguments and decisions.

    running: the plans that run now, to show what would change; None leaves that out.
    """
    changes = [None if running is None else _changes(plan, _runs(plan, running)) for plan in plans]
    told = {id(plan): text for plan, text in zip(plans, changes, strict=True)}
    return RULE.join(
        _explain(group.plan, told[id(group.plan)], _where(group.budgets, replicas_told(group)))
        for group in groups_of(plans, changes)
    )


def explain_others(others: Mapping[str, Sequence[str]], remove: str) -> str:
    """The instances that are on hosts and not in the inventory, by host, and how to remove one; nothing without any."""
    hosts: dict[str, list[str]] = {}
    for host, names in others.items():
        for name in names:
            hosts.setdefault(name, []).append(host)
    if not hosts:
        return ""
    title = "On hosts and not in the inventory: left alone, with the memory and the ports that they hold"
    lines = [f"{name} on {named(where)}" for name, where in sorted(hosts.items())]
    command = f"""  {remove} -e '{{"vllm_remove": ["{min(hosts)}"]}}'"""
    return RULE + "\n".join([_section(title, lines), "", "Next, to remove one:", command]) + "\n"


def _runs(plan: Plan, running: Running) -> Plan | None:
    """The plan that runs now of the same instance; of an engine over several hosts, that of its first."""
    found = (running.get(str(host), {}).get(str(plan.get("name"))) for host in plan.get("hosts") or ())
    return next((runs for runs in found if runs), None)


def _explain(plan: Plan, changes: str | None, where: str) -> str:
    blocks = [
        _headline(plan, where),
        _section(needs_title(plan), merged(plan["needs"], plan["budget"])),
        _section("Warnings", merged(plan["warnings"], plan["budget"])),
        changes or "",
        _memory(plan),
        _arguments(plan),
        _decisions(plan),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _where(budgets: Sequence[Budget], told: str) -> str:
    return f"{told}: {cards_named(budgets)}" if told and budgets else told


def _headline(plan: Plan, where: str) -> str:
    name, release = plan.get("name") or "instance", plan["release"]["version"]
    hosts = "" if plan["devices"] else named(list(map(str, plan.get("hosts") or ())))
    lines = [f"{VERDICTS[plan['verdict']]}: {name} on vLLM {release}" + (f", {hosts}" if hosts else "")]
    lines += [*summary(plan), *([where] if where else [])]
    return "\n".join(line for text in lines for line in wrap(text, "", "  "))


def _section(title: str, items: Iterable[str]) -> str:
    lines = [line for item in items for line in wrap(item, "  * ", "    ")]
    return "\n".join([title, *lines]) if lines else ""


def _changes(plan: Plan, runs: Plan | None) -> str:
    """What a deployment would change. A plan holds no API key, so a changed one cannot be seen, which is said."""
    if plan["verdict"] not in RUNNING:
        return "Against what runs\n  " + ("It stays as it is: nothing is deployed." if runs else "Not deployed yet.")
    if runs is None:
        return "Against what runs\n  Not deployed yet."
    found = differences(runs, plan)
    if not found:
        lines = ["Against what runs", "  The same. A deployment would not restart the engine."]
        lines += wrap("A changed API key would: keys are not read for a plan, so it cannot be seen here.", "  ")
        return "\n".join(lines)
    lines = [f"Against what runs: {count(len(found), 'difference')}. A deployment would restart the engine."]
    lines += _difference_table(found)
    before, after = runs.get("kv", {}).get("tokens"), plan["kv"].get("tokens")
    if before and after:
        lines.append(f"  KV cache: {before:,} tokens as it runs, {after:,} as planned")
    return "\n".join(lines)


def _difference_table(found: Sequence[Difference]) -> Iterator[str]:
    rows = [("", "runs", "planned"), *((item.name, item.running, item.planned) for item in found)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, running, planned in rows:
        line = f"  {name:<{first}}  {running:<{second}}  {planned}"
        if len(line) <= WIDTH and line.isascii():
            yield line.rstrip()
        else:
            yield from wrap(name, "  ", "      ")
            yield from (*wrap(running, "      runs:    ", " " * 15), *wrap(planned, "      planned: ", " " * 15))


def _memory(plan: Plan) -> str:
    if not plan["budget"]:
        return ""
    lines = ["Memory of each card in GiB: expected, between, known as"]
    for cards, budget in alike(plan["budget"]):
        stage = f", stage {budget['stage']} with layers {budget['layers']}" if "stage" in budget else ""
        lines += ["", *wrap(f"{cards_named(cards)}: {budget['name']}{stage}", "  "), f"  [{card_bar(budget)}]"]
        lines += _terms(budget)
    terms = [budget[key] for budget in plan["budget"] for key, _letter, _title in TERMS]
    sources = {term["source"] for term in terms if term["value"]}
    lines += ["", *wrap("; ".join(f"{source}: {SOURCES[source]}" for source in SOURCES if source in sources), "  ")]
    return "\n".join(lines)


def card_bar(budget: Budget, width: int = BAR) -> str:
    """One card as a row of letters, one for each part; '.' is free. Parts that are there have a letter at least.

    Where the parts are more than the card, all of them are shown, and '|' is the end of the card.
    """
    sizes = [(letter, max(0.0, budget[key]["value"])) for key, letter, _title in TERMS]
    whole = budget["total_gib"]["value"] or 1.0
    longest = max(whole, sum(size for _letter, size in sizes))
    cells = "".join(
        letter * max(round(size / longest * width), 1 if size / longest > 0.001 else 0) for letter, size in sizes
    )
    if longest > whole:
        end = int(whole / longest * width)
        return f"{cells[:end]}|{cells[end : width - 1]}"
    return cells[:width].ljust(width, ".")


def _terms(budget: Budget) -> Iterator[str]:
    total, free = budget["total_gib"]["value"], budget["free_gib"]["value"]
    yield f"    {'card':<14}{total:>9.2f}   {free:.2f} of it free before the start"
    yield f"    {'for vLLM':<14}{budget['requested_gib']['value']:>9.2f}"
    for key, letter, title in (*TERMS, ("headroom_gib", ".", "left free")):
        term = budget[key]
        if key == "others_gib" and not term["value"]:
            continue
        low, high = f"{term['low']:.2f}", f"{term['high']:.2f}"
        between = f"{low} to {high}" if low != high else ""
        yield f"  {letter} {title:<14}{term['value']:>9.2f}   {between:<18}{term['source']}".rstrip()


def _arguments(plan: Plan) -> str:
    lines = []
    for argument in plan["arguments"]:
        lines += wrap(f"{argument['name']} = {written(argument['value'])}", "  ", "    ")
        lines += _reason(argument)
    return "\n".join([arguments_title(plan), *lines]) if lines else ""


def _decisions(plan: Plan) -> str:
    lines, step = [], None
    for decision in decisions_of(plan):
        if decision["step"] != step:
            step = decision["step"]
            lines.append(f"  {STEPS.get(step, 'Given')}")
        lines += wrap(decision["decision"], "    ")
        lines += _reason(decision)
    return "\n".join([DECISIONS, *lines]) if lines else ""


def _reason(choice: Mapping[str, Any]) -> list[str]:
    return [
        *wrap(str(choice["why"]), "      why:  ", "            "),
        *wrap(str(choice["cost"]), "      cost: ", "            "),
    ]

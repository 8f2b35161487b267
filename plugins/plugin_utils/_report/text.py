# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan in words and bars, for a terminal of 100 columns. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .difference import Difference, differences, written

WIDTH = 100
BAR = 60

VERDICTS = {
    "fits": "FITS",
    "fits_reduced": "FITS REDUCED",
    "does_not_fit": "DOES NOT FIT",
    "unsupported": "UNSUPPORTED",
}

TERMS = (
    ("others_gib", "x", "others"),
    ("weights_gib", "W", "weights"),
    ("activation_gib", "a", "activation"),
    ("non_torch_gib", "n", "non-torch"),
    ("cuda_graph_gib", "g", "CUDA graphs"),
    ("kv_pool_gib", "K", "KV pool"),
)

STEPS = {1: "Fit the model", 2: "Length to the load", 3: "Leave room", 4: "Batch last", 0: "Given"}

NEEDS = {"unsupported": "Rules that are broken", "does_not_fit": "What would make it fit"}


def explain(plan: Mapping[str, Any], running: Mapping[str, Any] | None = None) -> str:
    """The plan as text: the verdict first, then needs, warnings, memory, arguments and decisions.

    running: the plans that run now by name of the instance, to show what would change; None leaves that out.
    """
    blocks = [
        _headline(plan),
        _section(needs_title(plan), plan["needs"]),
        _section("Warnings", plan["warnings"]),
        "" if running is None else _changes(plan, running.get(str(plan.get("name")))),
        _memory(plan),
        _arguments(plan),
        _decisions(plan),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def needs_title(plan: Mapping[str, Any]) -> str:
    return NEEDS.get(plan["verdict"], "What would keep the whole promise")


def _headline(plan: Mapping[str, Any]) -> str:
    name, release = plan.get("name") or "instance", plan["release"]["version"]
    where = "" if plan["devices"] else ", ".join(plan.get("hosts") or ())
    lines = [f"{VERDICTS[plan['verdict']]}: {name} on vLLM {release}" + (f", {where}" if where else "")]
    lines += summary(plan)
    return "\n".join(line for text in lines for line in wrap(text))


def summary(plan: Mapping[str, Any]) -> list[str]:
    """The plan in three plain sentences at most: where it runs, what it serves, what its KV cache holds."""
    return [*_place(plan), *_service(plan), *_cache(plan["kv"])]


def _place(plan: Mapping[str, Any]) -> Iterator[str]:
    parallel, budget = plan["parallel"], plan["budget"]
    if not parallel or not budget:
        return
    cards = [f"{item['host']} GPU {item['gpu']}" for item in budget]
    kinds = ", ".join(dict.fromkeys(item["name"] for item in budget))
    sizes = (("tensor parallel", "tensor_parallel_size"), ("pipeline parallel", "pipeline_parallel_size"))
    how = " and ".join(f"{words} {parallel[size]}" for words, size in sizes if parallel[size] > 1)
    divided = f"; divided by {how}" if how else ""
    if plan["verdict"] == "does_not_fit":
        yield f"{count(len(cards), 'GPU')} ({kinds}) tried on {', '.join(plan['devices'])}: not enough{divided}"
    else:
        yield f"Runs on {', '.join(cards)} ({kinds}){divided}"


def _service(plan: Mapping[str, Any]) -> Iterator[str]:
    kv, workload = plan["kv"], plan["workload"]
    if not kv.get("tokens") or plan["verdict"] not in ("fits", "fits_reduced"):
        return
    least, expected = int(kv["max_concurrency_low"]), kv["max_concurrency"]
    yield (
        f"Holds {count(least, 'request')} of {kv['max_model_len']:,} tokens at once: {expected:,.2f}"
        f"{between(kv, 'max_concurrency', ',.2f')}"
    )
    if not workload.get("sequences"):
        return
    verb = "Planned for" if plan["verdict"] == "fits" else "Reduced to"
    typical, most = workload.get("typical_context"), workload["context"]
    several = count(workload["sequences"], "request")
    if typical and typical < most:
        yield f"{verb} {several} at once of {typical:,} tokens each, and one of {most:,}"
    else:
        yield f"{verb} {several} at once of {most:,} tokens each"


def _cache(kv: Mapping[str, Any]) -> Iterator[str]:
    if kv.get("tokens"):
        yield (
            f"KV cache: {kv['tokens']:,} tokens{between(kv, 'tokens', ',')}, "
            f"{kv['bytes_per_token']:,} bytes a token and GPU"
        )


def between(kv: Mapping[str, Any], figure: str, form: str) -> str:
    """` (low to high)`, or nothing where both are the same."""
    low, high = (format(kv[f"{figure}_{end}"], form) for end in ("low", "high"))
    return f" ({low} to {high})" if low != high else ""


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def wrap(text: str, indent: str = "", further: str | None = None) -> list[str]:
    """Lines of at most 100 columns; further is the indent from the second line on, if it is another."""
    following = indent if further is None else further
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=following, break_on_hyphens=False) or [
        ""
    ]


def _section(title: str, items: Iterable[str]) -> str:
    lines = [line for item in items for line in wrap(item, "  * ", "    ")]
    return "\n".join([title, *lines]) if lines else ""


def _changes(plan: Mapping[str, Any], running: Mapping[str, Any] | None) -> str:
    if running is None:
        return "Against what runs\n  Not deployed yet."
    found = differences(running, plan)
    if not found:
        return "Against what runs\n  The same. A deployment would not restart the engine."
    lines = [f"Against what runs: {count(len(found), 'difference')}. A deployment would restart the engine."]
    lines += _difference_table(found)
    before, after = running.get("kv", {}).get("tokens"), plan["kv"].get("tokens")
    if before and after:
        lines.append(f"  KV cache: {before:,} tokens as it runs, {after:,} as planned")
    return "\n".join(lines)


def _difference_table(found: Sequence[Difference]) -> Iterator[str]:
    rows = [("", "runs", "planned"), *((item.name, item.running, item.planned) for item in found)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, running, planned in rows:
        line = f"  {name:<{first}}  {running:<{second}}  {planned}"
        if len(line) <= WIDTH:
            yield line.rstrip()
        else:
            yield from (f"  {name}", *wrap(f"runs:    {running}", "      "), *wrap(f"planned: {planned}", "      "))


def _memory(plan: Mapping[str, Any]) -> str:
    if not plan["budget"]:
        return ""
    lines = ["Memory of each card in GiB"]
    for cards, budget in alike(plan["budget"]):
        lines += ["", *wrap(f"{', '.join(cards)}: {budget['name']}", "  "), f"  [{card_bar(budget)}]", *_terms(budget)]
    return "\n".join(lines)


def alike(budgets: Iterable[Mapping[str, Any]]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Cards with the same figures together: the labels of the cards, and the budget of the first."""
    groups: list[tuple[list[str], Mapping[str, Any], dict[str, Any]]] = []
    for budget in budgets:
        figures = {key: value for key, value in budget.items() if key not in ("host", "gpu", "uuid")}
        label = f"{budget['host']} GPU {budget['gpu']}"
        for labels, _budget, known in groups:
            if known == figures:
                labels.append(label)
                break
        else:
            groups.append(([label], budget, figures))
    return [(labels, budget) for labels, budget, _figures in groups]


def card_bar(budget: Mapping[str, Any], width: int = BAR) -> str:
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


def _terms(budget: Mapping[str, Any]) -> Iterator[str]:
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


def _arguments(plan: Mapping[str, Any]) -> str:
    lines = []
    for argument in plan["arguments"]:
        lines += wrap(f"{argument['name']} = {written(argument['value'])}", "  ")
        lines += wrap(f"why:  {argument['why']}", "      ")
        lines += wrap(f"cost: {argument['cost']}", "      ")
    return "\n".join(["Arguments", *lines]) if lines else ""


def _decisions(plan: Mapping[str, Any]) -> str:
    lines, step = [], None
    for decision in plan["decisions"]:
        if decision["step"] != step:
            step = decision["step"]
            lines.append(f"  {STEPS.get(step, 'Given')}")
        lines += wrap(decision["decision"], "    ")
        lines += wrap(f"why:  {decision['why']}", "      ")
        lines += wrap(f"cost: {decision['cost']}", "      ")
    return "\n".join(["Decisions", *lines]) if lines else ""

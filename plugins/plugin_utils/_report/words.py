# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words for plans that the terminal and the page share. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Plan = Mapping[str, Any]
Budget = Mapping[str, Any]

VERDICTS = {
    "fits": "FITS",
    "fits_reduced": "FITS REDUCED",
    "unverified": "UNVERIFIED",
    "does_not_fit": "DOES NOT FIT",
    "unsupported": "UNSUPPORTED",
}

SEVERITY = ("unsupported", "does_not_fit", "unverified", "fits_reduced", "fits")
"""Verdicts, the worst first."""

RUNNING = ("fits", "fits_reduced", "unverified")
"""Verdicts of plans that can be started."""

TERMS = (
    ("others_gib", "x", "others"),
    ("weights_gib", "W", "weights"),
    ("activation_gib", "a", "activation"),
    ("non_torch_gib", "n", "non-torch"),
    ("cuda_graph_gib", "g", "CUDA graphs"),
    ("kv_pool_gib", "K", "KV pool"),
)

SOURCES = {
    "exact": "a sum",
    "receipt": "measured by an earlier start here",
    "calibrated": "fitted to measurements",
    "extrapolated": "outside of what was measured, so the range is wider",
    "unverified": "not understood; the low end is planned with",
}

STEPS = {1: "Fit the model", 2: "Length to the load", 3: "Leave room", 4: "Batch last", 0: "Given"}
DECISIONS = "What was decided, and what was not done"

NEEDS = {
    "unsupported": "Rules that are broken",
    "does_not_fit": "What would make it fit",
    "unverified": "What would make it certain",
}

MOST_NAMES = 8
"""Of longer lists of hosts or cards only so many are named."""

CARDS = "\0"
"""Stands for the name of a card in a text that is said of several."""

EQUAL_DIGITS = 1
"""Cards and plans whose figures in GiB are the same to so many digits are told together."""


def arguments_title(plan: Plan) -> str:
    return "Arguments" if plan["verdict"] in RUNNING else "Arguments that were tried; nothing is started"


def needs_title(plan: Plan) -> str:
    return NEEDS.get(plan["verdict"], "What would keep the whole promise")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def named(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The names; of very many, the first and how many there are beside them."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def cards_named(budgets: Iterable[Budget]) -> str:
    """The cards of budgets, those of one host together: `gpu01 GPUs 0-3, gpu02 GPU 0`."""
    by_host: dict[str, list[int]] = {}
    for budget in budgets:
        by_host.setdefault(str(budget["host"]), []).append(int(budget["gpu"]))
    labels = []
    for host, numbers in by_host.items():
        labels.append(f"{host} {numbered(numbers)}")
    return named(labels)


def numbered(numbers: Sequence[int]) -> str:
    """GPUs by their numbers, neighbours as ranges: `GPUs 0-3, 6`. MIG devices of one share its number; counted."""
    runs = []
    places = sorted(set(numbers))
    for _key, run in itertools.groupby(enumerate(places), lambda item: item[1] - item[0]):
        several = [number for _place, number in run]
        runs.append(f"{several[0]}" if len(several) == 1 else f"{several[0]}-{several[-1]}")
    devices = f" ({len(numbers)} MIG devices)" if len(numbers) > len(places) else ""
    return f"{'GPU' if len(places) == 1 else 'GPUs'} {', '.join(runs)}{devices}"


def rounded(budget: Budget) -> dict[str, Any]:
    """The figures of a budget without the place, as exact as they have to be the same to be told together."""
    return {
        key: {name: round(part, EQUAL_DIGITS) if isinstance(part, float) else part for name, part in value.items()}
        if isinstance(value, Mapping)
        else value
        for key, value in budget.items()
        if key not in ("host", "gpu", "uuid")
    }


def alike(budgets: Iterable[Budget]) -> list[tuple[list[Budget], Budget]]:
    """Budgets with the same figures together, and of each group the one with the smallest KV pool, to be shown."""
    groups: list[tuple[dict[str, Any], list[Budget]]] = []
    for budget in budgets:
        figures = rounded(budget)
        group = next((several for known, several in groups if known == figures), None)
        if group is None:
            groups.append((figures, [budget]))
        else:
            group.append(budget)
    return [(several, min(several, key=lambda budget: budget["kv_pool_gib"]["low"])) for _figures, several in groups]


def merged(texts: Iterable[str], budgets: Sequence[Budget]) -> list[str]:
    """Texts without repetition: those that say the same of several cards once, with all of these cards."""
    found: dict[str, list[Budget]] = {}
    for text in texts:
        card = next((budget for budget in budgets if re.search(rf"\b{re.escape(_label(budget))}\b", text)), None)
        told = text if card is None else text.replace(_label(card), CARDS)
        found.setdefault(told, []).extend([] if card is None else [card])
    return [told.replace(CARDS, cards_named(cards)) if cards else told for told, cards in found.items()]


def _label(budget: Budget) -> str:
    """How the planner names a card."""
    return f"{budget['host']} GPU {budget['gpu']}"


def decisions_of(plan: Plan) -> list[dict[str, Any]]:
    """The decisions, those that are the same for several cards once."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for decision in plan["decisions"]:
        key = (decision["step"], decision["why"], decision["cost"])
        found.setdefault(key, []).append(decision["decision"])
    return [
        {"step": step, "decision": text, "why": why, "cost": cost}
        for (step, why, cost), texts in found.items()
        for text in merged(texts, plan["budget"])
    ]


def summary(plan: Plan) -> list[str]:
    """The plan in a few plain sentences: where it runs, what it serves, what its KV cache holds."""
    return [*_place(plan), *_service(plan), *_cache(plan["kv"])]


def _place(plan: Plan) -> Iterator[str]:
    parallel, budget = plan["parallel"], plan["budget"]
    if not parallel or not budget:
        return
    kinds = ", ".join(dict.fromkeys(item["name"] for item in budget))
    sizes = (("tensor parallel", "tensor_parallel_size"), ("pipeline parallel", "pipeline_parallel_size"))
    how = " and ".join(f"{words} {parallel[size]}" for words, size in sizes if parallel[size] > 1)
    divided = f"; divided by {how}" if how else ""
    if plan["verdict"] in RUNNING:
        yield f"Runs on {cards_named(budget)} ({kinds}){divided}"
    else:
        yield f"{count(len(budget), 'GPU')} ({kinds}) tried on {named(list(plan['devices']))}: not enough{divided}"


def _service(plan: Plan) -> Iterator[str]:
    kv, workload = plan["kv"], plan["workload"]
    if not kv.get("tokens") or plan["verdict"] not in RUNNING:
        return
    range_ = between(kv, "max_concurrency", ",.2f")
    yield f"{capacity(plan)}: {kv['max_concurrency']:,.2f}{range_}" if range_ else capacity(plan)
    if not workload.get("sequences"):
        return
    verb = "Reduced to" if plan["verdict"] == "fits_reduced" else "Planned for"
    typical, most = workload.get("typical_context"), workload["context"]
    several = count(workload["sequences"], "request")
    if typical and typical < most:
        yield f"{verb} {several} at once of {typical:,} tokens each, and one of {most:,}"
    else:
        yield f"{verb} {several} at once of {most:,} tokens each"


def capacity(plan: Plan) -> str:
    """What the plan promises to hold, the safe side of it."""
    kv = plan["kv"]
    return f"Holds {count(int(kv['max_concurrency_low']), 'request')} of {kv['max_model_len']:,} tokens at once"


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

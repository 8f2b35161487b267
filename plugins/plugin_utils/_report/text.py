# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan in words and bars, for a terminal of 100 columns. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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


def explain(plan: Mapping[str, Any]) -> str:
    """The plan as text: the verdict first, then memory, arguments, decisions, warnings, needs."""
    blocks = [
        _headline(plan),
        _section(
            "What would make it fit" if plan["verdict"] != "unsupported" else "Rules that are broken", plan["needs"]
        ),
        _section("Warnings", plan["warnings"]),
        _memory(plan),
        _arguments(plan),
        _decisions(plan),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(plan: Mapping[str, Any]) -> str:
    name, release = plan.get("name") or "instance", plan["release"]["version"]
    lines = [f"{VERDICTS[plan['verdict']]}: {name} on vLLM {release}"]
    parallel = plan["parallel"]
    if parallel:
        gpus = parallel["tensor_parallel_size"] * parallel["pipeline_parallel_size"]
        where = ", ".join(f"{host} ({len(uuids)} GPU)" for host, uuids in plan["devices"].items())
        lines.append(
            f"{gpus} GPU on {where}; tensor parallel {parallel['tensor_parallel_size']}, "
            f"pipeline parallel {parallel['pipeline_parallel_size']}"
        )
    lines += _kv_lines(plan["kv"])
    return "\n".join(line for text in lines for line in _wrap(text))


def _kv_lines(kv: Mapping[str, Any]) -> Iterator[str]:
    if not kv.get("tokens"):
        return
    yield (
        f"KV cache: {kv['tokens']:,} tokens ({kv['tokens_low']:,} to {kv['tokens_high']:,}) at "
        f"{kv['bytes_per_token']:,} bytes a token and GPU"
    )
    yield (
        f"Requests at once of {kv['max_model_len']:,} tokens: {kv['max_concurrency']:,.2f} "
        f"({kv['max_concurrency_low']:,.2f} to {kv['max_concurrency_high']:,.2f})"
    )


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _section(title: str, items: Iterable[str]) -> str:
    lines = [line for item in items for line in _bullet(item)]
    return "\n".join([title, *lines]) if lines else ""


def _bullet(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  * ", subsequent_indent="    ", break_on_hyphens=False)


def _memory(plan: Mapping[str, Any]) -> str:
    if not plan["budget"]:
        return ""
    lines = ["Memory (GiB; each bar is one card)"]
    for budget in plan["budget"]:
        lines += [
            "",
            f"  {budget['host']} GPU {budget['gpu']}  {budget['name']}",
            f"  [{bar(budget)}]",
            *_terms(budget),
        ]
    return "\n".join(lines)


def bar(budget: Mapping[str, Any], width: int = BAR) -> str:
    """One card as a row of letters, one for each part; '.' is free. Parts that are there have a letter at least."""
    whole = budget["total_gib"]["value"] or 1.0
    cells = ""
    for key, letter, _ in TERMS:
        share = max(0.0, budget[key]["value"])
        cells += letter * max(round(share / whole * width), 1 if share / whole > 0.001 else 0)
    return cells[:width].ljust(width, ".")


def _terms(budget: Mapping[str, Any]) -> Iterator[str]:
    yield f"    {'total':<14}{budget['total_gib']['value']:>9.2f}   free {budget['free_gib']['value']:.2f}"
    yield f"    {'requested':<14}{budget['requested_gib']['value']:>9.2f}"
    for key, letter, title in (*TERMS, ("headroom_gib", ".", "left free")):
        term = budget[key]
        if key == "others_gib" and not term["value"]:
            continue
        interval = f"{term['low']:.2f} to {term['high']:.2f}" if term["low"] != term["high"] else ""
        yield f"  {letter} {title:<14}{term['value']:>9.2f}   {interval:<18}{term['source']}".rstrip()


def _arguments(plan: Mapping[str, Any]) -> str:
    lines = []
    for argument in plan["arguments"]:
        value = argument["value"] if isinstance(argument["value"], str) else json.dumps(argument["value"])
        lines += _wrap(f"{argument['name']} = {value}", "  ")
        lines += _wrap(f"why:  {argument['why']}", "      ")
        lines += _wrap(f"cost: {argument['cost']}", "      ")
    return "\n".join(["Arguments", *lines]) if lines else ""


def _decisions(plan: Mapping[str, Any]) -> str:
    lines, step = [], None
    for decision in plan["decisions"]:
        if decision["step"] != step:
            step = decision["step"]
            lines.append(f"  {STEPS.get(step, 'Given')}")
        lines += _wrap(decision["decision"], "    ")
        lines += _wrap(f"why:  {decision['why']}", "      ")
        lines += _wrap(f"cost: {decision['cost']}", "      ")
    return "\n".join(["Decisions", *lines]) if lines else ""

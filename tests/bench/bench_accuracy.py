# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How well a plan predicts what vLLM measures, by coefficients that were fitted without it, sets apart.

    python tests/bench/bench_accuracy.py [--rows] [--leave-out model|release|card|set] [--in-sample]

Left out of the fit is each model in turn, then each release, each card, and each set: what the planner does on models,
releases and cards that it never saw. First come the starts of data/blind_starts.json, which no fit uses, by the
coefficients as they are.

Weights are counted from config.json alone. Percentages are of the measured value; "over" is the unsafe side.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT / "tools" / "calibrate")]

from accuracy_cases import BLIND_STARTS, Case, load_cases, load_starts  # noqa: E402
from fit_overhead import FOLDS, left_out, use  # noqa: E402

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import overhead, plan  # noqa: E402

ROUNDING = 0.005
"""vLLM prints two decimals: a value may be that much beside the interval, in GiB."""


@dataclass(frozen=True)
class Row:
    """One figure of one start: measured and predicted, in GiB or tokens."""

    case: Case
    figure: str
    measured: float
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.value - self.measured

    @property
    def percent(self) -> float:
        return 100 * self.error / self.measured

    @property
    def inside(self) -> bool:
        return self.low - ROUNDING <= self.measured <= self.high + ROUNDING

    @property
    def width_percent(self) -> float:
        return 100 * (self.high - self.low) / self.value if self.value else 0.0


def rows(case: Case) -> Iterator[Row]:
    """Weights and KV pool of the GPU that logged them (the first), and bytes a token."""
    planned = plan(case.instance, case.hosts)
    if not planned["budget"]:
        print(f"  not planned: {case.record['id']}: {planned['verdict']}: {'; '.join(planned['needs'])[:160]}")
        return
    budget, measured = planned["budget"][0], case.measured
    for figure, term in (("weights", "weights_gib"), ("kv_pool", "kv_pool_gib")):
        if case.scorable(figure) and measured[term]:
            yield _row(case, figure, measured[term], budget[term])
    if case.scorable("kv_per_token") and measured["kv_tokens"] and measured["kv_pool_gib"]:
        rate = measured["kv_pool_gib"] * 2**30 / measured["kv_tokens"]
        value = budget["kv_pool_gib"]["value"] * 2**30 / planned["kv"]["tokens"] if planned["kv"]["tokens"] else 0.0
        yield Row(case, "kv_per_token", rate, value, value, value)


def _row(case: Case, figure: str, measured: float, term: dict[str, Any]) -> Row:
    return Row(case, figure, measured, term["value"], term["low"], term["high"])


def report(title: str, found: Sequence[Row]) -> None:
    """One line a figure."""
    print(f"\n{title}")
    header = ("figure", "n", "mean %", "median %", "mean GiB", "worst over %", "worst under %", "inside %", "width %")
    print("  " + "".join(f"{name:>14}" for name in header))
    for figure in dict.fromkeys(row.figure for row in found):
        own = [row for row in found if row.figure == figure]
        errors = [abs(row.percent) for row in own]
        inside = 100 * sum(row.inside for row in own) / len(own)
        scale = 1.0 if figure != "kv_per_token" else 2**-30
        numbers = (
            f"{len(own)}",
            f"{statistics.mean(errors):.2f}",
            f"{statistics.median(errors):.2f}",
            f"{statistics.mean(abs(row.error) for row in own) * scale:.3f}",
            f"{max(max(row.percent for row in own), 0):+.2f}",
            f"{min(min(row.percent for row in own), 0):+.2f}",
            "" if figure == "kv_per_token" else f"{inside:.1f}",
            "" if figure == "kv_per_token" else f"{statistics.median(row.width_percent for row in own):.2f}",
        )
        print("  " + f"{figure:>14}" + "".join(f"{number:>14}" for number in numbers))


def print_rows(found: Iterable[Row]) -> None:
    for row in sorted(found, key=lambda item: (item.figure, item.percent)):
        record = row.case.record
        outside = "" if row.inside or row.figure == "kv_per_token" else "OUTSIDE"
        print(
            f"  {row.figure:<13}{row.percent:>+8.2f} % {row.value:>12.2f} {row.measured:>12.2f} "
            f"{outside:<8}{record['id'][:40]:<41}{row.case.instance['release']:<8} {record['model']}"
        )


def report_found(found: Sequence[Row], title: str, every_row: bool) -> None:
    """A table a set."""
    for name in dict.fromkeys(row.case.record["set"] for row in found):
        own = [row for row in found if row.case.record["set"] == name and not row.case.record["unified_memory"]]
        report(f"set {name} ({title})", own)
        if every_row:
            print_rows(own)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--leave-out", choices=list(FOLDS), help="only this protocol")
    parser.add_argument("--in-sample", action="store_true", help="with the coefficients as they are (not a fair score)")
    options = parser.parse_args()
    shipped = overhead.coefficients()
    blind = [row for case in load_starts(BLIND_STARTS) for row in rows(case)]
    report_found(blind, "by the coefficients as they are", options.rows)
    cases = list(load_cases())
    if not cases:
        print("bench_accuracy: skipped, there are no measured starts beside the repository (../shared/data)")
        return 0
    protocols = [options.leave_out] if options.leave_out else list(FOLDS)
    for protocol in ["in sample"] if options.in_sample else protocols:
        folds = [(cases, shipped)] if options.in_sample else left_out(cases, shipped, protocol)
        title = protocol if options.in_sample else f"each {protocol} left out of the fit"
        found: list[Row] = []
        for own, coefficients in folds:
            use(coefficients)
            found += [row for case in own for row in rows(case)]
        report_found(found, title, options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

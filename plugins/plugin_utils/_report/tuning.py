# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tuning from its ledger: what was tried, what came of it, and what to put into the inventory. Private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean
from typing import Any

import yaml

from .columns import WIDTH, padded, plain, wrap

Row = Mapping[str, Any]

# The planner chooses each of these with an eye on the others: what was measured is all of them together.
TOGETHER = (
    "max_model_len",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
)
# With one card there is nothing to choose.
CARDS = ("tensor_parallel_size", "pipeline_parallel_size")
TITLES = ("step", "parameter", "from", "to", "measured", "")
COLUMNS = (5, 24, 11, 11, 10)


@dataclass(frozen=True)
class Tuning:
    """The rows of one tuning without its end, and its end, if it has one."""

    host: str
    name: str
    rows: Sequence[Row]
    end: Row | None

    @property
    def maximize(self) -> str:
        return str(self.rows[0]["case"]["maximize"])

    @property
    def bounds(self) -> Mapping[str, float]:
        return dict(self.rows[0]["case"]["bounds"])

    @property
    def minutes(self) -> float:
        return float(sum(row["minutes"] for row in self.rows))

    @property
    def gain(self) -> float | None:
        """What the best start gains over the engine as it was, as a share, for each card."""
        first, best = score(self.rows[0], self.maximize), self._best_row()
        last = score(best, self.maximize) if best else None
        return last / first - 1 if first and last else None

    def _best_row(self) -> Row | None:
        wanted = (self.end or {}).get("changes")
        found = [row for row in self.rows if row["changes"] == wanted and row["runs"]]
        return found[-1] if found else None

    def engine_args(self) -> dict[str, Any]:
        """What to put into the inventory; nothing where the engine stays as it was."""
        changes = (self.end or {}).get("changes") or {}
        best = {variable.partition(".")[2]: value for variable, value in changes.items()}
        case = self.rows[0]["case"]
        together = (*TOGETHER, *CARDS) if int(case["cards"]) > 1 else TOGETHER
        return {name: value for name, value in best.items() if name in together or case["values"].get(name) != value}


def read_tuning(rows: Sequence[Row], host: str, name: str) -> Tuning:
    """The newest tuning of the rows of a ledger. Raises ValueError where there is none."""
    ends = [row for row in rows if row["stage"] == "end"]
    tried = [row for row in rows if row["stage"] != "end"]
    if not tried:
        raise ValueError(f"the ledger of {name} on {host} tells of no tuning")
    return Tuning(host, name, tried, ends[-1] if ends else None)


def score(row: Row, maximize: str) -> float | None:
    """The mean of the objective for each card; None where it was not measured."""
    if not row["runs"]:
        return None
    return fmean(run[maximize] for run in row["runs"]) / cards(row)


def cards(row: Row) -> int:
    # The first start has no changes: it is the inventory's, of which the case tells.
    given = (row.get("case") or {}).get("values") or {}
    values = {f"engine_args.{name}": value for name, value in given.items()} | dict(row["changes"])
    return prod(int(values.get(f"engine_args.{name}_parallel_size") or 1) for name in ("tensor", "pipeline"))


def parameter(row: Row) -> str:
    return row["change"]["variable"].partition(".")[2] if row["change"] else str(row["stage"])


def number(value: Any) -> str:
    """A value in few columns: 1 GiB instead of its bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 27:
        return f"{value / (1 << 30):.4g} GiB"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def began_with(value: Any) -> str:
    """What a change is from; where nothing was set, the release's default."""
    return number(value) or "default"


def explain_tuning(tuning: Tuning, command: str = "") -> str:
    """The tuning as text in 100 columns. command: how to deploy what is put into the inventory."""
    blocks = [
        "\n".join(wrap(_headline(tuning))),
        "\n".join(_table(tuning)),
        _section("What it means", (tuning.end or {}).get("notes") or []),
        "\n".join(_result(tuning, command)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(tuning: Tuning) -> str:
    steps = f"{tuning.name} on {tuning.host}: {len(tuning.rows)} steps in {tuning.minutes:.0f} minutes"
    bounds = "".join(f", {name} at most {plain(bound)}" for name, bound in sorted(tuning.bounds.items()))
    return f"{steps}, for the largest {tuning.maximize} of each card{bounds}. {(tuning.end or {}).get('why') or ''}"


def _table(tuning: Tuning) -> Iterator[str]:
    yield _columns(TITLES[:-1]).rstrip()
    for row in tuning.rows:
        change = row["change"] or {"from": None, "to": None}
        measured = score(row, tuning.maximize)
        cells = (
            str(row["number"]),
            parameter(row),
            began_with(change["from"]) if row["change"] else "",
            number(change["to"]),
            "–" if measured is None else plain(measured),
        )
        head = _columns(cells)
        yield from wrap(str(row["verdict"]), head, " " * sum(COLUMNS))


def _columns(cells: Sequence[str]) -> str:
    return "".join(padded(cell, columns) for cell, columns in zip(cells, COLUMNS, strict=True))


def _section(title: str, texts: Sequence[str]) -> str:
    return "\n".join([title, *(line for text in texts for line in wrap(text, "  - ", "    "))]) if texts else ""


def _result(tuning: Tuning, command: str) -> Iterator[str]:
    if tuning.end is None:
        yield "It has not ended: run the same command again, and it goes on."
        return
    found = tuning.engine_args()
    if not found:
        yield "Nothing to change: the engine runs as it is in the inventory."
        return
    gain = tuning.gain
    against = "" if gain is None else f", {gain:+.1%} against what it was"
    yield from wrap(
        f"The engine on {tuning.host} runs with this now{against}. To keep it and to have it on the fleet, put it into "
        f"the inventory, below the instance {tuning.name}:"
    )
    yield from ("  " + line for line in engine_args_text(found).splitlines())
    if command:
        yield "Next:"
        yield from (line + " \\" for line in wrap(command, "  ", "    ", WIDTH - 2)[:-1])
        yield wrap(command, "  ", "    ", WIDTH - 2)[-1]


def engine_args_text(found: Mapping[str, Any]) -> str:
    """The YAML of engine_args."""
    return yaml.safe_dump({"engine_args": dict(found)}, sort_keys=False, default_flow_style=False)

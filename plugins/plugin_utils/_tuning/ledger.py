# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger of a tuning: what to start next, and the row for what came of it. Private to the collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .case import Case, TuningError, read_case
from .procedure import Outcome, State, Trial, procedure, settle

Row = dict[str, Any]
Step = dict[str, Any]

_WINDOW = re.compile(r"((?:[01]\d|2[0-3]):[0-5]\d)-((?:[01]\d|2[0-3]):[0-5]\d)")
_BASIS = ("instance", "maximize", "bounds", "load", "parameters", "start", "max_model_len")


def next_step(problem: Mapping[str, Any], ledger: Sequence[Row]) -> Step:
    """Returns the next start to try, or where the tuning ends.

    problem: as for read_case, and "max_steps", "max_minutes". ledger: the rows of the instance, oldest first; rows of
    something else, and of tunings that have ended, are passed over.
    Returns {"verdict": "try", "number", "stage", "change": {"variable", "from", "to"} or None, "changes": what the
    start has beside the inventory, by variable, "measure", "load", "cards", "why", "basis", "case"}, or {"verdict":
    "done", "stuck" or "paused", "number", "changes" (of what is to stay), "why", "notes", "basis", "case"}.
    Raises TuningError.
    """
    basis = basis_of(problem)
    rows = _open_rows(ledger, basis)
    case = _case(rows[0]["case"]) if rows else read_case(problem)
    state, trial = _replay(case, rows)
    common = {"basis": basis, "number": len(rows) + 1, "case": case.as_dict()}
    bound = _bound(problem, rows)
    over = _window_is_over(problem, rows if trial and not bound else [])
    if over:
        return {**common, "verdict": "paused", "stage": "pause", "changes": {}, "why": over, "notes": state.notes}
    if trial is None or bound:
        return {**common, **_done(state, trial is not None, bound)}
    return {
        **common,
        "verdict": "try",
        "stage": trial.stage,
        "change": _change(trial),
        "changes": _changes(case, trial.values),
        "measure": trial.measure,
        "load": dict(case.load),
        "why": trial.why,
    }


def within(window: str, now: str) -> bool:
    """Whether a time of day is in a window such as 22:00-05:00; any is in one that is empty. Raises TuningError."""
    if not window:
        return True
    match = _WINDOW.fullmatch(window)
    if match is None:
        raise TuningError(f"vllm_tune_window {window} is no window; write, for example, 22:00-05:00")
    begin, end = match.groups()
    return begin <= now < end if begin < end else now >= begin or now < end


def _window_is_over(problem: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Why nothing may begin now: it is outside of the window, or a step like the longest so far, and the way back
    after it, would not end within it."""
    window, now = str(problem.get("window") or ""), str(problem.get("now") or "")
    if not window:
        return ""
    until = f"the window is {window}: the engine is as it was until the next one."
    if not within(window, now):
        return f"It is {now}, and {until}"
    needed = math.ceil(2 * max((row["minutes"] for row in rows), default=0))
    enough = within(window, _later(now, needed))
    return "" if enough else f"It is {now}, a step and the way back may take {needed} minutes, and {until}"


def _later(now: str, minutes: int) -> str:
    hour, minute = map(int, now.split(":"))
    total = (60 * hour + minute + minutes) % (24 * 60)
    return f"{total // 60:02d}:{total % 60:02d}"


def read_rows(text: str) -> list[Row]:
    """The rows of a ledger; a line that a loss of power has cut is passed over."""
    rows = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def row_of(problem: Mapping[str, Any], ledger: Sequence[Row], step: Step, result: Mapping[str, Any]) -> Row:
    """Returns the row for a step that was tried, with the verdict on it.

    result: {"outcome": serves, failed or refused, "runs": what the benchmark measured, "minutes", "finding": of the
    failure or None, "receipt": of the start or None}.
    """
    rows = _open_rows(ledger, step["basis"])
    row: Row = {
        "kind": "tune",
        **{name: step[name] for name in ("basis", "number", "stage", "change", "changes", "why")},
        "outcome": result["outcome"],
        "runs": list(result.get("runs") or ()),
        "minutes": round(float(result.get("minutes") or 0), 1),
        "finding": result.get("finding"),
        "receipt": result.get("receipt"),
    }
    if not rows:
        row["case"] = step["case"]
    state, _trial = _replay(_case(step["case"]), [*rows, row])
    kept, verdict = state.verdicts[len(rows)]
    return {**row, "kept": kept, "verdict": verdict}


def rows_of_last_run(ledger: Sequence[Row]) -> list[Row]:
    """The rows of the newest tuning, whether it has ended or not, with its end."""
    rows = [row for row in ledger if row.get("kind") == "tune"]
    starts = [index for index, row in enumerate(rows) if row.get("number") == 1]
    return rows[starts[-1] :] if starts else []


def basis_of(problem: Mapping[str, Any]) -> str:
    """A fingerprint of what is tuned, and for what: a tuning goes on only where that is the same."""
    text = json.dumps({name: problem.get(name) for name in _BASIS}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _case(written: Mapping[str, Any]) -> Case:
    """The case as it was written, in plain containers: those of Ansible cannot be copied."""
    return Case(**json.loads(json.dumps(written)))


def _open_rows(ledger: Sequence[Row], basis: str) -> list[Row]:
    rows = rows_of_last_run(ledger)
    return [] if not rows or rows[-1]["stage"] == "end" or rows[0]["basis"] != basis else list(rows)


def _replay(case: Case, rows: Sequence[Row]) -> tuple[State, Trial | None]:
    """Where the procedure is after these rows, and what it wants to see next."""
    state = State(case, dict(case.values))
    steps = procedure(state)
    trial = next(steps, None)
    for row in rows:
        if trial is None or (trial.stage, _change(trial)) != (row["stage"], row["change"]):
            raise TuningError(
                f"row {row['number']} of the ledger is not of this procedure, as after an upgrade of the collection. "
                "Next: begin a new tuning with vllm_tune_again=true"
            )
        try:
            trial = steps.send(_outcome(row))
        except StopIteration:
            trial = None
    return state, trial


def _outcome(row: Row) -> Outcome:
    finding = row.get("finding") or {}
    change = finding.get("change") or {}
    estimate = change.get("to") if change.get("variable") == "engine_args.max_model_len" else None
    return Outcome(row["outcome"], row["runs"], str(finding.get("title") or ""), estimate)


def _change(trial: Trial) -> dict[str, Any] | None:
    if trial.variable is None:
        return None
    return {"variable": f"engine_args.{trial.variable}", "from": trial.before, "to": trial.after}


def _changes(case: Case, values: Mapping[str, Any] | None) -> dict[str, Any]:
    """All parameters of a start that are set beside the inventory; one that is not named could be planned anew."""
    return {} if values is None else dict(_set_values(case, values))


def _set_values(case: Case, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name == "gpu_memory_utilization" and case.memory != name:
            continue
        yield f"engine_args.{name}", value


def _bound(problem: Mapping[str, Any], rows: Sequence[Row]) -> str:
    minutes = sum(row["minutes"] for row in rows)
    if len(rows) >= int(problem.get("max_steps") or 40):
        return f"{len(rows)} steps were taken."
    if minutes >= float(problem.get("max_minutes") or 480):
        return f"The {problem['max_minutes']} minutes are over."
    return ""


def _done(state: State, goes_on: bool, bound: str) -> dict[str, Any]:
    """Where the bounds end it, what was found so far stays if it was measured."""
    if goes_on and state.mark is not None:
        settle(state)
    why = bound if goes_on else state.stuck or "Every parameter was tried."
    changes = _changes(state.case, state.best)
    return {
        "verdict": "stuck" if state.stuck else "done",
        "stage": "end",
        "changes": changes,
        "why": why,
        "notes": state.notes,
        "noise": state.noise,
    }

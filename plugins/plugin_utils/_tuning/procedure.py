# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The procedure of tuning, told from beginning to end. Private to the collection.

Each function yields the starts that it wants to see and is sent what came of each. Nothing is kept between two calls:
the ledger is replayed through the procedure, so that an interruption loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._report.columns import plain
from .case import Case
from .judge import Mark, compare, mark

Values = dict[str, Any]
_BLOCK = 16
# vLLM refuses a batch that does not hold one token of each sequence; far below this, a prompt takes many steps.
_SMALLEST_BATCH = 512
_LARGEST_BATCH = 65536
_BISECTIONS = 2
_BACK_FROM_BOUNDARY = 0.9
# Differences that nobody would change a production engine for.
_LEAST_NOISE = 0.02
_SHARES_OF_BYTES = (0.75, 1.0)
_UTILIZATION_STEP = 0.05
_GIB = 1 << 30


@dataclass(frozen=True)
class Trial:
    """A start to look at. values: all parameters that are set; None is the instance as the inventory has it."""

    stage: str
    why: str
    values: Values | None
    variable: str | None = None
    before: Any = None
    after: Any = None
    measure: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came of a trial. kind: serves, failed (it did not start, or ended under the load), refused (by the plan)."""

    kind: str
    runs: Sequence[Mapping[str, Any]] = ()
    finding: str = ""
    estimate: int | None = None


Steps = Generator[Trial, Outcome, None]
Kept = Generator[Trial, Outcome, bool]


@dataclass
class State:
    """Where the procedure is. last: the mark of the last change that was tried, if it ran. verdicts: of each trial so
    far, whether its change was kept, and why in words."""

    case: Case
    values: Values
    mark: Mark | None = None
    given: Mark | None = None
    last: Mark | None = None
    noise: float = _LEAST_NOISE
    verdicts: list[tuple[bool, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stuck: str = ""
    best: Values | None = None

    def rate(self, outcome: Outcome, values: Mapping[str, Any]) -> Mark:
        found = mark(outcome.runs, self.case.maximize, self.case.bounds, _cards_of(values))
        self.noise = max(self.noise, found.spread)
        return found

    def judge(self, kept: bool, why: str) -> None:
        self.verdicts.append((kept, why))


def procedure(state: State) -> Steps:
    """All steps, in order. At its end, state.best is what to keep; None is the instance as it was."""
    yield from _as_it_runs(state)
    yield from _begin(state)
    if state.stuck:
        return
    yield from _lengthen(state)
    if state.stuck:
        return
    for parameter in state.case.parameters:
        if parameter in _STAGES:
            yield from _STAGES[parameter](state)
    yield from _give_memory_back(state)
    settle(state)


def _as_it_runs(state: State) -> Steps:
    """The engine of the inventory, several times: what there is to beat, and how much repeated runs differ."""
    outcome = yield Trial("as it is", "what there is to beat, and how much equal runs differ", None)
    if outcome.kind == "serves" and outcome.runs:
        state.given = state.rate(outcome, state.case.values)
        told = f"{plain(state.given.score)} {state.case.maximize}; equal runs differ by {state.given.spread:.1%}"
        state.judge(True, "; ".join([told, *state.given.broken]))
    else:
        state.judge(False, _failure(outcome))


def _begin(state: State) -> Steps:
    """Starts small, and where that does not run, with what runs."""
    if state.case.start == "running" and state.given is not None:
        state.mark, state.values = state.given, dict(state.case.values)
        return
    small = state.case.small
    measured_now = small["max_model_len"] >= _goal(state)
    why = "short requests, few at once, little memory: does it start at all?"
    outcome = yield Trial("small", why, small, measure=measured_now)
    if outcome.kind == "serves" and (outcome.runs or not measured_now):
        state.values = small
        state.mark = state.rate(outcome, small) if measured_now else None
        state.judge(True, "serves")
        return
    state.judge(False, _failure(outcome))
    if state.given is None:
        state.stuck = "It serves neither as it is nor small: see the findings. Next: diagnose_vllm."
    state.mark, state.values = state.given, dict(state.case.values)


def _goal(state: State) -> int:
    """How long requests may become at last."""
    longest = int(state.case.values["max_model_len"])
    return state.case.target if "max_model_len" in state.case.parameters else longest


def _lengthen(state: State) -> Steps:
    """Doubles max_model_len up to the goal or to the boundary, and steps back 10 % from a boundary."""
    good, bad, estimate = int(state.values["max_model_len"]), 0, None
    goal = _goal(state)
    while good < goal and not bad:
        length = min(goal, 2 * good)
        outcome = yield _longer(state, length, measure=length == goal)
        if _serves(state, outcome):
            good = _lengthened(state, outcome, length)
            continue
        outcome = yield from _with_more_memory(state, outcome, length, goal)
        if outcome.kind == "serves":
            good = length
        else:
            bad, estimate = length, outcome.estimate
    if bad:
        yield from _find_boundary(state, good, bad, estimate)


def _longer(state: State, length: int, measure: bool) -> Trial:
    before = state.values["max_model_len"]
    values = {**state.values, "max_model_len": length}
    why = "requests as long as asked for" if measure else "does it start with longer requests?"
    return Trial("max_model_len", why, values, "max_model_len", before, length, measure)


def _serves(state: State, outcome: Outcome) -> bool:
    """Whether it serves. A failure is judged here."""
    if outcome.kind == "serves":
        return True
    state.judge(False, f"the boundary: {_failure(outcome)}")
    return False


def _lengthened(state: State, outcome: Outcome, length: int) -> int:
    state.values = {**state.values, "max_model_len": length}
    # What was measured with other values says nothing of these.
    state.mark = state.rate(outcome, state.values) if outcome.runs else None
    state.judge(True, "serves")
    return length


def _with_more_memory(state: State, failure: Outcome, length: int, goal: int) -> Generator[Trial, Outcome, Outcome]:
    """Before requests are kept short, the memory that the plan allows is used; it stays where it is not enough."""
    memory, most = state.case.memory, state.case.most_memory
    before = state.values[memory]
    if before >= most or "gpu_memory_utilization" not in state.case.parameters:
        return failure
    values = {**state.values, "max_model_len": length, memory: most}
    why = f"{length} tokens did not start: with all the memory that the plan allows?"
    outcome = yield Trial(memory, why, values, memory, before, most, length == goal)
    serves = outcome.kind == "serves"
    state.values = values if serves else {**state.values, memory: most}
    state.mark = state.rate(outcome, values) if outcome.runs else None
    state.judge(True, "serves" if serves else f"kept, and not enough: {_failure(outcome)}")
    return outcome


def _find_boundary(state: State, good: int, bad: int, estimate: int | None) -> Steps:
    """Halves the distance between what serves and what does not; vLLM's own estimate comes first."""
    for _attempt in range(_BISECTIONS):
        length = estimate if estimate and good < estimate < bad else (good + bad) // 2
        length, estimate = length // _BLOCK * _BLOCK, None
        if length <= good * (2 - _BACK_FROM_BOUNDARY):
            break
        outcome = yield _longer(state, length, measure=False)
        if _serves(state, outcome):
            good = _lengthened(state, outcome, length)
        else:
            bad = length
    back = _back_from(state, good)
    if back == state.values["max_model_len"] and state.mark is not None:
        return
    outcome = yield Trial(
        "max_model_len",
        f"back from the boundary at {good}" if back < good else "the longest that is promised and serves, measured",
        {**state.values, "max_model_len": back},
        "max_model_len",
        good,
        back,
    )
    if outcome.kind == "serves" and outcome.runs:
        _lengthened(state, outcome, back)
        promised = state.case.promised
        if promised > back:
            state.notes.append(f"The promised context of {promised} tokens does not fit: {back} do.")
    else:
        state.judge(False, _failure(outcome))
        state.stuck = "It served with longer requests and does not with shorter ones: see the finding."


def _back_from(state: State, good: int) -> int:
    """10 % less than what served, but not less than the load needs, nor than a promise that was kept."""
    promised = state.case.promised if state.case.promised <= good else 0
    return max(int(good * _BACK_FROM_BOUNDARY) // _BLOCK * _BLOCK, min(good, state.case.load_length), promised)


def _try(state: State, name: str, value: Any, why: str) -> Kept:
    """One change of one parameter, kept only if it is better by more than the noise."""
    before, values = state.values.get(name), {**state.values, name: value}
    outcome = yield Trial(name, why, values, name, before, value)
    state.last = None
    if outcome.kind != "serves" or not outcome.runs:
        state.judge(False, f"the boundary: {_failure(outcome)}")
        return False
    state.last = found = state.rate(outcome, values)
    kept, told = (True, "") if state.mark is None else compare(found, state.mark, state.noise)
    if kept:
        state.values, state.mark = values, found
    state.judge(kept, f"kept: {told}" if kept else f"rolled back: {told}")
    return kept


def _memory(state: State) -> Steps:
    """More memory, as long as that helps. If it never does, memory is not the bottleneck."""
    memory, most = state.case.memory, state.case.most_memory
    helped = False
    state.last = None
    allowed = f"{most / _GIB:.4g} GiB" if memory == "kv_cache_memory_bytes" else f"{most:g}"
    why = f"a larger KV cache; the plan allows up to {allowed}"
    for value in _memory_values(state):
        if not (yield from _try(state, memory, value, why)):
            break
        helped = True
    # What did not run, or broke a bound, says nothing of the gain.
    if not helped and state.last is not None and not state.last.broken:
        state.notes.append(
            "Memory is not the bottleneck: more of it gains nothing. What may be are max_num_seqs and "
            "max_num_batched_tokens."
        )


def _give_memory_back(state: State) -> Steps:
    """What the plan takes holds what the workload promises, which may be more than the load that was sent."""
    memory, most = state.case.memory, state.case.most_memory
    before, best = state.values.get(memory), state.mark
    if best is None or before is None or before >= most:
        return
    values = {**state.values, memory: most}
    outcome = yield Trial(
        memory, "the memory of the plan, for what the workload promises", values, memory, before, most
    )
    if outcome.kind != "serves" or not outcome.runs:
        state.judge(False, f"the boundary: {_failure(outcome)}")
        return
    found = state.rate(outcome, values)
    worse, told = compare(best, found, state.noise)
    if not worse:
        state.values, state.mark = values, found
    state.judge(not worse, f"rolled back: less is better, {told}" if worse else "kept: it costs nothing")


def _memory_values(state: State) -> list[float]:
    now, most = state.values[state.case.memory], state.case.most_memory
    if state.case.memory == "kv_cache_memory_bytes":
        values: list[float] = [int(most * share) // _BLOCK * _BLOCK for share in _SHARES_OF_BYTES]
    else:
        values = [round(most - _UTILIZATION_STEP, 3), most]
    return [value for value in values if value > now]


def _climb(name: str, least: Callable[[State], int], most: Callable[[State], int]) -> Callable[[State], Steps]:
    """A stage that doubles a number while that helps, and if it does not at all, halves it while that does."""

    def stage(state: State) -> Steps:
        if not state.values.get(name):
            state.notes.append(f"{name} was left alone: its value is not known.")
            return
        ways = [_doublings(state, name, most(state)), _halvings(state, name, least(state))]
        # Where a latency is too long already, less at once is more likely to help.
        for way in reversed(ways) if state.mark and state.mark.broken else ways:
            moved = False
            for value in way:
                larger = value > state.values[name]
                why = "more at once, for throughput" if larger else "less at once, for shorter latencies"
                if not (yield from _try(state, name, value, why)):
                    break
                moved = True
            if moved:
                return

    return stage


def _doublings(state: State, name: str, most: int) -> Iterator[int]:
    while state.values[name] < most:
        yield min(most, 2 * int(state.values[name]))


def _halvings(state: State, name: str, least: int) -> Iterator[int]:
    while state.values[name] // 2 >= least:
        yield int(state.values[name]) // 2


def _most_sequences(state: State) -> int:
    """What the benchmark sends at once: more would stay empty."""
    return state.case.load["concurrency"]


def _least_batch(state: State) -> int:
    return max(_SMALLEST_BATCH, int(state.values.get("max_num_seqs") or 1))


def _most_batch(state: State) -> int:
    """All prompts that come at once: no batch becomes larger."""
    load = state.case.load
    together = load["concurrency"] * (load["prefix_tokens"] + load["input_tokens"])
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, together))


def _prefix_caching(state: State) -> Steps:
    name = "enable_prefix_caching"
    if name not in state.case.known:
        return
    if not state.case.load["prefix_tokens"]:
        state.notes.append(
            "enable_prefix_caching was left alone: the prompts of the benchmark have nothing in common. Set "
            "prefix_tokens in vllm_tune_load if yours do."
        )
        return
    # Engine V1 has it on where nothing is said.
    on = state.values.get(name, True)
    yield from _try(state, name, not on, "prompts with a common beginning: is the cache of prefixes worth its work?")


def _kv_dtype(state: State) -> Steps:
    name = "kv_cache_dtype"
    if name not in state.case.known or state.values.get(name) not in (None, "auto"):
        return
    if not state.case.fp8_cards:
        state.notes.append("kv_cache_dtype was left alone: the GPUs do not compute FP8.")
        return
    if (yield from _try(state, name, "fp8", "half the bytes for each token of the KV cache")):
        state.notes.append("kv_cache_dtype fp8 rounds keys and values: compare answers before you rely on it.")


def _tensor_parallel(state: State) -> Steps:
    """Several cards against one, by throughput for each card: the others could run replicas."""
    name = "tensor_parallel_size"
    size = int(state.values.get(name) or 1)
    if int(state.values.get("pipeline_parallel_size") or 1) > 1:
        state.notes.append("tensor_parallel_size was left alone: the engine has stages on several cards.")
        return
    if size > 1:
        yield from _try(state, name, 1, "one card each for several engines, against several cards for one")
        return
    if state.case.cards < 2 or (state.case.heads or 2) % 2:
        return
    yield from _try(state, name, 2, "two cards for one engine, against one card each for two; counted for each card")


_STAGES: dict[str, Callable[[State], Steps]] = {
    "gpu_memory_utilization": _memory,
    "max_num_seqs": _climb("max_num_seqs", lambda _state: 1, _most_sequences),
    "max_num_batched_tokens": _climb("max_num_batched_tokens", _least_batch, _most_batch),
    "enable_prefix_caching": _prefix_caching,
    "kv_cache_dtype": _kv_dtype,
    "tensor_parallel_size": _tensor_parallel,
}


def settle(state: State) -> None:
    """What is found stays only if it beats what there was, or allows the longer requests that are asked for."""
    if state.mark is None and state.given is not None:
        state.notes.append("The engine stays as it was: nothing else could be measured.")
        return
    state.best = state.values
    _settle_against(state)
    kept = state.given if state.best is None else state.mark
    if kept is not None and kept.broken:
        state.notes.append(f"The bounds are not kept, the nearest is: {'; '.join(kept.broken)}.")


def _settle_against(state: State) -> None:
    """Compares what was found with what there was."""
    if state.given is None or state.mark is None:
        return
    before, after = int(state.case.values["max_model_len"]), int(state.values["max_model_len"])
    better, told = compare(state.mark, state.given, state.noise)
    if after > before:
        state.notes.append(f"Requests may be {after} tokens long, before {before}: {told}.")
        return
    shorter = after < before and after < state.case.promised
    if not better or shorter:
        state.best = None
        state.notes.append(f"The engine stays as it was: {'it takes longer requests' if shorter else told}.")


def _cards_of(values: Mapping[str, Any]) -> int:
    return int(values.get("tensor_parallel_size") or 1) * int(values.get("pipeline_parallel_size") or 1)


def _failure(outcome: Outcome) -> str:
    what = {"refused": "the plan refuses it", "serves": "the load could not be measured"}.get(outcome.kind, "")
    return ": ".join(text for text in (what, outcome.finding) if text) or "it does not start"

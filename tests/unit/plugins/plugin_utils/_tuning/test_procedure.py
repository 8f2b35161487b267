# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tuning engines that are formulas: what they can do is known, and the procedure must find it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pytest
from planning_examples import checkpoint, gpu, host

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._changes import with_changes
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.tuning import read_tuning
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._tuning import TuningError, next_step, row_of
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._tuning.judge import Mark, compare

GIVEN = {
    "max_model_len": 8192,
    "gpu_memory_utilization": 0.9,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
}


@dataclass
class Engine:
    """longest: tokens that fit with all the memory, and fewer with less. batch: how many sequences make it faster.
    noise: how much equal runs differ, as a share."""

    longest: int = 1 << 20
    batch: int = 1024
    gain_of_memory: float = 0.0
    gain_of_batched_tokens: float = 0.0
    gain_of_fp8: float = 0.0
    gain_of_second_card: float = 0.0
    gain_of_prefixes: float = 0.0
    noise: float = 0.005
    most_sequences: int = 1 << 20
    knows_estimate: bool = True

    def __post_init__(self):
        self.starts = []
        self._jitter = itertools.cycle((1.0, 1 - self.noise, 1 - self.noise / 2))

    def start(self, values: dict[str, Any], measure: bool, repeats: int) -> dict[str, Any]:
        self.starts.append(dict(values))
        longest = int(self.longest * values["gpu_memory_utilization"] / 0.9)
        if values["max_model_len"] > longest:
            change = {"variable": "engine_args.max_model_len", "to": longest} if self.knows_estimate else None
            return failed("The KV cache is too small", change)
        if values["max_num_seqs"] > self.most_sequences:
            return failed("Out of memory in the sampler")
        return {
            "outcome": "serves",
            "minutes": 2,
            "runs": [self.run(values) for _run in range(repeats if measure else 0)],
        }

    def run(self, values: dict[str, Any]) -> dict[str, float]:
        sequences = min(values["max_num_seqs"], self.batch)
        speed = 100.0 * sequences
        speed *= 1 + self.gain_of_memory * (values["gpu_memory_utilization"] > 0.81)
        speed *= 1 + self.gain_of_batched_tokens * (values["max_num_batched_tokens"] > 4000)
        speed *= 1 + self.gain_of_fp8 * (values["kv_cache_dtype"] == "fp8")
        speed *= 1 + self.gain_of_prefixes * bool(values.get("enable_prefix_caching", True))
        speed *= 1 + self.gain_of_second_card * (values["tensor_parallel_size"] == 2)
        return {"output_throughput": speed * next(self._jitter), "p99_tpot_ms": float(values["max_num_seqs"])}


def failed(title, change=None):
    return {"outcome": "failed", "minutes": 3, "finding": {"title": title, "change": change}}


def a_problem(**other) -> dict[str, Any]:
    arguments = [{"name": name, "value": value} for name, value in GIVEN.items() if name != "max_model_len"]
    plan = {
        "name": "chat",
        "verdict": "fits",
        "release": {"version": "0.32.0"},
        "kv": {"max_model_len": GIVEN["max_model_len"]},
        "arguments": arguments,
    }
    gpu = {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "memory_total_mib": 81559}
    instance = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "workload": {"context": 8192, "sequences": 64}}
    problem = {
        "instance": instance,
        "plan": plan,
        "hosts": [{"gpus": [gpu, gpu]}],
        "checkpoint": {"max_model_len": 131072, "num_attention_heads": 32},
        "load": {"input_tokens": 700, "output_tokens": 300, "repeats": 3},
    }
    problem.update(other)
    return problem


def run_out(engine, problem, ledger=None, steps=100) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Plays the playbook: asks for a step, starts the engine, writes the row as JSON."""
    rows = [] if ledger is None else ledger
    for _step in range(steps):
        step = next_step(problem, rows)
        if step["verdict"] != "try":
            return step, rows
        values = {**GIVEN, **{name.partition(".")[2]: value for name, value in step["changes"].items()}}
        result = engine.start(values, step["measure"], step["load"]["repeats"])
        rows.append(json.loads(json.dumps(row_of(problem, rows, step, result))))
    return step, rows


def best(step) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in step["changes"].items()}


def test_it_begins_with_the_engine_as_it_is_and_then_small():
    _step, rows = run_out(Engine(), a_problem(), steps=2)
    assert [row["stage"] for row in rows] == ["as it is", "small"]
    assert rows[0]["changes"] == {}
    assert best(rows[1]) == {
        "max_model_len": 2048,
        "gpu_memory_utilization": 0.8,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "kv_cache_dtype": "auto",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
    assert "differ by 0.5%" in rows[0]["verdict"]


def test_after_that_each_step_changes_one_parameter():
    engine = Engine(gain_of_memory=0.2, gain_of_batched_tokens=0.2, gain_of_fp8=0.3, gain_of_second_card=1.5)
    _step, rows = run_out(engine, a_problem(load={"prefix_tokens": 100}))
    current = best(rows[1])
    for row in rows[2:]:
        different = {name for name, value in best(row).items() if current.get(name) != value}
        assert different == {row["change"]["variable"].partition(".")[2]}
        current = best(row) if row["kept"] else current


def test_longer_requests_are_tried_by_doubling_up_to_what_is_promised():
    _step, rows = run_out(Engine(), a_problem())
    lengths = [row["change"]["to"] for row in rows if row["stage"] == "max_model_len"]
    assert lengths == [4096, 8192]


def test_the_boundary_is_found_and_left_by_ten_percent():
    step, rows = run_out(Engine(longest=30000), a_problem(max_model_len=65536))
    lengths = [row["change"]["to"] for row in rows if row["stage"] == "max_model_len"]
    # Doubled until it fails; the memory is used up first; vLLM's estimate is the boundary, and 10 % less is kept.
    assert lengths == [4096, 8192, 16384, 32768, 30000, 26992]
    assert [row["change"]["to"] for row in rows if row["stage"] == "gpu_memory_utilization"] == [0.9]
    assert best(step)["max_model_len"] == 26992
    assert best(step)["gpu_memory_utilization"] == 0.9


def test_without_an_estimate_the_boundary_is_halved_towards():
    step, _rows = run_out(Engine(longest=30000, knows_estimate=False), a_problem(max_model_len=65536))
    assert 0.8 * 30000 <= best(step)["max_model_len"] <= 0.92 * 30000


def test_a_promise_that_is_kept_is_not_given_up_for_the_distance_to_the_boundary():
    step, rows = run_out(Engine(longest=8500), a_problem(max_model_len=16384, start="running"))
    lengths = [row["change"]["to"] for row in rows if row["stage"] == "max_model_len"]
    assert lengths == [16384]
    assert step["changes"] == {}


def test_a_promise_that_does_not_fit_is_said():
    workload = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "workload": {"context": 65536, "sequences": 64}}
    step, _rows = run_out(Engine(longest=30000), a_problem(instance=workload))
    assert any("promised context of 65536 tokens does not fit" in note for note in step["notes"])


def test_the_best_number_of_sequences_is_found():
    step, rows = run_out(Engine(batch=16), a_problem(parameters=["max_num_seqs"]))
    assert [row["change"]["to"] for row in rows if row["change"]] == [16, 32]
    assert rows[-1]["kept"] is False
    assert "within the noise" in rows[-1]["verdict"]
    # 16 are as fast as the 64 that there were: no reason to change anything.
    assert step["changes"] == {}
    assert any("stays as it was" in note for note in step["notes"])


def test_more_sequences_than_are_sent_at_once_are_not_tried():
    _step, rows = run_out(Engine(), a_problem(load={"concurrency": 48}, parameters=["max_num_seqs"]))
    assert [row["change"]["to"] for row in rows if row["change"]] == [16, 32, 48]


def test_a_bound_on_the_latency_ends_the_climb():
    problem = a_problem(bounds={"p99_tpot_ms": 33}, parameters=["max_num_seqs"])
    step, rows = run_out(Engine(), problem)
    assert best(step)["max_num_seqs"] == 32
    assert "p99_tpot_ms 64 is above 33" in rows[-1]["verdict"]


def test_an_engine_that_breaks_its_bounds_goes_down_until_it_keeps_them():
    problem = a_problem(bounds={"p99_tpot_ms": 20}, parameters=["max_num_seqs"], start="running")
    step, rows = run_out(Engine(), problem)
    assert [row["change"]["to"] for row in rows if row["change"]] == [32, 16, 8]
    assert best(step)["max_num_seqs"] == 16


def test_a_gain_within_the_noise_is_rolled_back():
    steady, _rows = run_out(Engine(gain_of_batched_tokens=0.1), a_problem(start="running"))
    shaky, rows = run_out(Engine(gain_of_batched_tokens=0.1, noise=0.15), a_problem(start="running"))
    assert best(steady)["max_num_batched_tokens"] == 4096
    assert shaky["changes"] == {}
    assert any("within the noise of 16" in row["verdict"] for row in rows)


def test_memory_that_gains_nothing_is_not_the_bottleneck():
    step, rows = run_out(Engine(), a_problem())
    memory = [row for row in rows if row["stage"] == "gpu_memory_utilization"]
    assert [(row["change"]["to"], row["kept"]) for row in memory] == [(0.85, False), (0.9, True)]
    # In the end it is given back: the workload may need more than the load that was sent.
    assert rows[-1]["verdict"] == "kept: it costs nothing"
    assert any(note.startswith("Memory is not the bottleneck") for note in step["notes"])


def test_memory_that_gains_is_kept():
    step, rows = run_out(Engine(gain_of_memory=0.3), a_problem())
    memory = [row for row in rows if row["stage"] == "gpu_memory_utilization"]
    assert [(row["change"]["to"], row["kept"]) for row in memory] == [(0.85, True), (0.9, False), (0.9, True)]
    assert not any("Memory" in note for note in step["notes"])


def test_memory_that_makes_it_slower_is_not_given_back():
    step, rows = run_out(Engine(gain_of_memory=-0.3, batch=4096), a_problem(load={"concurrency": 4096}))
    assert rows[-1]["verdict"].startswith("rolled back: less is better")
    assert best(step)["gpu_memory_utilization"] == 0.8


@pytest.mark.parametrize(("gain", "kept"), [(1.5, True), (0.8, False)])
def test_two_cards_must_be_more_than_twice_as_fast_as_one(gain, kept):
    _step, rows = run_out(Engine(gain_of_second_card=gain), a_problem(start="running"))
    (tried,) = [row for row in rows if row["stage"] == "tensor_parallel_size"]
    assert (tried["change"]["to"], tried["kept"]) == (2, kept)


def test_prefix_caching_is_tried_only_with_prompts_that_have_something_in_common():
    without, rows = run_out(Engine(), a_problem(start="running"))
    assert not [row for row in rows if row["stage"] == "enable_prefix_caching"]
    assert any("prefix_tokens in vllm_tune_load" in note for note in without["notes"])
    _step, rows = run_out(Engine(gain_of_prefixes=0.5), a_problem(start="running", load={"prefix_tokens": 200}))
    (tried,) = [row for row in rows if row["stage"] == "enable_prefix_caching"]
    assert (tried["change"]["to"], tried["kept"]) == (False, False)


def test_an_fp8_cache_needs_cards_that_compute_it():
    old = {"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "memory_total_mib": 81920}
    step, _rows = run_out(Engine(gain_of_fp8=0.5), a_problem(hosts=[{"gpus": [old]}]))
    assert any("do not compute FP8" in note for note in step["notes"])
    step, _rows = run_out(Engine(gain_of_fp8=0.5), a_problem())
    assert best(step)["kv_cache_dtype"] == "fp8"
    assert any("compare answers" in note for note in step["notes"])


def test_a_start_that_fails_is_a_boundary():
    step, rows = run_out(Engine(most_sequences=16), a_problem(parameters=["max_num_seqs"]))
    assert "boundary: Out of memory in the sampler" in rows[-1]["verdict"]
    assert best(step) == {**GIVEN, "max_num_seqs": 16}


def test_an_engine_that_does_not_serve_is_begun_small():
    step, rows = run_out(Engine(longest=4000), a_problem())
    assert (rows[0]["kept"], rows[1]["kept"]) == (False, True)
    assert 2048 <= best(step)["max_model_len"] < 4000


def test_an_engine_that_serves_in_no_way_ends_it():
    step, rows = run_out(Engine(longest=100), a_problem())
    assert step["verdict"] == "stuck"
    assert len(rows) == 2
    assert step["changes"] == {}


def test_a_load_that_cannot_be_measured_ends_it():
    engine = Engine()
    engine.start = lambda values, measure, repeats: {
        "outcome": "serves",
        "runs": [],
        "minutes": 1,
        "finding": {"title": "no vllm bench"},
    }
    step, rows = run_out(engine, a_problem(parameters=["max_num_seqs"]))
    assert step["verdict"] == "stuck"
    assert "could not be measured: no vllm bench" in rows[0]["verdict"]


def test_an_interrupted_tuning_goes_on_where_it_was():
    whole, all_rows = run_out(Engine(longest=30000, batch=16), a_problem(max_model_len=65536))
    for number in range(1, len(all_rows)):
        rows = [{"time": "2026-11-30T12:00:00Z", "release": 3, "outcome": "kept"}, *all_rows[:number]]
        # Another plan runs by then, and other facts are read.
        problem = a_problem(max_model_len=65536)
        problem["plan"]["arguments"] = []
        engine = Engine(longest=30000, batch=16, noise=0)
        step, _rows = run_out(engine, problem, rows)
        assert (step["changes"], step["number"]) == (whole["changes"], whole["number"])
        assert len(engine.starts) == len(all_rows) - number


def test_a_tuning_that_has_ended_or_is_of_something_else_is_not_continued():
    problem = a_problem()
    end, rows = run_out(Engine(), problem)
    rows.append({"kind": "tune", "stage": "end", "basis": end["basis"], "number": end["number"]})
    assert next_step(problem, rows)["number"] == 1
    assert next_step(a_problem(bounds={"p99_ttft_ms": 100}), rows[:3])["number"] == 1
    assert next_step(problem, rows[:3])["number"] == 4


def test_bounds_of_steps_and_minutes_end_it_with_the_best_so_far():
    problem = a_problem(max_steps=4, start="running", parameters=["max_num_batched_tokens", "tensor_parallel_size"])
    step, rows = run_out(Engine(gain_of_batched_tokens=0.5), problem)
    assert len(rows) == 4 or step["why"] == "Every parameter was tried."
    step, rows = run_out(Engine(gain_of_batched_tokens=0.5), {**problem, "max_steps": 2})
    assert (len(rows), step["why"]) == (2, "2 steps were taken.")
    assert best(step)["max_num_batched_tokens"] == 4096
    step, rows = run_out(Engine(), a_problem(max_minutes=5))
    assert (len(rows), step["why"]) == (3, "The 5 minutes are over.")


def test_rows_of_another_procedure_are_refused():
    _step, rows = run_out(Engine(), a_problem(), steps=3)
    rows[1] = {**rows[1], "stage": "medium"}
    with pytest.raises(TuningError, match="vllm_tune_again"):
        next_step(a_problem(), rows)


def test_a_pool_in_bytes_is_tuned_in_bytes():
    problem = a_problem(parameters=["gpu_memory_utilization"])
    problem["instance"]["engine_args"] = {"kv_cache_memory_bytes": 1 << 30}
    step = next_step(problem, [])
    result = {"outcome": "serves", "minutes": 1, "runs": [{"output_throughput": 10}] * 3}
    rows = [row_of(problem, [], step, result)]
    small = next_step(problem, rows)
    assert small["changes"]["engine_args.kv_cache_memory_bytes"] == 1 << 29
    assert "engine_args.gpu_memory_utilization" not in small["changes"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"parameters": ["max_tokens"]}, "max_tokens is unknown"),
        ({"bounds": {"p50_ttft": 1}}, "p50_ttft is unknown"),
        ({"maximize": "speed"}, "known are output_throughput"),
        ({"start": "big"}, "known are small, running"),
        ({"load": {"users": 3}}, "users is unknown"),
        ({"plan": {"name": "chat", "verdict": "does_not_fit"}}, "does not fit as it is"),
        ({"plan": {"name": "chat", "verdict": "fits", "task": "rerank"}}, "only engines for generate or embed"),
        ({"plan": {"name": "chat", "verdict": "fits", "launch": {"method": "ray"}}}, "spans several hosts"),
    ],
)
def test_what_cannot_be_tuned_is_refused(other, said):
    with pytest.raises(TuningError, match=said):
        next_step(a_problem(**other), [])


def an_embedder(**other):
    problem = a_problem(load={"concurrency": 64}, bounds={"p99_e2el_ms": 900}, **other)
    problem["plan"]["task"] = "embed"
    return problem


def test_an_engine_that_embeds_is_tuned_by_the_tokens_that_it_takes_in():
    step = next_step(an_embedder(), [])
    assert (step["case"]["maximize"], step["case"]["task"]) == ("total_token_throughput", "embed")
    assert step["load"]["output_tokens"] == 0
    # 90 % of the context, as for a prompt with its answer.
    assert step["load"]["input_tokens"] == 7372
    assert not {"kv_cache_dtype", "enable_prefix_caching"} & set(step["case"]["parameters"])
    with pytest.raises(TuningError, match="p99_ttft_ms is unknown; known are mean_e2el_ms"):
        next_step({**an_embedder(), "bounds": {"p99_ttft_ms": 900}}, [])


def test_the_number_of_cards_changes_in_no_step_but_its_own():
    """A plan that may choose makes stages on the cards that a smaller tensor_parallel_size leaves."""
    problem = a_problem(start="running")
    problem["plan"]["parallel"] = {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}
    _step, rows = run_out(Engine(gain_of_second_card=0.5), problem)
    (tried,) = [row for row in rows if row["stage"] == "tensor_parallel_size"]
    assert (tried["change"]["from"], tried["change"]["to"], tried["kept"]) == (2, 1, True)
    assert all(best(row)["pipeline_parallel_size"] == 1 for row in rows[1:])


def test_stages_are_left_as_they_are_and_count_as_cards():
    problem = a_problem(start="running", parameters=["tensor_parallel_size", "max_num_seqs"])
    problem["plan"]["parallel"] = {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}
    step, rows = run_out(Engine(), problem)
    assert not [row for row in rows if row["stage"] == "tensor_parallel_size"]
    assert any("stages on several cards" in note for note in step["notes"])
    assert rows[0]["verdict"].startswith("3,192 output_throughput")


def test_memory_that_breaks_a_bound_or_does_not_run_is_not_said_to_gain_nothing():
    engine = Engine()
    whole = engine.start
    engine.start = lambda values, measure, repeats: (
        failed("Out of memory") if 0.81 < values["gpu_memory_utilization"] < 0.9 else whole(values, measure, repeats)
    )
    step, rows = run_out(engine, a_problem(parameters=["gpu_memory_utilization"]))
    assert any("boundary: Out of memory" in row["verdict"] for row in rows)
    assert not any(note.startswith("Memory is not the bottleneck") for note in step["notes"])


def test_bounds_that_nothing_keeps_are_said():
    problem = a_problem(bounds={"p99_tpot_ms": 0.5}, parameters=["max_num_seqs"])
    step, _rows = run_out(Engine(), problem)
    assert any(note.startswith("The bounds are not kept") and "p99_tpot_ms" in note for note in step["notes"])


def test_a_start_that_keeps_the_bounds_beats_one_that_nearly_does():
    kept, told = compare(Mark(90, 0, 0, ()), Mark(100, 0, 0.01, ("p99_ttft_ms 101 is above 100",)), noise=0.05)
    assert (kept, told) == (True, "keeps the bounds")


def test_a_figure_that_the_benchmark_lacks_is_named():
    problem = a_problem(bounds={"p99_itl_ms": 20})
    step = next_step(problem, [])
    with pytest.raises(TuningError, match="measures no p99_itl_ms"):
        row_of(problem, [], step, Engine().start(GIVEN, True, 2))


def test_what_could_not_be_measured_does_not_replace_what_there_was():
    engine = Engine()
    whole = engine.start

    def start(values, measure, repeats):
        result = whole(values, measure, repeats)
        return result if values["max_num_seqs"] == 64 else {**result, "runs": [], "finding": {"title": "no answer"}}

    engine.start = start
    step, _rows = run_out(engine, a_problem())
    assert step["changes"] == {}
    assert any("nothing else could be measured" in note for note in step["notes"])


@pytest.mark.parametrize(
    ("now", "verdict"),
    [("21:59", "paused"), ("22:00", "try"), ("04:50", "try"), ("04:56", "paused"), ("05:00", "paused")],
)
def test_a_step_that_would_not_end_within_the_window_is_not_begun(now, verdict):
    problem = a_problem()
    _step, rows = run_out(Engine(), problem, steps=2)
    assert max(row["minutes"] for row in rows) == 2
    # Four minutes for a step and the way back.
    step = next_step({**problem, "window": "22:00-05:00", "now": now}, rows)
    assert (step["verdict"], step.get("changes") == {}) == (verdict, verdict == "paused")


@pytest.mark.parametrize("engine", [Engine(batch=4), Engine(gain_of_batched_tokens=0.3), Engine(gain_of_second_card=2)])
def test_with_what_is_shown_the_next_deployment_runs_what_was_found(engine):
    """The planner chooses each value with an eye on the others; of a few pins it would make something else."""
    pair, qwen = host(gpu(0, "L40S"), gpu(1, "L40S"), links=[]), checkpoint("Qwen3-8B")
    instance = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "workload": {"context": 32768, "sequences": 8}}

    def planned(changes):
        return plan({**with_changes(instance, changes), "checkpoint": qwen}, [pair])

    first = planned({})
    problem = a_problem(
        instance=instance, plan={"name": "chat", **first}, hosts=[pair], checkpoint=qwen, max_model_len=40960
    )
    step, rows = run_out(engine, problem)
    assert step["changes"]
    shown = read_tuning([*rows, {**step, "stage": "end"}], "gpu01", "chat").engine_args()
    found, deployed = (
        {argument["name"]: argument["value"] for argument in planned(changes)["arguments"]}
        for changes in (step["changes"], {f"engine_args.{name}": value for name, value in shown.items()})
    )
    # What is not shown is what the release does anyway.
    assert {name: found[name] for name in deployed} == deployed
    assert set(found) - set(deployed) <= {"kv_cache_dtype"}

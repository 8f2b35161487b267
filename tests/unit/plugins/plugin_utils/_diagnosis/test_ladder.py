# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from planning_examples import checkpoint, gpu, host

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._changes import ladder_context, with_changes
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose, ladder, ladder_row
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.change import _PROPOSALS, current_value
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.ladder import _ladders
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.signatures import signatures
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan

NO_BLOCKS = "ValueError: No available memory for the cache blocks."
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (32768), 4.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.50 GiB). Based on the available memory, the estimated "
    "maximum model length is 12290."
)


def gpus(count, free=80000):
    return [{"gpus": [{"memory_total_mib": 81559, "memory_free_mib": free} for _index in range(count)]}]


def climb(line, pins, hosts=None, steps=20, **instance):
    """The changes that the ladder proposes when every start fails alike."""
    pins, ledger = dict(pins), []
    while True:
        context = {"instance": {"engine_args": pins, **instance}, "hosts": hosts or []}
        told = ladder(diagnose(line, context), context, ledger, max_steps=steps)
        if told["verdict"] != "try":
            return ledger, told
        change = told["change"]
        ledger.append(change)
        pins[change["variable"].partition(".")[2]] = change["to"]


def test_every_proposal_of_the_ladder_is_known():
    for rungs in _ladders().values():
        for rung in rungs:
            assert ("propose" in rung) != ("to" in rung)
            assert rung.get("propose", "halve") in _PROPOSALS
            assert rung["why"].endswith(".")


def test_memory_follows_the_official_order():
    pins = {"gpu_memory_utilization": 0.85, "max_num_seqs": 4, "max_num_batched_tokens": 4096, "max_model_len": 8192}
    ledger, told = climb(NO_BLOCKS, pins, gpus(2))
    assert [(row["variable"].partition(".")[2], row["to"]) for row in ledger] == [
        ("gpu_memory_utilization", 0.9),
        ("gpu_memory_utilization", 0.95),
        ("max_num_seqs", 2),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 2048),
        ("max_num_batched_tokens", 1024),
        ("max_model_len", 4096),
        ("max_model_len", 2048),
        ("tensor_parallel_size", 2),
    ]
    assert (told["verdict"], told["change"]) == ("exhausted", None)


def test_the_utilization_is_raised_only_into_free_memory():
    ledger, _told = climb(NO_BLOCKS, {"gpu_memory_utilization": 0.85, "max_num_seqs": 2}, gpus(1, free=71000))
    assert ledger[0] == {"variable": "engine_args.max_num_seqs", "from": 2, "to": 1}


@pytest.mark.parametrize(("prefer", "first"), [("sequences", "max_model_len"), ("context", "gpu_memory_utilization")])
def test_the_workload_decides_whether_the_length_is_given_up_first(prefer, first):
    ledger, _told = climb(TOO_LONG, {"gpu_memory_utilization": 0.8}, gpus(1), workload={"prefer": prefer})
    assert ledger[0]["variable"] == f"engine_args.{first}"
    assert {"variable": "engine_args.max_model_len", "from": 32768, "to": 12288} in ledger


def test_weights_are_divided_only_over_gpus_that_are_there():
    line = "Failed to load model - not enough GPU memory"
    ledger, told = climb(line, {}, gpus(4), checkpoint={"num_attention_heads": 32})
    assert [row["to"] for row in ledger] == [2, 4]
    assert told["verdict"] == "exhausted"
    ledger, _told = climb(line, {}, gpus(4), checkpoint={"num_attention_heads": 14})
    assert [(row["variable"], row["to"]) for row in ledger] == [
        ("engine_args.tensor_parallel_size", 2),
        ("engine_args.pipeline_parallel_size", 2),
    ]


def test_which_allocation_failed_decides_the_direction():
    oom = "torch.OutOfMemoryError: CUDA out of memory."
    pins = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}
    graphs, _told = climb(f"Capturing CUDA graphs (decode, FULL):  40%|##| 14/35 [00:01]\n{oom}", pins)
    sampler, _told = climb("CUDA out of memory occurred when warming up sampler with 256 dummy requests", pins)
    assert graphs[0] == {"variable": "engine_args.gpu_memory_utilization", "from": 0.9, "to": 0.85}
    assert sampler[0] == {"variable": "engine_args.max_num_seqs", "from": 256, "to": 128}


def test_eager_is_a_probe():
    told = ladder(diagnose("RuntimeError: CUDA error: an illegal memory access was encountered"))
    assert told["change"] == {"variable": "engine_args.enforce_eager", "from": None, "to": True}
    assert told["probe"]


def test_multi_gpu_trouble_turns_off_the_custom_all_reduce():
    ledger, _told = climb("Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'", {})
    assert [row["variable"] for row in ledger] == [
        "engine_args.disable_custom_all_reduce",
        "environment.NCCL_P2P_DISABLE",
    ]


def test_the_ladder_is_bounded():
    ledger, told = climb(NO_BLOCKS, {"gpu_memory_utilization": 0.5, "max_num_seqs": 256}, steps=3)
    assert len(ledger) == 3
    assert (told["verdict"], told["steps_left"]) == ("exhausted", 0)


def test_a_class_without_a_ladder_uses_the_change_of_its_finding():
    told = ladder(diagnose("[Errno 98] address already in use", {"instance": {"port": 8000}}))
    assert (told["verdict"], told["change"]) == ("try", {"variable": "port", "from": 8000, "to": 8001})


@pytest.mark.parametrize("line", ["Failed to initialize NVML: Driver/library version mismatch", "hello"])
def test_where_no_change_helps_it_says_look(line):
    told = ladder(diagnose(line))
    assert (told["verdict"], told["change"]) == ("look", None)
    assert told["why"]


def test_the_plan_says_what_hardware_is_needed():
    findings = diagnose("Failed to load model - not enough GPU memory")
    told = ladder(findings, {"plan": {"needs": ["2 GPUs of 80 GiB"]}, "hosts": gpus(1)})
    assert told["why"] == "No change helps. Needed: 2 GPUs of 80 GiB."


def climb_engine(behaviour, pins, minutes=5.0, max_minutes=60.0, max_steps=8, **instance):
    """Climbs as the role does: start, diagnose, one change, start again; the ledger and the verdict come back."""
    ledger, changes, step = [], {}, None
    while True:
        line = behaviour(changes)
        merged = {
            "engine_args": {**pins, **{k[12:]: v for k, v in changes.items() if k.startswith("engine_args.")}},
            "environment": {k[12:]: v for k, v in changes.items() if k.startswith("environment.")},
        }
        context = {"instance": {**merged, "image": "vllm/vllm-openai:v0.32.0", **instance}}
        findings = diagnose(line, context) if line else []
        if step:
            ledger.append(ladder_row(step, "failed" if line else "serves", minutes, findings))
        step = ladder(findings, context, ledger, max_steps, max_minutes, serves=line is None)
        if step["verdict"] != "try":
            return ledger, step
        changes = step["changes"]


OOM_GRAPHS = "Capturing CUDA graphs (decode, FULL):  40%|##| 14/35 [00:01]\ntorch.OutOfMemoryError: CUDA out of memory."
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
CUSTOM = "Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'"


def test_it_ends_with_an_engine_that_serves():
    ledger, told = climb_engine(
        lambda changes: None if changes.get("engine_args.gpu_memory_utilization", 1) <= 0.8 else OOM_GRAPHS,
        {"gpu_memory_utilization": 0.9},
    )
    assert [(row["from"], row["to"], row["outcome"], row["kept"]) for row in ledger] == [
        (0.9, 0.85, "failed", True),
        (0.85, 0.8, "serves", True),
    ]
    assert (told["verdict"], told["changes"]) == ("serves", {"engine_args.gpu_memory_utilization": 0.8})


def test_a_switch_that_did_not_help_is_taken_back():
    ledger, told = climb_engine(lambda changes: None if changes.get("environment.NCCL_P2P_DISABLE") else CUSTOM, {})
    assert [(row["variable"], row["kept"]) for row in ledger] == [
        ("engine_args.disable_custom_all_reduce", False),
        ("environment.NCCL_P2P_DISABLE", True),
    ]
    assert told["changes"] == {"environment.NCCL_P2P_DISABLE": "1"}


def test_a_switch_that_led_to_another_failure_stays():
    def engine(changes):
        if not changes.get("engine_args.disable_custom_all_reduce"):
            return CUSTOM
        return None if changes.get("engine_args.gpu_memory_utilization") == 0.85 else OOM_GRAPHS

    ledger, told = climb_engine(engine, {"gpu_memory_utilization": 0.9})
    assert [row["class"] for row in ledger] == ["custom_all_reduce", "oom_cudagraph"]
    assert told["changes"] == {
        "engine_args.disable_custom_all_reduce": True,
        "engine_args.gpu_memory_utilization": 0.85,
    }


def test_a_probe_that_serves_is_taken_back_and_what_is_behind_it_is_looked_for():
    ledger, told = climb_engine(
        lambda changes: None if {"engine_args.enforce_eager", "engine_args.moe_backend"} & set(changes) else ILLEGAL, {}
    )
    assert [(row["variable"].partition(".")[2], row["outcome"], row["kept"]) for row in ledger] == [
        ("enforce_eager", "serves", False),
        ("VLLM_USE_DEEP_GEMM", "failed", False),
        ("moe_backend", "serves", True),
    ]
    assert told["changes"] == {"engine_args.moe_backend": "triton"}


def test_where_only_the_probe_serves_it_stays():
    ledger, told = climb_engine(lambda changes: None if "engine_args.enforce_eager" in changes else ILLEGAL, {})
    assert [row["variable"].partition(".")[2] for row in ledger] == [
        "enforce_eager",
        "VLLM_USE_DEEP_GEMM",
        "moe_backend",
        "linear_backend",
        "VLLM_USE_FLASHINFER_SAMPLER",
        "enforce_eager",
    ]
    assert ledger[-1]["kept"]
    assert (told["verdict"], told["changes"]) == ("serves", {"engine_args.enforce_eager": True})


def test_a_probe_that_fails_is_taken_back():
    ledger, told = climb_engine(lambda changes: ILLEGAL, {})
    assert not any(row["kept"] for row in ledger)
    assert (told["verdict"], told["changes"]) == ("exhausted", {})


def test_the_kernel_that_the_line_names_comes_first():
    told = ladder(diagnose("RuntimeError: DeepGEMM fp8 kernel failed: CUDA error: unspecified launch failure"))
    assert told["change"]["variable"] == "environment.VLLM_USE_DEEP_GEMM"


def test_the_time_is_bounded():
    ledger, told = climb_engine(lambda changes: NO_BLOCKS, {"gpu_memory_utilization": 0.5}, minutes=25, max_minutes=60)
    assert len(ledger) == 3
    assert (told["verdict"], told["minutes_left"], told["why"]) == ("exhausted", 0, "The 60 minutes are over.")


def test_one_change_a_step_in_every_climb():
    for line in (NO_BLOCKS, TOO_LONG, OOM_GRAPHS, ILLEGAL, CUSTOM):
        pins = {
            "gpu_memory_utilization": 0.8,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "max_model_len": 8192,
        }
        ledger, told = climb_engine(lambda changes, line=line: line, pins, max_steps=20)
        assert told["verdict"] == "exhausted"
        assert [row["step"] for row in ledger] == list(range(1, len(ledger) + 1))


@pytest.mark.parametrize(
    ("log", "variable"),
    [
        ("CUDA out of memory occurred when warming up sampler with 256 dummy requests", "max_num_seqs"),
        (
            '  File "gpu_model_runner.py", line 5, in profile_run\ntorch.OutOfMemoryError: CUDA out of memory.',
            "max_num_batched_tokens",
        ),
        (
            "INFO:     Application startup complete.\nERROR EngineCore encountered a fatal error.\n"
            "torch.OutOfMemoryError: CUDA out of memory.",
            "gpu_memory_utilization",
        ),
    ],
)
def test_the_allocation_decides_the_first_rung(log, variable):
    pins = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
    context = {"instance": {"engine_args": pins}}
    assert ladder(diagnose(log, context), context)["change"]["variable"] == f"engine_args.{variable}"


def test_the_line_tells_what_is_needed_where_there_is_no_plan():
    ledger, told = climb_engine(lambda changes: TOO_LONG, {"gpu_memory_utilization": 0.95}, max_steps=20)
    assert told["needs"] == ["2.5 GiB more KV cache on each GPU: a larger GPU, or more of them"]


def test_the_ladder_of_a_signature_exists():
    for signature in signatures():
        assert signature.ladder is None or signature.ladder in _ladders()


# Four cards, so that an engine may be divided.
FOUR = host(*(gpu(index, "L40S") for index in range(4)), links=[])
CHAT = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.32.0",
    "checkpoint": checkpoint("Qwen3-8B"),
    "workload": {"context": 32768, "sequences": 16},
}
SAMPLER = "CUDA out of memory occurred when warming up sampler with 256 dummy requests"
SERVING = (
    "INFO:     Application startup complete.\nERROR EngineCore encountered a fatal error.\n"
    "torch.OutOfMemoryError: CUDA out of memory."
)
LADDER_ARGUMENTS = (
    *("max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager"),
    *("tensor_parallel_size", "pipeline_parallel_size", "disable_custom_all_reduce"),
)


def what_runs(planned):
    """The arguments of a start, with the release's defaults for those that the plan leaves alone."""
    context = {"plan": planned, "hosts": [FOUR]}
    return {name: current_value(f"engine_args.{name}", context) for name in LADDER_ARGUMENTS}


@pytest.mark.parametrize("log", [NO_BLOCKS, TOO_LONG, OOM_GRAPHS, SAMPLER, SERVING, ILLEGAL, CUSTOM])
@pytest.mark.parametrize("pins", [{}, {"max_num_seqs": 64}])
def test_each_start_differs_from_the_last_one_by_its_change_alone(log, pins):
    """As the role climbs: each step is planned, and a plan that may choose moves more than one value."""
    instance = {**CHAT, "engine_args": pins}
    planned, changes, rows = plan(instance, [FOUR]), {}, []
    for _step in range(8):
        context = ladder_context(with_changes(instance, changes), planned, [FOUR])
        step = ladder(diagnose(log, context), context, rows)
        if step["verdict"] != "try":
            break
        trial = plan(with_changes(instance, {**step["held"], **step["changes"]}), [FOUR])
        if trial["verdict"] in ("fits", "fits_reduced"):
            # A switch that did not help goes back in the same step.
            back = {variable.partition(".")[2] for variable in set(changes) - set(step["changes"])}
            before, after = what_runs(planned), what_runs(trial)
            different = {name for name in before if before[name] != after[name]} - back
            assert different <= {step["change"]["variable"].partition(".")[2]}
            planned, changes = trial, step["changes"]
            rows.append(ladder_row(step, "failed", 1, diagnose(log, context)))
        else:
            rows.append(ladder_row(step, "refused", 0))
    assert rows


def test_what_was_proven_is_told_with_what_the_plan_chose_beside_it():
    planned = plan(CHAT, [FOUR])
    context = ladder_context(CHAT, planned, [FOUR])
    step = ladder(diagnose(SAMPLER, context), context)
    trial = plan(with_changes(CHAT, {**step["held"], **step["changes"]}), [FOUR])
    rows = [ladder_row(step, "serves", 2)]
    told = ladder([], ladder_context(with_changes(CHAT, step["changes"]), trial, [FOUR]), rows, serves=True)
    assert told["verdict"] == "serves"
    assert told["proven"]["engine_args.max_num_seqs"] == told["changes"]["engine_args.max_num_seqs"]
    # With this in the inventory the next deployment runs what was proven.
    assert what_runs(plan(with_changes(CHAT, told["proven"]), [FOUR])) == what_runs(trial)


def test_a_change_that_the_plan_refuses_is_taken_back():
    context = {"instance": {"engine_args": {"gpu_memory_utilization": 0.8, "max_num_seqs": 8}}, "hosts": gpus(1)}
    step = ladder(diagnose(NO_BLOCKS, context), context)
    row = ladder_row(step, "refused", 0.1)
    assert (row["variable"], row["kept"], row["finding"]) == (
        "engine_args.gpu_memory_utilization",
        False,
        "the plan refuses it",
    )
    following = ladder(diagnose(NO_BLOCKS, context), context, [row])
    assert following["changes"] == {"engine_args.max_num_seqs": 4}


def test_a_value_that_failed_is_not_gone_back_to():
    context = {"instance": {"engine_args": {"gpu_memory_utilization": 0.9, "max_num_seqs": 8}}, "hosts": gpus(1)}
    raised = {"variable": "engine_args.gpu_memory_utilization", "from": 0.85, "to": 0.9, "kept": True}
    assert ladder(diagnose(OOM_GRAPHS, context), context, [raised])["change"]["variable"] == "engine_args.max_num_seqs"


def test_only_gpus_that_the_instance_may_use_count():
    context = {
        "instance": {"name": "chat", "checkpoint": "/srv/models/x", "gpus": [1], "engine_args": {}},
        "hosts": [FOUR],
    }
    assert ladder(diagnose("Failed to load model - not enough GPU memory", context), context)["verdict"] == "exhausted"
    full = {**FOUR, "gpus": [{**FOUR["gpus"][0], "memory_free_mib": 1000}, FOUR["gpus"][1]]}
    context["instance"]["engine_args"] = {"gpu_memory_utilization": 0.8}
    assert (
        ladder(diagnose(NO_BLOCKS, {**context, "hosts": [full]}), {**context, "hosts": [full]})["change"]["to"] == 0.85
    )


def test_a_checkpoint_that_is_a_path_is_no_obstacle():
    context = {"instance": {"name": "chat", "checkpoint": "/srv/models/x", "engine_args": {}}, "hosts": gpus(2)}
    findings = diagnose("Failed to load model - not enough GPU memory", context)
    assert ladder(findings, context)["change"]["variable"] == "engine_args.tensor_parallel_size"


def test_a_cache_in_bytes_is_changed_in_bytes():
    instance = {**CHAT, "engine_args": {"kv_cache_memory_bytes": 8 << 30, "max_model_len": 4096}}
    planned = plan(instance, [FOUR])
    context = ladder_context(instance, planned, [FOUR])
    more = ladder(diagnose(NO_BLOCKS, context), context)["change"]
    less = ladder(diagnose(SERVING, context), context)["change"]
    assert (more["variable"], less["variable"]) == ("engine_args.kv_cache_memory_bytes",) * 2
    assert less["to"] < more["from"] == 8 << 30 < more["to"]
    # Where the card is full there is no more.
    full = {**planned, "budget": [{**line, "free_gib": line["weights_gib"]} for line in planned["budget"]]}
    context["plan"] = full
    assert ladder(diagnose(NO_BLOCKS, context), context)["change"]["variable"] != "engine_args.kv_cache_memory_bytes"


def test_a_pin_of_the_climb_is_no_hardware():
    context = {"plan": {"needs": ["max_num_seqs of 16, or no pin", "4 GPUs like NVIDIA L40S"]}, "hosts": gpus(1)}
    assert ladder(diagnose("Failed to load model - not enough GPU memory"), context)["needs"] == [
        "4 GPUs like NVIDIA L40S"
    ]

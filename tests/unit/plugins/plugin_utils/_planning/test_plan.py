# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import json

import pytest
from planning_examples import argument, checkpoint, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import InstanceError, plan, plan_instances

SEED = "R1-Distill-Qwen-14B"


# -- the seeds' worked examples ---------------------------------
def test_the_14b_distill_takes_196608_bytes_a_token():
    assert plan(instance(SEED), hosts())["kv"]["bytes_per_token"] == 196_608


def test_one_32k_request_of_the_14b_distill_takes_6_gib_and_eight_take_48():
    for sequences, gib in ((1, 6), (8, 48)):
        pinned = {"kv_cache_memory_bytes": gib * 2**30, "max_model_len": 32768}
        planned = plan(instance(SEED, engine_args=pinned), hosts())
        assert planned["kv"]["max_concurrency"] == sequences


def test_a_long_request_of_the_14b_distill_takes_34_gb_with_the_weights():
    budget = plan(instance(SEED), hosts())["budget"][0]
    weights_gb = budget["weights_gib"]["value"] * 2**30 / 1e9
    # 14.77e9 parameters in bfloat16 are 29.5 GB; the seed says "about 28" and adds 6 GiB (6.44 GB).
    assert weights_gb == pytest.approx(29.5, abs=0.2)
    assert weights_gb + 32768 * 196_608 / 1e9 == pytest.approx(34, abs=2.5)


def test_14_gb_of_weights_is_the_8_bit_figure_of_the_14b_distill():
    in_bf16 = plan(instance(SEED, engine_args={"max_model_len": 4096}), hosts())["budget"][0]["weights_gib"]["value"]
    assert 27 < in_bf16 < 28
    in_8_bit = plan(instance(SEED, engine_args={"max_model_len": 4096, "quantization": "fp8"}), hosts())
    assert 14 < in_8_bit["budget"][0]["weights_gib"]["value"] < 16


def test_the_24_gb_card_cannot_take_the_14b_distill_in_16_bits():
    planned = plan(instance(SEED, workload={"context": 32768, "sequences": 1}), hosts(1, "RTX 4090"))
    assert planned["verdict"] == "does_not_fit"
    assert any("GPUs like" in need for need in planned["needs"])
    assert any("8-bit" in need for need in planned["needs"])


@pytest.mark.parametrize(("release", "default"), [("0.19.1", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_the_default_utilization_is_that_of_the_release(release, default):
    budget = plan(instance(release=release), hosts())["budget"][0]
    assert budget["requested_gib"]["value"] / budget["total_gib"]["value"] == pytest.approx(default, abs=0.001)


# -- prediction -------------------------------------------------
def test_the_labs_tiny_model_has_1048576_tokens_in_1_gib():
    planned = plan(instance("tiny", "0.32.0", engine_args={"kv_cache_memory_bytes": 2**30}), hosts(2, "A100"))
    assert planned["verdict"] == "fits"
    assert planned["kv"]["tokens"] == planned["kv"]["tokens_low"] == 1_048_576
    assert planned["parallel"]["tensor_parallel_size"] == 1
    assert [item["name"] for item in planned["arguments"]] == ["kv_cache_memory_bytes"]


PREDICTIONS = [
    # Measured on an H100 80 GB (79.19 GiB to CUDA): llm-d-planner, accuracy/results, and its version sweep.
    ("Qwen3-14B", "0.16.0", {}, 5.64, 0.13, 41.94),
    ("Qwen3-14B", "0.17.0", {}, 2.23, 0.13, 45.34),
    ("Qwen3-14B", "0.18.0", {}, 2.23, 0.25, 45.23),
    ("Qwen3-8B", "0.19.0", {}, 2.21, 0.25, 57.50),
    ("Llama-3.1-8B", "0.19.0", {}, 1.89, 0.25, 58.11),
    ("Llama-3.1-8B", "0.19.0", {"tensor_parallel_size": 2}, 1.89, 2.07, 63.76),
    ("Mixtral-8x7B", "0.19.0", {"tensor_parallel_size": 2}, 1.21, 2.07, 28.44),
]


@pytest.mark.parametrize(("model", "release", "pins", "activation", "non_torch", "pool"), PREDICTIONS)
def test_with_everything_pinned_a_plan_is_a_prediction(model, release, pins, activation, non_torch, pool):
    pinned = {
        "gpu_memory_utilization": 0.95,
        "max_model_len": 8192,
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "tensor_parallel_size": 1,
        **pins,
    }
    planned = plan(instance(model, release, engine_args=pinned), hosts(pinned["tensor_parallel_size"]))
    budget = planned["budget"][0]
    assert budget["activation_gib"]["value"] == pytest.approx(activation, abs=0.05)
    assert budget["non_torch_gib"]["value"] == pytest.approx(non_torch, abs=0.1)
    assert budget["kv_pool_gib"]["value"] == pytest.approx(pool, rel=0.005)
    assert budget["kv_pool_gib"]["low"] <= pool <= budget["kv_pool_gib"]["high"]


def test_the_terms_add_up_to_what_was_requested():
    for release in ("0.19.0", "0.32.0"):
        budget = plan(instance(release=release), hosts())["budget"][0]
        terms = ["weights_gib", "activation_gib", "non_torch_gib", "kv_pool_gib"]
        if budget["cuda_graphs_in_request"]:
            terms.append("cuda_graph_gib")
        assert sum(budget[term]["value"] for term in terms) == pytest.approx(budget["requested_gib"]["value"], abs=0.01)


def test_graphs_leave_the_pool_from_0_20_on():
    before = plan(instance("Llama-3.1-8B", "0.19.1"), hosts())["budget"][0]
    after = plan(instance("Llama-3.1-8B", "0.20.0"), hosts())["budget"][0]
    assert not before["cuda_graphs_in_request"]
    assert after["cuda_graphs_in_request"]


# -- choice -----------------------------------------------------
def test_one_card_is_preferred_and_the_idle_ones_are_offered_as_replicas():
    planned = plan(instance(workload={"context": 8192, "sequences": 8}), hosts(8))
    assert planned["parallel"]["tensor_parallel_size"] == 1
    assert planned["devices"] == {"gpu1": ["GPU-H100-0"]}
    assert any(
        "7 GPUs of gpu1 idle" in item["decision"] and "7 more replicas" in item["why"] for item in planned["decisions"]
    )


def test_the_fewest_cards_that_keep_the_promise():
    planned = plan(instance("Llama-3.1-70B", workload={"context": 16384, "sequences": 16}), hosts(8))
    assert (planned["verdict"], argument(planned, "tensor_parallel_size")) == ("fits", 4)


def test_the_length_is_that_of_the_load():
    planned = plan(instance("Llama-3.1-8B", workload={"context": 8192, "sequences": 8}), hosts())
    assert argument(planned, "max_model_len") == 8192
    assert argument(plan(instance("Qwen3-8B"), hosts()), "max_model_len") == 32768
    assert argument(plan(instance("tiny"), hosts()), "max_model_len") is None
    promised = plan(instance("tiny", workload={"context": 4096, "sequences": 1}), hosts())
    assert argument(promised, "max_model_len") == 4096  # promised, so said, though the model takes no more


def test_what_is_not_needed_is_no_argument():
    planned = plan(instance(workload={"context": 8192, "sequences": 8}), hosts())
    assert [item["name"] for item in planned["arguments"]] == ["max_model_len"]


@pytest.mark.parametrize(
    ("prefer", "kept", "cut"), [("context", "context", "sequences"), ("sequences", "sequences", "context")]
)
def test_the_preference_says_which_promise_is_cut(prefer, kept, cut):
    promised = {"context": 32768, "sequences": 4, "prefer": prefer}
    planned = plan(instance(workload=promised), hosts(1, "RTX 4090"))
    assert planned["verdict"] == "fits_reduced"
    assert planned["workload"][kept] == promised[kept]
    assert planned["workload"][cut] < promised[cut]
    assert any("cut from" in item["decision"] for item in planned["decisions"])
    assert planned["needs"]


def test_what_was_kept_of_the_promise_fits_into_the_low_end():
    planned = plan(instance(workload={"context": 32768, "sequences": 4, "prefer": "sequences"}), hosts(1, "RTX 4090"))
    kept = planned["workload"]
    assert kept["sequences"] * kept["context"] <= planned["kv"]["tokens_low"]
    assert argument(planned, "max_model_len") == kept["context"]


def test_more_than_the_default_is_requested_only_where_the_promise_needs_it():
    small = plan(instance("Qwen3-14B", workload={"context": 16384, "sequences": 2}), hosts())
    large = plan(instance("Qwen3-14B", workload={"context": 40960, "sequences": 7}), hosts())
    assert argument(small, "gpu_memory_utilization") is None
    assert 0.92 < argument(large, "gpu_memory_utilization") < 1
    assert large["verdict"] == "fits"


def test_batches_are_cut_before_more_cards_are_taken():
    planned = plan(instance("Llama-3.1-8B", workload={"context": 8192, "sequences": 4}), hosts(2, "RTX 4090"))
    assert planned["parallel"]["tensor_parallel_size"] == 1
    assert planned["verdict"] == "fits"


def test_a_typical_length_bounds_the_requests_at_once():
    workload = {"context": 32768, "sequences": 16, "typical_context": 4096}
    planned = plan(instance(workload=workload), hosts(1, "A100"))
    most = argument(planned, "max_num_seqs")
    assert most is not None
    assert 16 <= most <= planned["kv"]["tokens"] // 4096


# -- pins -------------------------------------------------------
def test_every_pin_is_an_argument_with_its_value():
    pins = {
        "gpu_memory_utilization": 0.5,
        "max_model_len": "4K",
        "max_num_seqs": 17,
        "tool_call_parser": "hermes",
        "enable_auto_tool_choice": True,
        "tensor_parallel_size": 2,
    }
    planned = plan(instance(engine_args=pins), hosts(4))
    assert {item["name"]: item["value"] for item in planned["arguments"]} == pins
    assert planned["kv"]["max_model_len"] == 4096


def test_a_pin_that_the_release_does_not_know_is_found_with_the_name_that_it_has_there():
    planned = plan(instance(release="0.32.0", engine_args={"swap_space": 4, "max_model_length": 8192}), hosts())
    assert planned["verdict"] == "unsupported"
    assert {error["variable"] for error in planned["errors"]} == {
        "engine_args.swap_space",
        "engine_args.max_model_length",
    }
    assert any("--max-model-len" in error["message"] for error in planned["errors"])


def test_a_pinned_division_that_the_model_does_not_have_is_refused_with_the_rule():
    planned = plan(instance(engine_args={"tensor_parallel_size": 3}), hosts(4))
    assert planned["verdict"] == "unsupported"
    assert any("32 attention heads are not divisible by 3" in need for need in planned["needs"])


def test_a_pinned_utilization_that_is_not_free_does_not_fit():
    busy = [host(gpu(0, others_mib=40_000))]
    planned = plan(instance(engine_args={"gpu_memory_utilization": 0.9}), busy)
    assert planned["verdict"] == "does_not_fit"
    need = planned["needs"][0]
    assert need.startswith("gpu_memory_utilization of at most 0.")
    lower = float(need.split()[4].rstrip(","))
    assert plan(instance(engine_args={"gpu_memory_utilization": lower}), busy)["verdict"] == "fits"


def test_a_pinned_length_that_does_not_fit_says_which_one_would():
    planned = plan(instance("Llama-3.1-8B", engine_args={"max_model_len": 131072}), hosts(1, "RTX 4090"))
    assert planned["verdict"] == "does_not_fit"
    assert any("a context of at most" in need for need in planned["needs"])


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"image": "vllm/vllm-openai:latest"}, "image"),
        ({"image": "vllm/vllm-openai"}, "image"),
        ({"image": "vllm/vllm-openai:v9.9.9"}, "image"),
        ({"workload": {"context": -1}}, "workload.context"),
        ({"workload": {"contxt": 1}}, "workload.contxt"),
        ({"workload": {"prefer": "speed"}}, "workload.prefer"),
        ({"headroom_mib": "much"}, "headroom_mib"),
        ({"extra_args": "--max-logprobs 5"}, "extra_args"),
        ({"checkpoint": "/models/x"}, "checkpoint"),
    ],
)
def test_what_nobody_can_plan_with_is_refused_by_name(variables, named):
    with pytest.raises(InstanceError) as caught:
        plan({**instance(), **variables}, hosts())
    assert caught.value.variable == named
    assert f"vllm_instances[chat].{named}" in str(caught.value)


def test_an_unknown_architecture_is_a_rule_and_not_a_memory_question():
    unknown = {**checkpoint("Qwen3-8B"), "architecture": "NobodyForCausalLM", "architectures": ["NobodyForCausalLM"]}
    planned = plan({**instance(), "checkpoint": unknown}, hosts())
    assert planned["verdict"] == "unsupported"
    assert any("NobodyForCausalLM" in need for need in planned["needs"])


# -- shared cards, subsets, stability ---------------------------
def test_a_shared_card_gets_its_pool_in_bytes_and_a_start_check_that_passes():
    planned = plan(
        instance(release="0.32.0", workload={"context": 8192, "sequences": 4}), [host(gpu(0, others_mib=20_000))]
    )
    budget = planned["budget"][0]
    pool = argument(planned, "kv_cache_memory_bytes")
    assert pool >= 4 * 8192 * 147_456
    assert argument(planned, "gpu_memory_utilization") * budget["total_gib"]["value"] < budget["free_gib"]["value"]
    assert budget["headroom_gib"]["low"] > 0


def test_a_shared_card_in_a_release_without_pools_in_bytes_gets_a_smaller_share():
    planned = plan(
        instance(release="0.9.2", workload={"context": 8192, "sequences": 4}), [host(gpu(0, others_mib=20_000))]
    )
    assert argument(planned, "kv_cache_memory_bytes") is None
    assert argument(planned, "gpu_memory_utilization") < 0.9


def test_the_own_engines_memory_counts_as_free():
    own = {"pid": 7, "name": "VLLM::EngineCore", "container": "vllm-chat", "used_memory_mib": 70_000, "type": "C"}
    running = [host(gpu(0, others_mib=70_000, processes=[own]))]
    assert plan(instance(), running)["budget"] == plan(instance(), hosts())["budget"]


def test_a_subset_of_cards_by_index_or_uuid_is_kept():
    for subset in ([2], ["GPU-H100-2"], ["2"]):
        assert plan(instance(gpus=subset), hosts(4))["devices"] == {"gpu1": ["GPU-H100-2"]}


def test_the_emptier_card_is_taken():
    assert plan(instance(), [host(gpu(0, others_mib=30_000), gpu(1))])["devices"] == {"gpu1": ["GPU-H100-1"]}


def test_the_same_input_gives_the_same_plan_and_is_not_changed():
    wanted, there = instance(workload={"context": 8192, "sequences": 8}), hosts(4)
    before = copy.deepcopy((wanted, there))
    first = json.dumps(plan(wanted, there))
    assert json.dumps(plan(wanted, there)) == first
    assert (wanted, there) == before


def test_a_running_plan_stays_as_it_is_while_it_has_room():
    wanted = instance("Qwen3-14B", workload={"context": 40960, "sequences": 7})
    running = plan(wanted, hosts(2))
    jittered = [host(gpu(0, memory_free_mib=79_900), gpu(1))]
    kept = plan({**wanted, "current_plan": running}, jittered)
    assert kept == running


def test_a_running_plan_of_other_coefficients_keeps_its_arguments_and_is_described_anew():
    wanted = instance("Qwen3-14B", workload={"context": 40960, "sequences": 7})
    running = {**plan(wanted, hosts(2)), "planner": "older", "budget": []}
    kept = plan({**wanted, "current_plan": running}, hosts(2))
    assert kept["arguments"] == running["arguments"]
    assert kept["budget"]


def test_a_running_plan_is_dropped_when_more_is_asked_for():
    running = plan(instance(workload={"context": 8192, "sequences": 8}), hosts(2))
    changed = instance(workload={"context": 16384, "sequences": 8}, current_plan=running)
    assert argument(plan(changed, hosts(2)), "max_model_len") == 16384


def test_a_running_plan_is_dropped_when_its_card_is_gone():
    wanted = instance()
    running = plan(wanted, hosts(2))
    left = [host(gpu(1))]
    assert plan({**wanted, "current_plan": running}, left)["devices"] == {"gpu1": ["GPU-H100-1"]}


# -- over hosts -------------------------------------------------
def test_what_one_host_cannot_hold_goes_over_hosts_in_stages():
    two = [host(*(gpu(index, "RTX 4090") for index in range(4)), name=name) for name in ("gpu1", "gpu2")]
    planned = plan(instance("Llama-3.1-70B", workload={"context": 4096, "sequences": 1}), two)
    assert planned["verdict"] == "fits"
    assert planned["parallel"]["hosts"] == ["gpu1", "gpu2"]
    assert planned["parallel"]["pipeline_parallel_size"] == 2
    assert len(planned["budget"]) == planned["parallel"]["tensor_parallel_size"] * 2


# -- several instances ------------------------------------------
def named(name: str, port: int, **variables):
    return {**instance(**variables), "name": name, "port": port, "checkpoint": "/models/qwen3-8b"}


CHECKPOINTS = {"/models/qwen3-8b": checkpoint("Qwen3-8B")}


def test_two_instances_take_two_cards():
    wanted = [named("a", 8000), named("b", 8001)]
    plans = plan_instances(wanted, hosts(2), CHECKPOINTS, ["gpu1"])
    assert [item["devices"]["gpu1"] for item in plans] == [["GPU-H100-0"], ["GPU-H100-1"]]
    assert [(item["name"], item["port"], item["served_model_name"]) for item in plans] == [
        ("a", 8000, "a"),
        ("b", 8001, "b"),
    ]


def test_two_instances_on_one_card_see_each_other():
    wanted = [
        named(name, port, release="0.32.0", workload={"context": 8192, "sequences": 4})
        for name, port in (("a", 8000), ("b", 8001))
    ]
    plans = plan_instances(wanted, hosts(1), CHECKPOINTS, ["gpu1"])
    assert [item["verdict"] for item in plans] == ["fits", "fits"]
    assert plans[1]["budget"][0]["others_gib"]["value"] > plans[0]["budget"][0]["weights_gib"]["value"]
    assert all(argument(item, "kv_cache_memory_bytes") for item in plans)
    used = sum(
        budget["free_gib"]["value"] - budget["headroom_gib"]["low"] for item in plans for budget in item["budget"]
    )
    assert used < plans[0]["budget"][0]["total_gib"]["value"]


@pytest.mark.parametrize(("second", "variable"), [({"name": "a"}, "name"), ({"port": 8000}, "port")])
def test_two_instances_cannot_have_one_name_or_port(second, variable):
    with pytest.raises(InstanceError) as caught:
        plan_instances([named("a", 8000), {**named("b", 8001), **second}], hosts(2), CHECKPOINTS)
    assert caught.value.variable == variable


def test_a_checkpoint_that_was_not_described_is_named():
    with pytest.raises(InstanceError, match="checkpoint_info"):
        plan_instances([named("a", 8000)], hosts(), {})


# -- warnings -----------------------------------------------------------
def test_a_pinned_utilization_that_leaves_too_little_is_warned_of():
    planned = plan(instance(engine_args={"gpu_memory_utilization": 0.98, "max_model_len": 8192}), hosts())
    assert any("leaves" in warning and "run out of memory" in warning for warning in planned["warnings"])


def test_code_in_the_checkpoint_is_warned_of_until_it_is_allowed():
    foreign = {**checkpoint("Qwen3-8B"), "requires_trust_remote_code": True}
    assert any("Python code" in warning for warning in plan({**instance(), "checkpoint": foreign}, hosts())["warnings"])
    allowed = plan({**instance(trust_remote_code=True), "checkpoint": foreign}, hosts())
    assert not any("Python code" in warning for warning in allowed["warnings"])
    assert argument(allowed, "trust_remote_code") is True


@pytest.mark.parametrize(
    ("workload", "pins", "kept", "why"),
    [
        ({"context": 100_000, "sequences": 1}, {}, (4096, 1), "the model takes no more than 4,096 tokens"),
        ({"context": 4096, "sequences": 1}, {"max_model_len": 2048}, (2048, 1), "max_model_len is pinned to 2,048"),
        ({"context": 2048, "sequences": 99}, {"max_num_seqs": 8}, (2048, 8), "max_num_seqs is pinned to 8"),
    ],
)
def test_a_promise_that_model_or_pins_forbid_is_cut_and_said(workload, pins, kept, why):
    planned = plan(instance("tiny", workload=workload, engine_args=pins), hosts())
    assert planned["verdict"] == "fits_reduced"
    assert (planned["workload"]["context"], planned["workload"]["sequences"]) == kept
    assert any("cut from" in item["decision"] and item["why"] == why for item in planned["decisions"])
    assert planned["needs"]


def test_a_model_that_is_not_understood_is_unverified_and_wider():
    strange = {**checkpoint("Qwen3-8B"), "known": False}
    planned, plain = plan({**instance(), "checkpoint": strange}, hosts()), plan(instance(), hosts())
    assert planned["budget"][0]["kv_pool_gib"]["source"] == "unverified"
    assert planned["budget"][0]["kv_pool_gib"]["low"] < plain["budget"][0]["kv_pool_gib"]["low"]
    assert any("unverified" in warning for warning in planned["warnings"])


# -- pooling ------------------------------------------------------------
def test_a_pooling_task_is_given_in_the_words_of_the_release():
    old = plan(instance(release="0.9.2", task="embed"), hosts())
    new = plan(instance(release="0.32.0", task="embed"), hosts())
    assert argument(old, "task") == "embed"
    assert (argument(new, "runner"), argument(new, "convert"), argument(new, "task")) == ("pooling", "embed", None)


# -- what pinned features take ------------------------------------------
def weights_with(**pins):
    planned = plan(instance(engine_args={"max_model_len": 8192, **pins}), hosts())
    return planned, planned["budget"][0]["weights_gib"]["value"]


def test_lora_slots_are_counted():
    _plan, plain = weights_with()
    planned, wide = weights_with(enable_lora=True, max_loras=4, max_lora_rank=64)
    # 4 slots x 64 x 2 B x 36 layers x (in + out of q 8192, k and v 5120 each, o 8192, gate and up 16384 each, down
    # 16384) = 1.3 GiB.
    assert wide - plain == pytest.approx(1.3, abs=0.2)
    assert planned["verdict"] == "fits"


def test_a_draft_model_that_is_not_described_widens_the_plan_and_says_so():
    plain, _weights = weights_with()
    planned, _weights = weights_with(
        speculative_config={"method": "eagle3", "model": "/models/eagle", "num_speculative_tokens": 3}
    )
    assert any("draft model" in warning for warning in planned["warnings"])
    assert planned["kv"]["tokens_low"] < plain["kv"]["tokens_low"]
    unassisted, _weights = weights_with(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert unassisted["warnings"] == plain["warnings"]


def test_offloaded_weights_leave_the_card():
    _plan, plain = weights_with()
    _plan, offloaded = weights_with(cpu_offload_gb=10)
    assert plain - offloaded == pytest.approx(10, abs=0.01)


def test_where_nothing_fits_the_largest_division_is_shown():
    planned = plan(instance("Llama-3.1-70B"), hosts(2, "RTX 4090"))
    assert planned["verdict"] == "does_not_fit"
    assert len(planned["budget"]) == 2


# -- batch --------------------------------------------------------------
def test_what_was_planned_with_is_what_is_launched():
    """Every setting that differs from the release's own is an argument: a plan is of the engine that starts."""
    tight = instance("Qwen3-8B", "0.19.1", workload={"context": 16384, "sequences": 2})
    for headroom in range(0, 4096, 256):
        planned = plan({**tight, "headroom_mib": headroom}, hosts(1, "RTX 4090"))
        again = {item["name"]: item["value"] for item in planned["arguments"]}
        repeated = plan({**tight, "headroom_mib": headroom, "engine_args": again}, hosts(1, "RTX 4090"))
        assert repeated["kv"] == planned["kv"]
        assert repeated["budget"] == planned["budget"]


def test_few_short_sequences_make_a_small_batch_by_themselves():
    pins = {"max_num_seqs": 1, "max_model_len": 2048}
    small = plan(instance("Llama-3.1-8B", "0.19.1", engine_args=pins), hosts())["budget"][0]["activation_gib"]["value"]
    large = plan(instance("Llama-3.1-8B", "0.19.1", engine_args={**pins, "max_num_batched_tokens": 8192}), hosts())
    assert small < large["budget"][0]["activation_gib"]["value"] / 2

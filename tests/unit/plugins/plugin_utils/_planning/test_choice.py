# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why an engine is divided as it is, what idle cards are worth, what a shared or unequal host gets."""

from __future__ import annotations

import pytest
from planning_examples import CONFIGS, argument, checkpoint, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import release as find_release
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan, plan_instances

WORKLOAD = {"context": 8192, "sequences": 4}


def why(planned, name):
    return next(item["why"] for item in planned["arguments"] if item["name"] == name)


def decision(planned, text):
    return next((item for item in planned["decisions"] if text in item["decision"]), None)


# -- reasons ------------------------------------------------------------
def test_stages_beside_a_pinned_tensor_parallel_size_are_the_pins_doing():
    planned = plan(instance("Llama-3.1-70B", engine_args={"tensor_parallel_size": 1}, workload=WORKLOAD), hosts(8))
    assert argument(planned, "pipeline_parallel_size") == 2
    assert why(planned, "pipeline_parallel_size").startswith("tensor_parallel_size is pinned to 1")
    assert "divided" not in why(planned, "pipeline_parallel_size")


def test_pinned_stages_are_the_pins_doing():
    planned = plan(instance("Llama-3.1-70B", engine_args={"pipeline_parallel_size": 2}, workload=WORKLOAD), hosts(8))
    assert decision(planned, "pipeline parallel 2")["why"] == "pipeline_parallel_size is pinned to 2"


def test_stages_of_six_cards_name_what_does_not_divide():
    planned = plan(instance("Llama-3.1-70B", workload={"context": 131072, "sequences": 40}), hosts(6))
    assert (argument(planned, "tensor_parallel_size"), argument(planned, "pipeline_parallel_size")) == (2, 3)
    assert "cannot be divided by 6: 64 attention heads" in why(planned, "pipeline_parallel_size")
    assert why(planned, "tensor_parallel_size").startswith("no division of the GPUs here keeps the whole promise")


def test_of_a_promise_that_is_cut_anyhow_a_little_more_is_not_worth_more_stages():
    # Four key-value heads are repeated over eight GPUs: two stages hold twice as much, eight a little more than two.
    planned = plan(instance("Qwen3-235B-A22B", workload={"context": 16384, "sequences": 64}), hosts(8))
    assert planned["verdict"] == "fits_reduced"
    assert (argument(planned, "tensor_parallel_size"), argument(planned, "pipeline_parallel_size")) == (4, 2)
    assert planned["workload"]["sequences"] > 40


def test_stages_over_hosts_say_so():
    two = [host(gpu(0), gpu(1)), host(gpu(0), gpu(1), name="gpu2")]
    planned = plan(instance("Llama-3.1-70B", workload={"context": 32768, "sequences": 8}), two)
    assert "over 2 hosts" in why(planned, "pipeline_parallel_size")


@pytest.mark.parametrize(
    ("count", "workload", "reason"),
    [
        (1, WORKLOAD, "it is the only one that may be used"),
        (2, WORKLOAD, "the promise fits there; more GPUs are capacity, not speed"),
    ],
)
def test_one_card_has_a_true_reason(count, workload, reason):
    assert decision(plan(instance(workload=workload), hosts(count)), "one GPU")["why"] == reason


def test_more_requests_than_the_default_are_let_in():
    planned = plan(instance("tiny", workload={"context": 1024, "sequences": 3000}), hosts())
    assert (planned["verdict"], argument(planned, "max_num_seqs")) == ("fits", 3000)
    assert "promises so many requests at once" in why(planned, "max_num_seqs")


# -- idle cards ---------------------------------------------------------
def test_only_replicas_that_would_fit_are_offered():
    mixed = host(gpu(0), gpu(1), gpu(2, "RTX 4090"), gpu(3, "RTX 4090"))
    planned = plan(instance("R1-Distill-Qwen-14B", workload=WORKLOAD), [mixed])
    assert planned["devices"] == {"gpu1": ["GPU-H100-0"]}
    assert decision(planned, "3 GPUs of gpu1 idle")["why"] == "1 more replica of this engine would fit there"


def test_where_nothing_fits_no_replica_is_offered():
    pins = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    planned = plan(instance("Llama-3.1-70B", engine_args=pins), hosts(8))
    assert planned["verdict"] == "does_not_fit"
    assert decision(planned, "idle") is None


def test_a_card_in_use_is_not_idle():
    busy = host(gpu(0), gpu(1, others_mib=40_000))
    assert decision(plan(instance(workload=WORKLOAD), [busy]), "idle") is None


def test_one_card_or_two_is_a_trade_to_be_measured():
    planned = plan(instance("Llama-3.1-8B", workload=WORKLOAD), hosts(2))
    trade = decision(planned, "not divided over 2 GPUs")
    pinned = {"tensor_parallel_size": 2, "max_model_len": 8192}
    divided = plan(instance("Llama-3.1-8B", workload=WORKLOAD, engine_args=pinned), hosts(2))
    assert f"{divided['kv']['tokens']:,} tokens" in trade["decision"]
    assert f"KV gained: {divided['kv']['tokens'] - planned['kv']['tokens']:+,} tokens" in trade["why"]
    # Two all-reduces of 4,096 values of 2 bytes in each of 32 layers.
    assert "2 all-reduces of 8 KiB in each of 32 layers, over NV18" in trade["why"]
    assert "measured by tuning" in trade["cost"]


# -- unequal cards ------------------------------------------------------
def test_the_precision_is_that_of_the_cards_that_are_taken():
    mixed = host(gpu(0), gpu(1, "T4"))
    planned = plan(instance(workload=WORKLOAD), [mixed])
    assert planned["devices"] == {"gpu1": ["GPU-H100-0"]}
    assert argument(planned, "dtype") is None
    assert "weaker cards" in decision(planned, "one GPU")["why"]
    pinned = plan(instance(workload=WORKLOAD, engine_args={"dtype": "bfloat16"}), [mixed])
    assert pinned["verdict"] == "fits"


def test_the_weaker_cards_are_taken_where_only_they_have_room():
    mixed = host(gpu(0, others_mib=80_000), gpu(1, "T4"))
    planned = plan(instance("tiny", workload={"context": 1024, "sequences": 1}), [mixed])
    assert planned["devices"] == {"gpu1": ["GPU-T4-1"]}
    assert argument(planned, "dtype") == "float16"


def test_hosts_with_unequal_cards_get_their_own_plans():
    wanted = {**instance(workload={"context": 8192, "sequences": 24}), "checkpoint": "/m"}
    large, small = (
        plan_instances([wanted], hosts(2, card), {"/m": checkpoint("Qwen3-8B")})[0] for card in ("H100", "RTX 4090")
    )
    assert (large["parallel"]["tensor_parallel_size"], large["verdict"]) == (1, "fits")
    assert (small["parallel"]["tensor_parallel_size"], small["verdict"]) == (2, "fits_reduced")


# -- what would fit -----------------------------------------------------
def test_what_does_not_fit_says_cards_precision_and_context():
    planned = plan(instance("Llama-3.1-8B", workload={"context": 131072, "sequences": 6}), hosts())
    needs = " | ".join(planned["needs"])
    for text in ("2 GPUs like NVIDIA H100", "a context of ", "8-bit checkpoint", "kv_cache_dtype: fp8"):
        assert text in needs
    smaller = int(needs.split("a context of ")[1].split(" tokens")[0].replace(",", ""))
    again = plan(instance("Llama-3.1-8B", workload={"context": smaller, "sequences": 6}), hosts())
    assert again["verdict"] == "fits"
    cache = plan(
        instance("Llama-3.1-8B", workload={"context": 131072, "sequences": 6}, engine_args={"kv_cache_dtype": "fp8"}),
        hosts(),
    )
    assert cache["verdict"] == "fits"


def test_the_cards_that_would_fit_do_fit():
    wanted = {"context": 32768, "sequences": 1}
    lacking = plan(instance("Llama-3.1-70B", workload=wanted), hosts(1))
    assert lacking["verdict"] == "does_not_fit"
    assert lacking["needs"][0].startswith("2 GPUs like")
    assert plan(instance("Llama-3.1-70B", workload=wanted), hosts(2))["verdict"] == "fits"


# -- unverified ---------------------------------------------------------
def strange(**variables):
    return {**instance(**variables), "checkpoint": {**checkpoint("Qwen3-8B"), "known": False}}


def test_what_is_not_understood_is_unverified_and_its_low_end_holds():
    planned = plan(strange(workload={"context": 8192, "sequences": 8}), hosts())
    assert planned["verdict"] == "unverified"
    assert planned["kv"]["tokens_low"] >= 8 * 8192
    assert planned["kv"]["tokens_low"] < 0.7 * planned["kv"]["tokens"]


def test_an_unverified_plan_that_had_to_be_cut_says_so_and_stays_as_it_is():
    wanted = strange(workload={"context": 32768, "sequences": 90})
    planned = plan(wanted, hosts())
    assert planned["verdict"] == "unverified"
    assert decision(planned, "requests at once cut from 90")
    assert planned["needs"]
    assert plan({**wanted, "current_plan": planned}, hosts()) == planned


def test_what_is_not_understood_and_has_no_room_does_not_fit():
    assert plan(strange(), hosts(1, "T4"))["verdict"] == "does_not_fit"


def test_an_unverified_engine_takes_its_memory_from_the_next_one():
    first = {**strange(workload={"context": 8192, "sequences": 8}), "port": 8000}
    second = {**instance(), "name": "other", "port": 8001}
    plans = plan_instances([first, second], hosts(2), {})
    assert [item["verdict"] for item in plans] == ["unverified", "fits"]
    assert plans[0]["devices"] != plans[1]["devices"]


# -- engines and experts ------------------------------------------------
def test_every_data_parallel_engine_has_cards_of_its_own():
    pins = {"data_parallel_size": 4, "tensor_parallel_size": 2}
    planned = plan(instance("Llama-3.1-8B", engine_args=pins, workload={"context": 8192, "sequences": 64}), hosts(8))
    assert len(planned["devices"]["gpu1"]) == len(planned["budget"]) == 8
    assert planned["parallel"]["data_parallel_size"] == 4
    alone = plan(
        instance("Llama-3.1-8B", engine_args={"tensor_parallel_size": 2, "enforce_eager": True}, workload=WORKLOAD),
        hosts(2),
    )
    weights = {budget["weights_gib"]["value"] for budget in planned["budget"]}
    assert weights == {alone["budget"][0]["weights_gib"]["value"]}


def test_more_engines_than_cards_do_not_fit():
    planned = plan(instance("Llama-3.1-8B", engine_args={"data_parallel_size": 4}), hosts(2))
    assert planned["verdict"] == "does_not_fit"
    assert "data_parallel_size 4" in planned["needs"][0]
    here = plan(
        instance("Llama-3.1-8B", engine_args={"data_parallel_size": 4, "data_parallel_size_local": 2}), hosts(2)
    )
    assert (here["verdict"], len(here["budget"])) == ("fits", 2)


@pytest.mark.parametrize("expert_parallel", [True, False])
def test_experts_are_spread_over_all_engines_and_the_rest_is_in_each(expert_parallel):
    pins = {"data_parallel_size": 4, "enable_expert_parallel": expert_parallel, "tensor_parallel_size": 1}
    planned = plan(instance("Mixtral-8x7B", engine_args=pins, workload=WORKLOAD), hosts(4))
    weights = planned["budget"][0]["weights_gib"]["value"]
    experts = checkpoint("Mixtral-8x7B")["weights"]["groups"]["experts"]["bytes"] / 2**30
    whole = checkpoint("Mixtral-8x7B")["weights"]["total_bytes"] / 2**30
    assert weights == pytest.approx(whole - experts * 3 / 4, rel=0.01)
    assert planned["budget"][0]["activation_gib"]["source"] == "extrapolated"


def test_experts_of_a_model_without_any_are_refused():
    planned = plan(instance("Llama-3.1-8B", engine_args={"enable_expert_parallel": True}), hosts())
    assert planned["verdict"] == "unsupported"
    assert any("has no experts" in need for need in planned["needs"])


def test_experts_that_the_engines_do_not_divide_are_refused():
    pins = {"data_parallel_size": 3, "tensor_parallel_size": 1}
    planned = plan(instance("Mixtral-8x7B", engine_args=pins), hosts(8))
    assert planned["verdict"] == "unsupported"
    assert any("expert width 14336 is not divisible by 3" in need for need in planned["needs"])


def test_a_pool_in_bytes_of_what_is_not_understood_holds_fewer_tokens_for_sure():
    planned = plan(strange(engine_args={"kv_cache_memory_bytes": 2**33, "max_model_len": 8192}), hosts())
    assert planned["verdict"] == "unverified"
    assert planned["kv"]["tokens_low"] < 0.7 * planned["kv"]["tokens"]


def test_every_kv_cache_dtype_that_a_release_takes_can_be_planned():
    release = find_release("0.33.0")
    values = release.argument("kv_cache_dtype").values
    assert len(values) > 5
    for name in values:
        planned = plan(instance(release="0.33.0", engine_args={"kv_cache_dtype": name, "max_model_len": 8192}), hosts())
        assert planned["verdict"] in ("fits", "unverified", "unsupported"), name
        if planned["verdict"] == "unverified":
            assert any(f"kv_cache_dtype {name}" in warning for warning in planned["warnings"])


def test_a_model_that_no_number_divides_needs_stages_that_do_fit():
    config = {**CONFIGS["Llama-3.1-70B"], "num_attention_heads": 61, "num_key_value_heads": 61, "head_dim": 128}
    wanted = {**instance(workload=WORKLOAD), "checkpoint": describe_config(config)}
    lacking = plan(wanted, hosts(1))
    count = int(lacking["needs"][0].split()[0])
    assert lacking["needs"][0].endswith(f"on one host (pipeline_parallel_size {count})")
    assert plan(wanted, hosts(count))["verdict"] == "fits"
    assert plan(wanted, hosts(count - 1))["verdict"] != "fits"


def test_cards_for_several_engines_are_counted_for_all_of_them():
    pins = {"data_parallel_size": 2}
    lacking = plan(instance("Llama-3.1-70B", engine_args=pins, workload=WORKLOAD), hosts(2))
    assert lacking["verdict"] == "does_not_fit"
    assert lacking["needs"][0].startswith("4 GPUs like")
    assert plan(instance("Llama-3.1-70B", engine_args=pins, workload=WORKLOAD), hosts(4))["verdict"] == "fits"

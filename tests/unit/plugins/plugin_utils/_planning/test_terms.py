# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each thing that can be pinned, switched or shared does to the budget of a plan."""

from __future__ import annotations

import pytest
from planning_examples import CONFIGS, argument, checkpoint, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan, plan_instances

PINS = {"gpu_memory_utilization": 0.9, "max_model_len": 8192}


def budget_of(model="Qwen3-8B", release="0.19.0", count=1, card="H100", **variables):
    pins = {**PINS, "tensor_parallel_size": count, **variables.pop("engine_args", {})}
    return plan(instance(model, release, engine_args=pins, **variables), hosts(count, card))["budget"][0]


def value(budget, term):
    return budget[term]["value"]


# -- CUDA graphs --------------------------------------------------------
@pytest.mark.parametrize(
    ("release", "model", "environment", "pins", "inside"),
    [
        ("0.16.0", "Llama-3.1-8B", {}, {}, False),
        ("0.19.1", "Llama-3.1-8B", {}, {}, False),
        ("0.19.1", "Llama-3.1-8B", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}, {}, True),
        ("0.20.0", "Llama-3.1-8B", {}, {}, True),
        ("0.20.0", "Llama-3.1-8B", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, {}, False),
        ("0.20.0", "Llama-3.1-8B", {}, {"enforce_eager": True}, False),
        ("0.27.1", "Llama-3.1-8B", {}, {}, False),  # the V2 model runner
        ("0.27.1", "Llama-3.1-8B", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {}, True),
        ("0.27.1", "Mixtral-8x7B", {}, {}, True),  # experts stay with the old one
    ],
)
def test_graphs_are_taken_from_the_pool_by_release_runner_and_switch(release, model, environment, pins, inside):
    budget = budget_of(
        model, release, count=2 if model.startswith("Mix") else 1, engine_args=pins, environment=environment
    )
    assert budget["cuda_graphs_in_request"] is inside
    terms = ["weights_gib", "activation_gib", "non_torch_gib", "kv_pool_gib"] + ["cuda_graph_gib"] * inside
    assert sum(value(budget, term) for term in terms) == pytest.approx(value(budget, "requested_gib"), abs=0.01)


def test_eager_engines_capture_nothing():
    assert value(budget_of(engine_args={"enforce_eager": True}), "cuda_graph_gib") == 0


def test_fewer_captured_sizes_take_less():
    few = budget_of(engine_args={"compilation_config": {"max_cudagraph_capture_size": 8}})
    assert value(few, "cuda_graph_gib") < value(budget_of(), "cuda_graph_gib") / 2


# -- communication ------------------------------------------------------
@pytest.mark.parametrize(
    ("release", "card", "pins", "least", "most"),
    [
        # Measured on H100: 0.13 with one card, 2.07 with two from 0.17 on (FlashInfer's fused all-reduce).
        ("0.16.0", "H100", {}, 0.0, 1.0),
        ("0.19.0", "H100", {}, 1.8, 2.3),
        ("0.19.0", "H100", {"enforce_eager": True}, 0.0, 1.0),
        ("0.19.0", "RTX 4090", {}, 0.0, 1.0),
        # Up to 0.10.2 NCCL's buffers were counted: 1.38 on two H200.
        ("0.10.2", "H100", {}, 1.1, 1.6),
        ("0.10.2", "A100", {}, 0.0, 1.0),
    ],
)
def test_what_communication_takes_is_by_release_and_card(release, card, pins, least, most):
    assert least < value(budget_of("Llama-3.1-8B", release, 2, card, engine_args=pins), "non_torch_gib") < most


# -- multimodal ---------------------------------------------------------
VISION = {
    **CONFIGS["Qwen3-8B"],
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "out_hidden_size": 4096,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_chans": 3,
    },
    "max_position_embeddings": 128000,
}


def vision_budget(**pins):
    seen = {**instance(engine_args={"gpu_memory_utilization": 0.9, **pins}), "checkpoint": describe_config(VISION)}
    return plan(seen, hosts())["budget"][0]


def test_the_encoders_profile_is_the_largest_image_and_the_longest_video_that_the_length_allows():
    few = {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
    short, long = vision_budget(max_model_len=8192, **few), vision_budget(max_model_len=120_000, **few)
    # An image of 16,384 tokens is profiled even where no request may be that long: Qwen3-VL-30B on vLLM 0.13.0 with
    # max_model_len 8,192, "Encoder cache will be initialized with a budget of 16384 tokens".
    assert 1.5 < value(short, "activation_gib") < 3
    # Public start: "about 15.5 GiB" at 114,688 tokens.
    assert 12 < value(long, "activation_gib") < 20
    assert short["activation_gib"]["high"] > 1.15 * value(short, "activation_gib")


@pytest.mark.parametrize("pins", [{"limit_mm_per_prompt": {"image": 0, "video": 0}}, {"language_model_only": True}])
def test_without_images_nothing_is_profiled_for_them(pins):
    without = vision_budget(max_model_len=120_000, **pins)
    assert value(without, "activation_gib") < 4


# -- pinned features ----------------------------------------------------
def test_mtp_of_the_checkpoint_takes_its_weights_and_a_layer_of_cache():
    config = {**CONFIGS["Qwen3-8B"]}
    own = describe_config(config)
    own["weights"] = {**own["weights"], "groups": {**own["weights"]["groups"], "drafter": {"bytes": 2**30}}}
    plain = plan({**instance(engine_args=PINS), "checkpoint": own}, hosts())
    pins = {**PINS, "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}
    assisted = plan({**instance(engine_args=pins), "checkpoint": own}, hosts())
    assert value(assisted["budget"][0], "weights_gib") == pytest.approx(
        value(plain["budget"][0], "weights_gib") + 1, abs=0.01
    )
    assert assisted["kv"]["tokens"] < plain["kv"]["tokens"]
    assert not any("draft model" in warning for warning in assisted["warnings"])


HYBRID = {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M*M-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 131072,
    "max_position_embeddings": 32768,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "torch_dtype": "bfloat16",
}


def cache_of(config, release="0.24.0", **pins):
    engine = {**instance(release=release, engine_args={**PINS, **pins}), "checkpoint": describe_config(config)}
    return plan(engine, hosts())["kv"]


def test_prefix_caching_keeps_states_of_hybrid_models_and_costs_others_nothing():
    hybrid = [cache_of(HYBRID, enable_prefix_caching=switch)["max_concurrency"] for switch in (True, False)]
    assert hybrid[0] < hybrid[1]
    dense = [cache_of(CONFIGS["Qwen3-8B"], enable_prefix_caching=switch) for switch in (True, False)]
    assert dense[0] == dense[1]


def test_states_of_speculative_tokens_are_kept_too():
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    assert cache_of(HYBRID, speculative_config=ngram)["max_concurrency"] < cache_of(HYBRID)["max_concurrency"]


def test_smaller_states_leave_room():
    narrow = cache_of(HYBRID, mamba_ssm_cache_dtype="bfloat16")["max_concurrency"]
    assert narrow > cache_of(HYBRID, mamba_ssm_cache_dtype="float32")["max_concurrency"]


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3"])
def test_an_8_bit_cache_holds_twice_as_much(dtype):
    plain = plan(instance(engine_args=PINS), hosts())["kv"]
    small = plan(instance(engine_args={**PINS, "kv_cache_dtype": dtype}), hosts())["kv"]
    assert small["bytes_per_token"] * 2 == plain["bytes_per_token"]
    assert small["tokens"] == pytest.approx(2 * plain["tokens"], rel=0.01)


# -- others on the card -------------------------------------------------
def test_others_memory_is_respected_by_the_request():
    shared = host(gpu(0, others_mib=40_000))
    for release in ("0.9.2", "0.32.0"):
        planned = plan(instance(release=release, workload={"context": 8192, "sequences": 4}), [shared])
        budget = planned["budget"][0]
        assert planned["verdict"] == "fits"
        taken = value(budget, "free_gib") - value(budget, "headroom_gib")
        assert taken + 40_000 / 1024 < value(budget, "total_gib")
        assert value(budget, "requested_gib") <= value(budget, "free_gib")


def test_the_second_instance_of_a_card_plans_with_what_the_first_leaves():
    pins = {"kv_cache_memory_bytes": 8 * 2**30}
    wanted = [
        {**instance("tiny", engine_args=pins), "name": name, "port": port} for name, port in (("a", 8000), ("b", 8001))
    ]
    first, second = plan_instances(wanted, hosts(), {})
    left = value(first["budget"][0], "free_gib") - value(second["budget"][0], "free_gib")
    assert left == pytest.approx(value(second["budget"][0], "others_gib"), abs=0.01)
    assert left > 8
    assert second["verdict"] == "fits"


# -- neighbours ---------------------------------------------------------
def test_cards_of_one_numa_node_are_taken_where_the_links_do_not_tell():
    cards = [gpu(index, numa_node=node) for index, node in enumerate((0, 1, 0, 1))]
    links = [["X" if row == column else "SYS" for column in range(4)] for row in range(4)]
    planned = plan(instance("Llama-3.1-70B", engine_args={"tensor_parallel_size": 2}), [host(*cards, links=links)])
    assert planned["devices"] == {"gpu1": ["GPU-H100-0", "GPU-H100-2"]}


# -- the range of the calibration ---------------------------------------
@pytest.mark.parametrize(
    ("release", "card", "source"),
    [
        ("0.19.0", "H100", "calibrated"),
        ("0.15.0", "H100", "calibrated"),
        ("0.14.0", "H100", "extrapolated"),
        ("0.33.0", "H100", "extrapolated"),
        ("0.19.0", "A100", "extrapolated"),
        ("0.19.0", "RTX 4090", "extrapolated"),
    ],
)
def test_what_was_not_measured_says_so_and_is_wider(release, card, source):
    pool = budget_of("tiny", release, card=card)["kv_pool_gib"]
    assert pool["source"] == source
    assert (pool["high"] - pool["low"] > 0.6) is (source == "extrapolated")
    assert pool["low"] < pool["value"] < pool["high"]


def test_models_with_another_vocabulary_need_another_division():
    odd = {**checkpoint("Qwen3-8B"), "vocab_size": 151_937}
    planned = plan({**instance(engine_args={"tensor_parallel_size": 8}), "checkpoint": odd}, hosts(8))
    # Padded to 151,936 + 64: 152,000 = 8 x 19,000.
    assert planned["verdict"] == "fits"
    assert argument(planned, "tensor_parallel_size") == 8

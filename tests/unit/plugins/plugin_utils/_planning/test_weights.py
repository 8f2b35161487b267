# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures are those of vLLM's line "Model loading took" in public starts, or follow from its source."""

from __future__ import annotations

import pytest
from checkpoint_examples import (
    DEEPSEEK_V3,
    LLAMA_8B,
    QWEN3_30B_A3B,
)

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.weights import allocated, weights_per_gpu

GIB = 2**30
MIB = 2**20
LLAMA = describe_config(LLAMA_8B)
MOE = describe_config(QWEN3_30B_A3B)


def gib(*arguments, **options):
    return [stage.value / GIB for stage in weights_per_gpu(*arguments, **options)]


@pytest.mark.parametrize(
    ("arguments", "options", "measured"),
    [
        ((1, 1), {}, 14.99),
        ((2, 1), {}, 7.51),
        ((4, 1), {}, 3.77),
        ((1, 2), {}, 7.51),
        ((1, 4), {}, 4.26),
        ((1, 1), {"quantization": "fp8"}, 8.49),
        ((1, 1), {"dtype": "float32"}, 29.98),
    ],
)
def test_public_starts_of_llama(arguments, options, measured):
    """Llama-3.1-8B with vLLM 0.19.0 on H100."""
    assert max(gib(LLAMA, "0.19.0", *arguments, **options)) == pytest.approx(measured, abs=0.006)


def test_a_public_start_of_a_mixture_of_experts():
    assert gib(MOE, "0.19.0") == [pytest.approx(56.88, abs=0.006)]


def test_the_interval_holds_the_value():
    stage = weights_per_gpu(LLAMA, "0.19.0")[0]
    assert stage.low < stage.value < stage.high
    assert stage.high / stage.value < 1.01


def test_an_unknown_family_widens_the_interval():
    stage = weights_per_gpu(describe_config(dict(LLAMA_8B, model_type="llama99")), "0.19.0")[0]
    assert stage.high / stage.value > 1.05


def test_expert_parallelism_divides_the_experts_and_nothing_else():
    tensor, expert = gib(MOE, "0.30.0", 4)[0], gib(MOE, "0.30.0", 4, enable_expert_parallel=True)[0]
    assert expert == pytest.approx(tensor, rel=0.001)
    wide = gib(MOE, "0.30.0", 1, data_parallel_size=4, enable_expert_parallel=True)[0]
    experts = MOE["weights"]["groups"]["experts"]["bytes"] / GIB
    assert wide == pytest.approx(gib(MOE, "0.30.0")[0] - experts * 3 / 4, rel=0.001)


def test_kv_projections_are_repeated_beyond_one_head_a_gpu():
    four, eight = (gib(MOE, "0.30.0", size)[0] for size in (4, 8))
    key_and_value = 48 * 2 * 128 * 2048 * 2 / GIB
    assert eight == pytest.approx((four - key_and_value) / 2 + key_and_value, rel=0.01)


def test_embedding_is_on_the_first_stage_and_the_head_on_the_last():
    first, last = gib(LLAMA, "0.30.0", 1, 2)
    assert first == pytest.approx(last, rel=0.001)
    tied = describe_config(dict(LLAMA_8B, tie_word_embeddings=True))
    assert gib(tied, "0.30.0", 1, 2) == [pytest.approx(first, rel=0.001), pytest.approx(last, rel=0.001)]
    assert gib(tied, "0.30.0")[0] == pytest.approx(gib(LLAMA, "0.30.0")[0] - 128256 * 4096 * 2 / GIB, rel=0.001)


def test_quantised_latent_projections_have_a_copy_in_16_bit():
    quantised = describe_config(DEEPSEEK_V3)
    plain = describe_config({key: value for key, value in DEEPSEEK_V3.items() if key != "quantization_config"})
    copies = 61 * 128 * 256 * 512 * 2
    counted = quantised["weights"]["total_bytes"] + copies
    assert weights_per_gpu(quantised, "0.30.0")[0].value == pytest.approx(counted, rel=0.001)
    assert weights_per_gpu(plain, "0.30.0")[0].value == pytest.approx(plain["weights"]["total_bytes"], rel=0.001)


@pytest.mark.parametrize(
    ("quantization", "bytes_per_value"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 0.5 + 2 / 128),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, 0.5 + 1 / 16),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "strategy": "channel"}}},
            },
            1,
        ),
    ],
    ids=["fp8", "awq", "gptq", "nvfp4", "bitsandbytes", "w8a16"],
)
def test_formats(quantization, bytes_per_value):
    """Linear layers of Llama-3.1-8B in each format; embedding and head stay in 16 bit."""
    checkpoint = describe_config(dict(LLAMA_8B, quantization_config=quantization))
    linear = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)
    rest = 2 * (2 * 128256 * 4096 + 65 * 4096)
    assert checkpoint["weights"]["total_bytes"] == pytest.approx(linear * bytes_per_value + rest, rel=0.001)


def test_modules_that_the_checkpoint_leaves_out_stay_in_16_bit():
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "model.layers.1.*", "*.q_proj"],
    }
    checkpoint = describe_config(dict(LLAMA_8B, quantization_config=quantization))
    schemes = [{t["name"]: t.get("scheme") for t in run["tensors"]} for run in checkpoint["layers"]]
    assert [run["count"] for run in checkpoint["layers"]] == [1, 1, 30]
    assert (schemes[0]["mlp.down_proj"], schemes[0]["self_attn.q_proj"]) == ("nvfp4", None)
    assert set(schemes[1].values()) == {None}


def test_mixed_precision_goes_module_by_module():
    layers = {
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4"},
        "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    checkpoint = describe_config(dict(QWEN3_30B_A3B, quantization_config=quantization))
    schemes = {t["name"]: t.get("scheme") for t in checkpoint["layers"][0]["tensors"]}
    assert (schemes["mlp.experts.w13"], schemes["self_attn.o_proj"]) == ("nvfp4", "fp8")
    assert schemes["self_attn.q_proj"] is None
    assert checkpoint["quantization"]["method"] == "modelopt_mixed"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [("8.0", (3072, 2944)), ("10.0", (3072, 3072)), (None, (3072, 2944))],
)
def test_experts_of_gpt_oss_are_padded_by_card(capability, expected):
    hidden, intermediate = expected
    config = dict(
        QWEN3_30B_A3B,
        hidden_size=2880,
        moe_intermediate_size=2880,
        num_hidden_layers=1,
        quantization_config={"quant_method": "mxfp4"},
    )
    padded = weights_per_gpu(describe_config(config), "0.30.0", compute_capability=capability)[0].value
    config["hidden_size"], config["moe_intermediate_size"] = 2880, 2880
    plain = describe_config(config)["weights"]["groups"]["experts"]["bytes"]
    others = describe_config(config)["weights"]["total_bytes"] - plain
    experts = 128 * 3 * hidden * intermediate * (0.5 + 1 / 32)
    assert padded == pytest.approx(experts + others, rel=0.01)


def test_a_checkpoint_whose_files_hold_more_is_scaled_to_them():
    counted = {name: group["bytes"] for name, group in LLAMA["weights"]["groups"].items()}
    groups = {name: {"bytes": 2 * size, "loaded_bytes": 2 * size, "parameters": 1} for name, size in counted.items()}
    found = dict(LLAMA, weights={"source": "safetensors", "groups": groups, "counted": counted})
    rotary = 131072 * 128 * 2 / GIB
    assert gib(found, "0.30.0")[0] - rotary == pytest.approx(2 * (gib(LLAMA, "0.30.0")[0] - rotary), rel=0.002)


def test_multimodal_rotary_tables_shrink_in_0_32():
    config = dict(QWEN3_30B_A3B, model_type="qwen3_vl_moe_text", max_position_embeddings=262144)
    outer = {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": config,
    }
    checkpoint = describe_config(outer)
    before, after = (weights_per_gpu(checkpoint, release)[0].value for release in ("0.31.0", "0.32.0"))
    assert before - after == 3 * 262144 * 128 * 2


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 512),
        (3 * MIB, 3 * MIB),
        (int(31.5 * MIB), 32 * MIB),
        (int(24.5 * MIB), int(24.5 * MIB)),
        (259 * MIB, 260 * MIB),
    ],
)
def test_allocations_are_rounded_as_pytorch_does(size, expected):
    assert allocated(size) == expected


def test_a_dtype_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match="'bf15' is unknown"):
        weights_per_gpu(LLAMA, "0.30.0", dtype="bf15")

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""describe_config: the shape of every family. Parameter counts are those that the models' publishers state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_examples import DEEPSEEK_V3, GEMMA3_27B_TEXT, LLAMA_8B, QWEN3_30B_A3B, QWEN3_NEXT, TINY

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config

REAL_CONFIGS = Path(__file__).resolve().parents[5] / "shared" / "data" / "configs"


def kinds(model):
    """[(count, attention kind, mlp kind)] of the runs of layers."""
    return [(run["count"], run["attention"]["kind"], run["mlp"]["kind"]) for run in model["layers"]]


def layer(model, index):
    sequence = [run for run in model["layers"] for _layer in range(run["count"])]
    return sequence[index]


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        (QWEN3_30B_A3B, 30_532_122_624),
        (DEEPSEEK_V3, 671_026_419_200),
        (GEMMA3_27B_TEXT, 27_009_346_304),
    ],
    ids=["llama", "qwen3_moe", "deepseek_v3", "gemma3"],
)
def test_parameters_are_those_of_the_published_models(config, parameters):
    assert describe_config(config)["weights"]["total_parameters"] == parameters


def test_dense_grouped_query_attention():
    model = describe_config(LLAMA_8B)
    assert kinds(model) == [(32, "full", "dense")]
    attention = model["layers"][0]["attention"]
    assert (attention["num_heads"], attention["num_kv_heads"], attention["head_dim"]) == (32, 8, 128)
    assert (model["max_model_len"], model["task"], model["known"]) == (131072, "generate", True)
    assert model["weights"]["total_bytes"] == 2 * model["weights"]["total_parameters"]
    assert model["rotary"] == [{"positions": 131072, "dim": 128, "dtype": None, "multimodal": False}]


def test_mixture_of_experts_after_dense_layers_with_latent_attention():
    model = describe_config(DEEPSEEK_V3)
    assert kinds(model) == [(3, "mla", "dense"), (58, "mla", "moe")]
    assert model["layers"][1]["mlp"] == {
        "kind": "moe",
        "intermediate_size": 2048,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "shared_intermediate_size": 2048,
    }
    assert model["mtp_layers"] == 1
    assert model["rotary"][0]["positions"] == 163840


def test_block_quantisation_leaves_embedding_head_router_and_norms():
    model = describe_config(DEEPSEEK_V3)
    schemes = {tensor["name"]: tensor.get("scheme") for run in model["layers"] for tensor in run["tensors"]}
    assert schemes["mlp.experts.w13"] == schemes["self_attn.o_proj"] == "fp8_block"
    assert schemes["mlp.gate"] is None
    assert {tensor["name"]: tensor.get("scheme") for tensor in model["outside"]} == {
        "embed_tokens": None,
        "norm": None,
        "lm_head": None,
    }
    assert model["quantization"]["schemes"]["fp8_block"]["block"] == [128, 128]


def test_sparse_attention_has_an_indexer_where_the_layer_does_not_share_one():
    config = dict(
        DEEPSEEK_V3,
        model_type="glm_moe_dsa",
        index_topk=2048,
        index_head_dim=128,
        index_n_heads=32,
        indexer_types=["full"] + ["shared"] * 60,
    )
    model = describe_config(config)
    assert layer(model, 0)["attention"]["indexer"] == {"head_dim": 128, "num_heads": 32, "topk": 2048}
    assert layer(model, 1)["attention"]["indexer"] is None


def test_every_sixth_layer_of_gemma3_is_full_attention():
    model = describe_config(GEMMA3_27B_TEXT)
    attentions = [layer(model, index)["attention"] for index in range(62)]
    assert [a["kind"] for a in attentions[:7]] == ["sliding"] * 5 + ["full", "sliding"]
    assert attentions[0]["window"] == 1024
    assert attentions[5]["window"] is None
    assert model["tie_word_embeddings"] is True


def test_layer_types_decide_over_patterns():
    types = ["sliding_attention", "full_attention"] * 31
    model = describe_config(dict(GEMMA3_27B_TEXT, layer_types=types))
    assert [layer(model, index)["attention"]["kind"] for index in (0, 1)] == ["sliding", "full"]


def test_global_layers_of_gemma4_have_heads_of_their_own():
    config = dict(
        GEMMA3_27B_TEXT,
        model_type="gemma4_text",
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=4,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2,
        num_kv_shared_layers=10,
    )
    model = describe_config(config)
    sliding, full = layer(model, 0)["attention"], layer(model, 5)["attention"]
    assert (sliding["num_kv_heads"], sliding["head_dim"]) == (16, 256)
    assert (full["num_kv_heads"], full["head_dim"]) == (4, 512)
    assert layer(model, 61)["attention"]["shares_kv"] is True


def test_a_window_without_its_flag_counts_for_nothing_in_qwen():
    assert describe_config(dict(TINY, sliding_window=4096))["layers"][0]["attention"]["window"] is None
    switched_on = dict(TINY, sliding_window=4096, use_sliding_window=True, max_window_layers=0)
    assert describe_config(switched_on)["layers"][0]["attention"]["window"] == 4096


def test_three_of_four_layers_of_llama4_attend_in_chunks():
    config = dict(
        LLAMA_8B,
        model_type="llama4_text",
        num_local_experts=16,
        interleave_moe_layer_step=2,
        attention_chunk_size=8192,
        intermediate_size_mlp=16384,
        no_rope_layers=[],
    )
    model = describe_config(config)
    assert [layer(model, index)["attention"]["kind"] for index in range(4)] == ["chunked"] * 3 + ["full"]
    assert [layer(model, index)["mlp"]["kind"] for index in range(2)] == ["dense", "moe"]
    assert layer(model, 0)["mlp"]["intermediate_size"] == 16384


def test_linear_attention_keeps_a_state():
    model = describe_config(QWEN3_NEXT)
    assert [layer(model, index)["attention"]["kind"] for index in range(4)] == ["linear"] * 3 + ["full"]
    attention = layer(model, 0)["attention"]
    assert (attention["state"], attention["num_value_heads"], attention["conv_kernel"]) == ("gated_delta_net", 32, 4)
    assert model["rotary"][0]["dim"] == 64


def test_letters_of_nemotron_h_are_mixers_or_feed_forward_parts():
    config = dict(
        LLAMA_8B,
        model_type="nemotron_h",
        num_hidden_layers=4,
        hybrid_override_pattern="M-*E",
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
        n_routed_experts=8,
        moe_intermediate_size=64,
    )
    assert [(a, m) for _count, a, m in kinds(describe_config(config))] == [
        ("mamba", "none"),
        ("none", "dense"),
        ("full", "none"),
        ("none", "moe"),
    ]


def test_layers_of_decilm_have_heads_and_widths_of_their_own():
    blocks = [
        {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 5.25}},
        {"attention": {"n_heads_in_group": 16}, "ffn": {"no_op": True}},
    ]
    config = dict(
        LLAMA_8B,
        model_type="nemotron-nas",
        block_configs=blocks,
        num_hidden_layers=3,
        hidden_size=8192,
        num_attention_heads=64,
        num_key_value_heads=None,
        intermediate_size=None,
    )
    model = describe_config(config)
    assert [layer(model, index)["attention"].get("num_kv_heads") for index in range(3)] == [8, None, 4]
    assert [layer(model, index)["mlp"].get("intermediate_size") for index in range(3)] == [14336, 28672, None]


def test_the_language_model_is_found_inside_a_multimodal_one():
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 896,
        "patch_size": 14,
    }
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "text_config": dict(GEMMA3_27B_TEXT, architectures=None),
        "vision_config": vision,
    }
    model = describe_config(config)
    assert (model["architecture"], model["text_model_type"]) == ("Gemma3ForConditionalGeneration", "gemma3_text")
    assert model["vision"] == {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_hidden_layers": 27}
    assert model["weights"]["groups"]["vision"]["parameters"] == pytest.approx(0.42e9, rel=0.02)


def test_an_unknown_family_says_so_and_is_taken_as_llama_with_full_attention():
    model = describe_config(dict(LLAMA_8B, model_type="llama99"))
    assert model["known"] is False
    assert "'llama99'" in model["warnings"][0]
    assert kinds(model) == [(32, "full", "dense")]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "JSON object"),
        ([], "JSON object"),
        ({}, "no hidden_size and no num_hidden_layers"),
        ({"model_type": "vae", "hidden_size": 8}, "'vae'.* no num_hidden_layers"),
    ],
)
def test_what_is_no_configuration_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        describe_config(config)


def test_layers_are_counted_where_only_their_types_are_listed():
    config = {key: value for key, value in LLAMA_8B.items() if key != "num_hidden_layers"}
    types = ["mamba", "moe", "attention", "mlp"]
    model = describe_config(dict(config, model_type="nemotron_h", layers_block_type=types, n_routed_experts=4))
    assert [(a, m) for _count, a, m in kinds(model)] == [
        ("mamba", "none"),
        ("none", "moe"),
        ("full", "none"),
        ("none", "dense"),
    ]


def test_encoders_keep_no_keys_and_values():
    model = describe_config(dict(TINY, model_type="bert", architectures=["BertModel"]))
    assert model["layers"][0]["attention"]["encoder_only"] is True


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("Qwen3ForCausalLM", "generate"),
        ("BertModel", "embed"),
        ("Qwen3ForSequenceClassification", "classify"),
        ("WhisperForConditionalGeneration", "transcribe"),
        ("Qwen2ForRewardModel", "reward"),
    ],
)
def test_task(architecture, task):
    assert describe_config(dict(TINY, architectures=[architecture]))["task"] == task


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 524288),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
    ],
)
def test_longest_context(changes, expected):
    assert describe_config(dict(LLAMA_8B, **changes))["max_model_len"] == expected


def test_float32_checkpoints_run_in_16_bit():
    model = describe_config(dict(TINY, torch_dtype="float32"))
    assert (model["dtype"], model["stored_dtype"]) == ("bfloat16", "float32")


def test_code_of_the_checkpoint_is_named():
    model = describe_config(
        dict(TINY, auto_map={"AutoConfig": "configuration_x.XConfig", "AutoModel": "a/b--modeling_x.X"})
    )
    assert model["requires_trust_remote_code"] is True
    assert model["remote_code"] == ["configuration_x.py", "modeling_x.py"]


@pytest.mark.parametrize(
    ("family", "vision", "parameters"),
    [
        # 8,292,166,656 parameters are published for Qwen2.5-VL-7B, 8,291,375,616 for Qwen2-VL-7B; both have the
        # language model of Qwen2.5-7B, 7,615,616,512.
        ("qwen2_5_vl", {"hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584}, 676_550_144),
        ("qwen2_vl", {"embed_dim": 1280, "mlp_ratio": 4, "hidden_size": 3584}, 675_759_104),
    ],
)
def test_a_tower_whose_configuration_does_not_say_the_family_is_that_of_the_model(family, vision, parameters):
    tower = {"depth": 32, "num_heads": 16, "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, **vision}
    text = {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    text |= {"intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 128000}
    tower |= {"temporal_patch_size": 2}
    model = describe_config({"architectures": ["X"], "model_type": family, "vision_config": tower, **text})
    assert model["vision"]["model_type"] == family
    assert model["weights"]["groups"]["vision"]["parameters"] == pytest.approx(parameters, rel=0.001)


@pytest.mark.skipif(not REAL_CONFIGS.is_dir(), reason=f"{REAL_CONFIGS} is not there")
@pytest.mark.parametrize("path", sorted(REAL_CONFIGS.glob("*/config.json")), ids=lambda path: path.parent.name)
def test_every_public_configuration_has_a_sensible_shape(path):
    model = describe_config(json.loads(path.read_text()))
    assert model["known"], model["warnings"]
    assert sum(run["count"] for run in model["layers"]) == model["num_hidden_layers"]
    assert model["weights"]["total_parameters"] > 2e8
    assert any(run["attention"]["kind"] != "none" for run in model["layers"])
    assert json.loads(json.dumps(model)) == model

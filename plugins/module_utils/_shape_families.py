# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What distinguishes the model families from Llama's layer, as data. Private to the collection gpufleet.vllm.

One entry per ``model_type`` of the language model. Read from the model classes of vLLM 0.9.2 to 0.32.0
(``vllm/model_executor/models``); the judge in ``tests/integration/kv_judge`` compares them with what vLLM builds.

Traits, all optional:

``qkv_bias``, ``output_bias``, ``mlp_bias``: True or False whatever config.json says
``qk_norm``: ``head`` (one norm of head_dim each for queries and keys) or ``full`` (over all heads)
``norms``: norms of the hidden size per layer (2); ``norm_bias``: they are LayerNorms with a bias
``gated``: False where the feed-forward part has two matrices instead of three
``moe_prefix``: the experts' parent in the checkpoint (``mlp``); ``router_dtype``; ``router_bias``: a float32 vector
over the experts; ``expert_bias``; ``sinks``: one value per head
``window_pattern``: every n-th layer is full attention where config.json does not say which
``window_needs_flag``: a window counts only with ``use_sliding_window``
``tied``: the output head is the embedding where config.json does not say; ``positions``: learned position embeddings
``rotary_dtype``: of the rotary table where it is not the model's; ``local_base``: rotary base of layers with a window;
``multimodal_rotary``: positions of three axes, whether or not config.json has ``mrope_section``;
``no_rotary``: no rotary table; ``encoder``: no token is generated, so no keys and values are kept
``shared_gate``: the shared expert has a gate; ``output_gate``: the query projection also makes a gate of its size
"""

from __future__ import annotations

LLAMA: dict[str, object] = {}
QWEN2VL = {"qkv_bias": True, "output_bias": False, "window_needs_flag": True, "multimodal_rotary": True}
QWEN2 = {"qkv_bias": True, "output_bias": False, "window_needs_flag": True}
QWEN3 = {"qk_norm": "head", "window_needs_flag": True}
QWEN3VL = dict(QWEN3, multimodal_rotary=True)
GEMMA3 = {"qk_norm": "head", "norms": 4, "tied": True, "window_pattern": 6, "local_base": 10000.0}
DEEPSEEK = {"router_bias": True}
DEEPSEEK_V4 = {"router_bias": True, "moe_prefix": "ffn", "rotary_dtype": "float32"}
LAYER_NORM = {"norm_bias": True, "gated": False, "mlp_bias": True, "qkv_bias": True, "output_bias": True}

ENCODER = dict(LAYER_NORM, positions=True, encoder=True)

FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "ministral": LLAMA,
    "ministral3": LLAMA,
    "yi": LLAMA,
    "aquila": LLAMA,
    "granite": LLAMA,
    "internlm2": LLAMA,
    "internlm3": LLAMA,
    "baichuan": LLAMA,
    "orion": {"norm_bias": True},
    "solar": LLAMA,
    "teleflm": LLAMA,
    "telechat2": LLAMA,
    "xverse": LLAMA,
    "decilm": LLAMA,
    "nemotron-nas": LLAMA,
    "smollm3": LLAMA,
    "minicpm": LLAMA,
    "internlm": LLAMA,
    "exaone": LLAMA,
    "hyperclovax": LLAMA,
    "apertus": {"qk_norm": "head", "gated": False},
    "arcee": {"gated": False},
    "seed_oss": {"output_bias": False},
    "step1": LLAMA,
    "cwm": LLAMA,
    "iquestcoder": LLAMA,
    "mixtral": {"moe_prefix": "block_sparse_moe"},
    "qwen": {"qkv_bias": True, "output_bias": False},
    "qwen2": QWEN2,
    "qwen2_vl": QWEN2VL,
    "qwen2_vl_text": QWEN2VL,
    "qwen2_5_vl": QWEN2VL,
    "qwen2_5_vl_text": QWEN2VL,
    "qwen2_5_omni_text": QWEN2VL,
    "qwen2_audio": QWEN2,
    "qwen2_moe": dict(QWEN2, shared_gate=True),
    "mimo": QWEN2,
    "dream": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl": QWEN3VL,
    "qwen3_vl_text": QWEN3VL,
    "qwen3_vl_moe": QWEN3VL,
    "qwen3_vl_moe_text": QWEN3VL,
    "qwen3_omni_moe_text": QWEN3VL,
    "qwen3_asr": QWEN3,
    "qwen3_next": dict(QWEN3, shared_gate=True, output_gate=True),
    "qwen3_5": dict(QWEN3VL, output_gate=True),
    "qwen3_5_text": dict(QWEN3VL, output_gate=True),
    "qwen3_5_moe": dict(QWEN3VL, shared_gate=True, output_gate=True),
    "qwen3_5_moe_text": dict(QWEN3VL, shared_gate=True, output_gate=True),
    "gemma": {"tied": True},
    "gemma2": {"norms": 4, "tied": True, "window_pattern": 2},
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "gemma3n": GEMMA3,
    "gemma3n_text": GEMMA3,
    "gemma4": GEMMA3,
    "gemma4_text": dict(GEMMA3, moe_prefix=""),
    "phi3": LLAMA,
    "phi": dict(LAYER_NORM, norms=1),
    "phimoe": dict(norm_bias=True),
    "glm": {"output_bias": False},
    "glm4": {"output_bias": False, "norms": 4},
    "chatglm": {"output_bias": False},
    "glm4v_text": {"output_bias": False, "norms": 4},
    "glm4_moe": {"output_bias": False, "router_bias": True},
    "glm4v_moe_text": {"output_bias": False, "router_bias": True},
    "glm4_moe_lite": DEEPSEEK,
    "gpt_oss": {
        "qkv_bias": True,
        "output_bias": True,
        "expert_bias": True,
        "router_linear_bias": True,
        "sinks": True,
        "window_pattern": 2,
        "rotary_dtype": "float32",
    },
    "granitemoe": {"moe_prefix": "block_sparse_moe"},
    "granitemoeshared": {"moe_prefix": "block_sparse_moe"},
    "granitemoehybrid": {"moe_prefix": "block_sparse_moe"},
    "exaone4": {"qk_norm": "head", "window_pattern": 4},
    "exaone_moe": {"qk_norm": "head", "router_bias": True},
    "minimax_m2": {
        "qk_norm": "full",
        "moe_prefix": "block_sparse_moe",
        "router_dtype": "float32",
        "router_bias": True,
    },
    "minimax_m3": {"qk_norm": "head", "router_dtype": "float32", "router_bias": True},
    "minimax_m3_vl": {"qk_norm": "head", "router_dtype": "float32", "router_bias": True},
    "minimax_m3_vl_text": {"qk_norm": "head", "router_dtype": "float32", "router_bias": True},
    "minimax": {"moe_prefix": "block_sparse_moe"},
    "minimax_text_01": {"moe_prefix": "block_sparse_moe"},
    "mimo_v2_flash": {"router_dtype": "float32", "router_bias": True},
    "step3p5": {"qk_norm": "head", "router_dtype": "float32", "router_bias": True},
    "step3p7": {"qk_norm": "head", "router_dtype": "float32", "router_bias": True},
    "deepseek": LLAMA,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek_ref": DEEPSEEK_V4,
    "glm_moe_dsa": DEEPSEEK,
    "dots1": {"qk_norm": "head", "router_bias": True},
    "longcat_flash": DEEPSEEK,
    "pangu_ultra_moe": DEEPSEEK,
    "bailing_moe": LLAMA,
    "ernie4_5": LLAMA,
    "ernie4_5_moe": {"router_dtype": "float32", "router_bias": True},
    "hunyuan_v1_dense": {"qk_norm": "head"},
    "hunyuan_v1_moe": {"qk_norm": "head"},
    "hunyuan": {"qk_norm": "head"},
    "kimi_linear": {"moe_prefix": "block_sparse_moe", "router_bias": True},
    "nemotron_h": {
        "no_rotary": True,
        "gated": False,
        "norms": 1,
        "moe_prefix": "mixer",
        "router_dtype": "float32",
        "router_bias": True,
    },
    "nemotron": {"norm_bias": True, "gated": False},
    "jamba": {"moe_prefix": "feed_forward", "no_rotary": True},
    "bamba": LLAMA,
    "falcon_h1": LLAMA,
    "zamba2": LLAMA,
    "plamo2": LLAMA,
    "mamba": {"norms": 1, "tied": True},
    "mamba2": {"norms": 1},
    "falcon_mamba": {"norms": 1},
    "lfm2": {"qk_norm": "head", "tied": True},
    "lfm2_moe": {"qk_norm": "head", "tied": True},
    "llama4": LLAMA,
    "llama4_text": {"moe_prefix": "feed_forward"},
    "olmo": {"norms": 0},
    "olmo2": {"qk_norm": "full"},
    "olmo3": {"qk_norm": "full"},
    "olmoe": {"qk_norm": "full"},
    "cohere": {"norms": 1, "tied": True},
    "cohere2": {"norms": 1, "tied": True, "window_pattern": 4},
    "starcoder2": LAYER_NORM,
    "stablelm": {"norm_bias": True},
    "persimmon": LAYER_NORM,
    "falcon": {"norm_bias": True, "norms": 1, "gated": False, "tied": True},
    "gpt2": dict(LAYER_NORM, tied=True, positions=True),
    "gpt_bigcode": dict(LAYER_NORM, tied=True, positions=True),
    "gpt_neox": LAYER_NORM,
    "gptj": dict(LAYER_NORM, qkv_bias=False, output_bias=False, norms=1),
    "bloom": dict(LAYER_NORM, tied=True),
    "mpt": {"gated": False},
    "opt": dict(LAYER_NORM, tied=True, positions=True),
    "dbrx": {"moe_prefix": "ffn"},
    "arctic": {"moe_prefix": "block_sparse_moe"},
    "bert": ENCODER,
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "modernbert": {"encoder": True},
    "nomic_bert": dict(LAYER_NORM, encoder=True),
    "new": dict(LAYER_NORM, encoder=True),
    "gte": dict(LAYER_NORM, encoder=True),
    "whisper": dict(LAYER_NORM, positions=True, tied=True),
}


def traits_of(config):
    """The traits of a language model's family; empty for Llama's and for unknown ones."""
    return FAMILIES.get(config.get("model_type"), LLAMA)


def is_known(config):
    """Whether the family is described here."""
    return config.get("model_type") in FAMILIES

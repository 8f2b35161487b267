# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One way to read the many spellings of config.json. Private to the collection gpufleet.vllm.

A config.json names the same thing differently in each family (``num_hidden_layers``, ``n_layer``, ``num_layers``) and
multimodal models nest the language model. `read` knows the spellings, `text_config` finds the language model.
"""

from __future__ import annotations

SPELLINGS = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"),
    "num_key_value_heads": (
        "num_key_value_heads",
        "multi_query_group_num",
        "num_kv_heads",
        "n_head_kv",
        "num_attention_groups",
        "n_kv_heads",
    ),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim", "hidden_size_per_head", "head_size"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "seq_length",
        "max_seq_len",
        "model_max_length",
        "max_sequence_length",
        "max_target_positions",
        "max_seq_length",
        "seq_len",
    ),
    "num_experts": (
        "num_experts",
        "n_routed_experts",
        "num_local_experts",
        "moe_num_experts",
        "num_routed_experts",
        "num_moe_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_topk",
        "top_k",
        "moe_k",
        "experts_per_token",
    ),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "sliding_window": ("sliding_window", "sliding_window_size", "window_size"),
    "mtp_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "n_mtp_layers"),
}

TEXT_CONFIG_KEYS = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
    "decoder",
)
"""Where multimodal models keep their language model; searched in this order, again inside what was found."""

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "bool": 1,
}


def read(config, name, default=None):
    """The value of a configuration entry under any of its spellings; the first that is set wins."""
    for key in SPELLINGS.get(name, (name,)):
        value = config.get(key)
        if value is not None:
            return value
    return default


def read_int(config, name, default=0):
    """Like `read`, as an integer; lists (one value per layer, as some families have) give their largest value."""
    value = read(config, name, default)
    if isinstance(value, (list, tuple)):
        value = max(value) if value else default
    try:
        return int(value)
    except (TypeError, ValueError):
        return default


LAYER_LISTS = ("layers_block_type", "hybrid_override_pattern", "layer_types", "block_configs")
"""Entries with one item a layer, which say how many there are where nothing else does."""


def text_config(config):
    """The language model's part of a config.json, with what only the outer part has filled in."""
    text = _nested_text_config(config)
    if read(text, "num_hidden_layers") is None:
        counts = [len(text[name]) for name in LAYER_LISTS if text.get(name)]
        return dict(text, num_hidden_layers=counts[0]) if counts else text
    return text


def _nested_text_config(config):
    for key in TEXT_CONFIG_KEYS:
        inner = config.get(key)
        if isinstance(inner, dict) and read(inner, "num_hidden_layers") is None:
            nested = _nested_text_config(inner)
            if nested is not inner:
                inner = nested
        if isinstance(inner, dict) and (read(inner, "num_hidden_layers") or read(inner, "hidden_size")):
            return _inherit(config, inner)
    return config


def _inherit(outer, inner):
    merged = dict(inner)
    if "thinker_config" in outer and outer["thinker_config"].get("tie_word_embeddings") is False:
        # The innermost part of Qwen-Omni's config.json carries the default of its class.
        merged["tie_word_embeddings"] = False
    for key in (
        "model_type",
        "torch_dtype",
        "dtype",
        "quantization_config",
        "max_position_embeddings",
        "vocab_size",
        "tie_word_embeddings",
    ):
        if merged.get(key) is None and outer.get(key) is not None:
            merged[key] = outer[key]
    return merged


def per_layer(config, name, layer, default=None):
    """A value that may be one for all layers or a list with one per layer."""
    value = read(config, name, default)
    if isinstance(value, (list, tuple)):
        return value[layer] if layer < len(value) else default
    return value


def stored_dtype(config):
    """The dtype that config.json states, without the ``torch.`` that old ones carry; None where it states none."""
    value = config.get("dtype") or config.get("torch_dtype")
    if isinstance(value, dict):
        value = value.get("")
    return str(value).replace("torch.", "") if value else None


STRETCHING_ROPES = ("linear", "dynamic", "yarn", "deepseek_yarn")
"""Scalings whose factor vLLM multiplies the positions with (``_get_and_verify_max_len`` in vllm/config/model.py)."""


UNSTATED_CONTEXT = 2048
"""What vLLM assumes where config.json states no longest context."""


def max_model_len(config):
    """The context that vLLM takes where ``--max-model-len`` is not given."""
    positions = read_int(config, "max_position_embeddings") or UNSTATED_CONTEXT
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind not in STRETCHING_ROPES or "gemma3" in str(config.get("model_type")) or "mrope_section" in rope:
        return positions
    if "yarn" in kind and rope.get("original_max_position_embeddings"):
        positions = int(rope["original_max_position_embeddings"])
    return int(positions * float(rope.get("factor") or 1.0))

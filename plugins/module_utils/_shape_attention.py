# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer's token mixer is and what it keeps per token. Private to the collection gpufleet.vllm.

`attention_of_layer` gives the ``attention`` part of one layer of the normal form (see ``_checkpoint``). The rules are
those of vLLM's model classes (``vllm/model_executor/models``), read in releases 0.9.2 to 0.32.0.
"""

from __future__ import annotations

from ._shape_config import per_layer, read, read_int

FULL_LAYER_TYPES = ("full_attention", "global", "attention", "full", "global_attention", "*", "hybrid", "a")
SLIDING_LAYER_TYPES = ("sliding_attention", "sliding", "local", "sliding_window", "local_attention", "swa")
MAMBA_LAYER_TYPES = ("mamba", "mamba2", "M", "m")
LINEAR_LAYER_TYPES = ("linear_attention", "linear", "gated_delta_net", "gdn", "kda")
CONV_LAYER_TYPES = ("conv", "short_conv")
EMPTY_LAYER_TYPES = ("-", "E", "moe", "mlp")

SLIDING_PATTERNS = {"gemma2": 2, "cohere2": 4, "gemma3_text": 6, "gemma3": 6, "exaone4": 4, "gpt_oss": 2}
"""Every n-th layer is full attention in these families where config.json has neither layer_types nor a pattern."""

IGNORES_WINDOW = ("mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl")
"""Families whose window counts only with ``use_sliding_window`` (Qwen), or is null in every published model."""


def attention_of_layer(config, layer):
    """The token mixer of one layer.

    Args: config: the language model's part of config.json; layer: its index.
    Returns: a dict as the normal form's ``layers[].attention`` describes it.
    """
    kind = layer_type(config, layer)
    if kind in EMPTY_LAYER_TYPES:
        return {"kind": "none"}
    if kind in CONV_LAYER_TYPES or kind in MAMBA_LAYER_TYPES or kind in LINEAR_LAYER_TYPES:
        return _state_attention(config, kind)
    if is_mla(config):
        return _mla_attention(config, layer)
    if config.get("block_configs"):
        return _block_config_attention(config, layer)
    return _grouped_query_attention(config, layer, kind)


def layer_type(config, layer):
    """The layer's type as config.json names it; ``full_attention`` or ``sliding_attention`` where a pattern says so."""
    for key in ("layer_types", "layers_block_type", "attention_layer_types"):
        types = config.get(key)
        if isinstance(types, (list, tuple)) and layer < len(types):
            return _known_type(config, types[layer])
    return "full_attention"


def _known_type(config, name):
    return name


def is_mla(config):
    """Multi-head latent attention: one compressed vector per token instead of keys and values."""
    return bool(config.get("kv_lora_rank"))


def _mla_attention(config, layer):
    return {
        "kind": "mla",
        "num_heads": read_int(config, "num_attention_heads"),
        "kv_lora_rank": read_int(config, "kv_lora_rank"),
        "q_lora_rank": read_int(config, "q_lora_rank") or None,
        "qk_nope_head_dim": read_int(config, "qk_nope_head_dim"),
        "qk_rope_head_dim": read_int(config, "qk_rope_head_dim"),
        "v_head_dim": read_int(config, "v_head_dim"),
        "window": None,
    }


def _state_attention(config, kind):
    raise ValueError("layers of type {0!r} are not described yet".format(kind))


def _block_config_attention(config, layer):
    block = config["block_configs"][layer].get("attention") or {}
    if block.get("no_op") or block.get("replace_with_linear"):
        return {"kind": "none"}
    heads = read_int(config, "num_attention_heads")
    attention = _grouped_query_attention(config, layer, "full_attention")
    attention["num_kv_heads"] = heads // int(block.get("n_heads_in_group") or 1)
    return attention


def _grouped_query_attention(config, layer, kind):
    heads = int(per_layer(config, "num_attention_heads", layer) or 1)
    kv_heads = int(per_layer(config, "num_key_value_heads", layer) or (1 if config.get("multi_query") else heads))
    head_dim = read_int(config, "head_dim") or read_int(config, "hidden_size") // heads
    window = _window(config, layer, kind)
    return {
        "kind": "sliding" if window else "full",
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "head_dim_v": read_int(config, "v_head_dim") or head_dim,
        "window": window,
    }


def _window(config, layer, kind):
    window = read(config, "sliding_window")
    if not window or isinstance(window, (list, tuple)):
        return None
    if kind in SLIDING_LAYER_TYPES:
        return int(window)
    if config.get("layer_types"):
        return None
    return _window_by_pattern(config, layer, int(window))


def _window_by_pattern(config, layer, window):
    family = config.get("model_type")
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or SLIDING_PATTERNS.get(family)
    if isinstance(pattern, int) and pattern > 0:
        return window if (layer + 1) % pattern else None
    if family in IGNORES_WINDOW and not config.get("use_sliding_window"):
        return None
    return window

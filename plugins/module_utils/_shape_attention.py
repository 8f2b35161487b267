# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer's token mixer is and what it keeps per token. Private to the collection gpufleet.vllm.

`attention_of_layer` gives the ``attention`` part of one layer of the normal form (see ``_checkpoint``). The rules are
those of vLLM's model classes (``vllm/model_executor/models``), read in releases 0.9.2 to 0.32.0.
"""

from __future__ import annotations

from ._shape_config import per_layer, read, read_int
from ._shape_families import traits_of
from ._shape_state import state_attention

LAYER_TYPES = {
    "full_attention": "full",
    "global": "full",
    "attention": "full",
    "full": "full",
    "global_attention": "full",
    "*": "full",
    "a": "full",
    "A": "full",
    "full_attention_with_rope": "full",
    "sparse_attention": "full",
    "mla": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "sliding_window": "sliding",
    "local_attention": "sliding",
    "swa": "sliding",
    "sliding_window_attention": "sliding",
    "chunked_attention": "chunked",
    "mamba": "mamba",
    "mamba2": "mamba",
    "M": "mamba",
    "m": "mamba",
    "linear_attention": "linear",
    "linear": "linear",
    "gated_delta_net": "linear",
    "gdn": "linear",
    "kda": "linear",
    "lightning_attention": "linear",
    "conv": "conv",
    "short_conv": "conv",
    "-": "none",
    "E": "none",
    "moe": "none",
    "mlp": "none",
    "none": "none",
}
"""Layer types as config.json names them, one letter each in Nemotron-H's pattern."""

STATE_TYPES = ("mamba", "linear", "conv")
PARALLEL_HYBRIDS = ("falcon_h1", "zamba2")
"""Families whose layers have attention and a Mamba mixer side by side."""


def attention_of_layer(config, layer):
    """The token mixer of one layer.

    Args: config: the language model's part of config.json; layer: its index.
    Returns: a dict as the normal form's ``layers[].attention`` describes it.
    """
    kind = layer_type(config, layer)
    if kind == "none":
        return {"kind": "none"}
    if kind in STATE_TYPES:
        return state_attention(config, kind)
    if config.get("model_type") in ("deepseek_v4", "deepseek_ref"):
        return _compressed_attention(config, layer)
    if is_mla(config):
        return _mla_attention(config, layer)
    attention = _grouped_query_attention(config, layer, kind)
    if config.get("model_type") in PARALLEL_HYBRIDS:
        attention["beside"] = state_attention(config, "mamba")
    return attention


def layer_type(config, layer):
    """``full``, ``sliding``, ``chunked``, ``mamba``, ``linear``, ``conv`` or ``none``, as config.json says it."""
    stated = _stated_type(config, layer)
    if stated is not None:
        return LAYER_TYPES.get(str(stated), "full")
    if config.get("linear_attn_config"):
        return "full" if layer + 1 in (config["linear_attn_config"].get("full_attn_layers") or ()) else "linear"
    return _type_by_rule(config, layer)


def _stated_type(config, layer):
    for key in (
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "layer_block_types",
        "attention_layer_types",
    ):
        types = config.get(key)
        if isinstance(types, (list, tuple, str)) and layer < len(types):
            return types[layer]
    return None


def _type_by_rule(config, layer):
    family = config.get("model_type")
    if family in ("mamba", "mamba2", "falcon_mamba"):
        return "mamba"
    if config.get("full_attention_interval") and config.get("linear_num_value_heads"):
        return "linear" if (layer + 1) % int(config["full_attention_interval"]) else "full"
    if config.get("attn_layer_period"):
        offset = int(config.get("attn_layer_offset") or 0)
        return "full" if layer % int(config["attn_layer_period"]) == offset else "mamba"
    if config.get("attn_layer_indices") is not None and family == "bamba":
        return "full" if layer in config["attn_layer_indices"] else "mamba"
    if config.get("attn_type_list"):
        return "full" if config["attn_type_list"][layer] else "linear"
    if config.get("full_attn_idxs"):
        return "full" if layer in config["full_attn_idxs"] else "conv"
    if config.get("hybrid_layer_pattern"):
        return "sliding" if config["hybrid_layer_pattern"][layer] else "full"
    if family == "llama4_text" and _uses_rope(config, layer):
        return "chunked"
    return "by_window"


def _uses_rope(config, layer):
    stated = config.get("no_rope_layers")
    if stated and layer < len(stated):
        return bool(stated[layer])
    return bool((layer + 1) % int(config.get("no_rope_layer_interval") or 4))


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
        "indexer": _indexer(config, layer),
        "no_rope": bool(config.get("mla_use_nope")),
    }


def _indexer(config, layer):
    """The lightning indexer of sparse attention; layers that share another layer's have none of their own."""
    if not config.get("index_topk"):
        return None
    types = config.get("indexer_types") or ()
    if layer < len(types) and types[layer] == "shared":
        return None
    return {
        "head_dim": read_int(config, "index_head_dim"),
        "num_heads": read_int(config, "index_n_heads"),
        "topk": read_int(config, "index_topk"),
    }


def _compressed_attention(config, layer):
    """DeepSeek-V4: a window of latent vectors and, by layer, a compressed history of every 4th or 128th token."""
    ratio = int(per_layer(config, "compress_ratios", layer) or 0)
    indexer = _indexer(config, layer) if ratio == 4 else None
    head_dim, rope = read_int(config, "head_dim"), read_int(config, "qk_rope_head_dim")
    return {
        "kind": "mla",
        "num_heads": read_int(config, "num_attention_heads"),
        "kv_lora_rank": head_dim - rope,
        "q_lora_rank": read_int(config, "q_lora_rank") or None,
        "qk_nope_head_dim": head_dim - rope,
        "qk_rope_head_dim": rope,
        "v_head_dim": head_dim,
        "window": read_int(config, "sliding_window") or None,
        "indexer": indexer,
        "no_rope": False,
        "compress_ratio": ratio,
        "o_groups": read_int(config, "o_groups"),
        "o_lora_rank": read_int(config, "o_lora_rank"),
    }


def _grouped_query_attention(config, layer, kind):
    window = _window(config, layer, kind)
    windowed = window is not None and kind != "chunked"
    heads, kv_heads, head_dim, head_dim_v = _heads(config, layer, windowed)
    if not kv_heads:
        return {"kind": "none"}
    attention = {
        "kind": "chunked" if kind == "chunked" else ("sliding" if windowed else "full"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "head_dim_v": head_dim_v,
        "window": window,
    }
    if _shares_kv(config, layer):
        attention["shares_kv"] = True
    if traits_of(config).get("encoder"):
        attention["encoder_only"] = True
    indexer = _sparse_index(config, layer)
    return dict(attention, indexer=indexer) if indexer else attention


def _heads(config, layer, windowed):
    """(query heads, KV heads, head dimension, dimension of the values); KV heads 0 where the layer has no attention."""
    block = per_layer(config, "block_configs", layer)
    heads = int(per_layer(config, "num_attention_heads", layer) or 1)
    if isinstance(block, dict):
        return _block_heads(config, block.get("attention") or {}, heads)
    if windowed and config.get("swa_num_key_value_heads"):
        head_dim = read_int(config, "swa_head_dim") or read_int(config, "head_dim")
        heads = read_int(config, "swa_num_attention_heads") or heads
        return (
            heads,
            read_int(config, "swa_num_key_value_heads"),
            head_dim,
            read_int(config, "swa_v_head_dim") or head_dim,
        )
    kv_heads = int(per_layer(config, "num_key_value_heads", layer) or heads)
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        kv_heads = 1
    head_dim = read_int(config, "head_dim") or read_int(config, "hidden_size") // heads
    if not windowed and config.get("global_head_dim"):
        head_dim = int(config["global_head_dim"])
        kv_heads = int(config.get("num_global_key_value_heads") or kv_heads)
    return heads, kv_heads, head_dim, read_int(config, "v_head_dim") or head_dim


def _block_heads(config, block, heads):
    head_dim = read_int(config, "head_dim") or read_int(config, "hidden_size") // heads
    if block.get("no_op") or block.get("replace_with_linear"):
        return heads, 0, head_dim, head_dim
    stated = block.get("num_key_value_heads") or heads // int(block.get("n_heads_in_group") or 1)
    return heads, int(stated), head_dim, head_dim


def _shares_kv(config, layer):
    """Gemma 3n and 4 reuse the cache of an earlier layer in their last ``num_kv_shared_layers``."""
    shared = read_int(config, "num_kv_shared_layers")
    return bool(shared) and layer >= read_int(config, "num_hidden_layers") - shared


def _sparse_index(config, layer):
    sparse = config.get("sparse_attention_config") or {}
    if not sparse.get("use_sparse_attention") or not per_layer(sparse, "sparse_attention_freq", layer):
        return None
    return {
        "head_dim": int(sparse.get("sparse_index_dim") or 0),
        "num_heads": int(sparse.get("sparse_num_index_heads") or 0),
        "topk": int(sparse.get("sparse_topk_blocks") or 0) * int(sparse.get("sparse_block_size") or 0),
    }


def _window(config, layer, kind):
    if kind == "chunked":
        return int(config.get("attention_chunk_size") or 8192)
    window = per_layer(config, "sliding_window", layer)
    if kind == "full" or not window:
        return None
    return int(window) if kind == "sliding" else _window_by_pattern(config, layer, int(window))


def _window_by_pattern(config, layer, window):
    traits = traits_of(config)
    pattern = (
        read(config, "sliding_window_pattern") or config.get("_sliding_window_pattern") or traits.get("window_pattern")
    )
    if isinstance(pattern, str) and pattern:
        return window if pattern[layer % len(pattern)] == "L" else None
    if isinstance(pattern, int) and pattern > 0:
        return window if (layer + 1) % pattern else None
    if traits.get("window_needs_flag") and not config.get("use_sliding_window"):
        return None
    if traits.get("window_needs_flag"):
        return window if layer >= int(config.get("max_window_layers") or 0) else None
    return window

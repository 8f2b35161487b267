# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weight tensors of a model, from its shape. Private to the collection gpufleet.vllm.

A tensor is a dict as the normal form (see ``_checkpoint``) describes it. The names are those of the checkpoint without
the layer's prefix, so that quantisation rules, which name modules, can be applied to them.
"""

from __future__ import annotations

import sys

from . import _shape_state
from ._shape_config import read_int
from ._shape_families import traits_of


def linear(name, group, rows, columns, split, **extra):
    """One weight matrix of ``rows`` outputs by ``columns`` inputs; extra: copies, bias, heads, dtype, fused, plain."""
    tensor = {"name": name, "group": group, "out": int(rows), "in": int(columns), "copies": 1, "split": split}
    tensor.update({key: value for key, value in extra.items() if value})
    return tensor


def vector(name, group, size, split="replicated", **extra):
    """A norm, a bias or another one-dimensional parameter; never quantised."""
    return linear(name, group, size, 1, split, plain=True, **extra)


def layer_tensors(config, attention, mlp):
    """All tensors of one layer."""
    hidden, traits = read_int(config, "hidden_size"), traits_of(config)
    norms = traits.get("norms", 2)
    if mlp.get("dense_intermediate_size"):
        norms += 3
    tensors = [vector("norm", "norm", hidden, copies=norms * (2 if traits.get("norm_bias") else 1))] if norms else []
    tensors += attention_tensors(config, attention, hidden)
    if attention.get("beside"):
        tensors += attention_tensors(config, attention["beside"], hidden)
    return tensors + mlp_tensors(config, mlp, hidden)


def attention_tensors(config, attention, hidden):
    """Projections of a token mixer."""
    if attention["kind"] == "none":
        return []
    if attention["kind"] in ("linear", "mamba"):
        return _shape_state.state_tensors(config, attention, hidden, sys.modules[__name__])
    if "compress_ratio" in attention:
        return _compressed_tensors(attention, hidden)
    if attention["kind"] == "mla":
        return _mla_tensors(config, attention, hidden)
    return _grouped_query_tensors(config, attention, hidden)


def _stated(traits, config, trait, *names):
    """A bias is there if the family always has it, or if config.json says so and the family listens."""
    if trait in traits:
        return bool(traits[trait])
    return any(bool(config.get(name)) for name in names)


def _grouped_query_tensors(config, attention, hidden):
    traits, prefix = traits_of(config), "mixer." if traits_of(config).get("moe_prefix") == "mixer" else "self_attn."
    heads, kv_heads = attention["num_heads"], attention["num_kv_heads"]
    head_dim, head_dim_v = attention["head_dim"], attention["head_dim_v"]
    bias = _stated(
        traits, config, "qkv_bias", "attention_bias", "qkv_bias", "add_qkv_bias", "use_qkv_bias", "bias", "use_bias"
    )
    output_bias = _stated(traits, config, "output_bias", "attention_bias", "attention_out_bias", "bias", "use_bias")
    queries = heads * head_dim * (2 if traits.get("output_gate") and config.get("attn_output_gate", True) else 1)
    tensors = [
        linear(prefix + "q_proj", "attention", queries, hidden, "column", bias=bias, fused="qkv_proj"),
        linear(
            prefix + "k_proj",
            "attention",
            kv_heads * head_dim,
            hidden,
            "kv_heads",
            heads=kv_heads,
            bias=bias,
            fused="qkv_proj",
        ),
        linear(
            prefix + "v_proj",
            "attention",
            kv_heads * head_dim_v,
            hidden,
            "kv_heads",
            heads=kv_heads,
            bias=bias,
            fused="qkv_proj",
        ),
        linear(prefix + "o_proj", "attention", hidden, heads * head_dim_v, "row", bias=output_bias),
    ]
    return tensors + _attention_extras(config, attention, traits) + _sparse_index_tensors(attention, hidden)


def _attention_extras(config, attention, traits):
    heads, kv_heads, head_dim = attention["num_heads"], attention["num_kv_heads"], attention["head_dim"]
    tensors = []
    norm = traits.get("qk_norm") or ("head" if config.get("use_qk_norm") else None)
    if norm == "full":
        tensors.append(vector("self_attn.q_norm", "norm", heads * head_dim, "column"))
        tensors.append(vector("self_attn.k_norm", "norm", kv_heads * head_dim, "column"))
    elif norm == "head":
        tensors.append(vector("self_attn.qk_norm", "norm", 2 * head_dim))
    if traits.get("sinks") or config.get("add_swa_attention_sink_bias") and attention["window"]:
        tensors.append(vector("self_attn.sinks", "norm", heads, "column"))
    return tensors


def _sparse_index_tensors(attention, hidden):
    """MiniMax-M3: index queries and one index key beside the attention of sparse layers."""
    indexer = attention.get("indexer")
    if not indexer:
        return []
    heads, dim = indexer["num_heads"], indexer["head_dim"]
    return [
        linear("self_attn.index_q_proj", "attention", heads * dim, hidden, "kv_heads", heads=heads),
        linear("self_attn.index_k_proj", "attention", dim, hidden, "replicated"),
        vector("self_attn.index_norms", "norm", 2 * dim),
    ]


def _mla_tensors(config, attention, hidden):
    heads, rank, name = attention["num_heads"], attention["kv_lora_rank"], "self_attn."
    nope, rope, value = attention["qk_nope_head_dim"], attention["qk_rope_head_dim"], attention["v_head_dim"]
    query_rank = attention["q_lora_rank"]
    fused = "fused_qkv_a_proj" if query_rank else None
    tensors = [
        linear(name + "kv_a_proj_with_mqa", "attention", rank + rope, hidden, "replicated", fused=fused),
        vector(name + "kv_a_layernorm", "norm", rank),
        linear(name + "kv_b_proj", "attention", heads * (nope + value), rank, "column", absorbed=True),
        linear(name + "o_proj", "attention", hidden, heads * value, "row"),
    ]
    if query_rank:
        tensors.append(linear(name + "q_a_proj", "attention", query_rank, hidden, "replicated", fused=fused))
        tensors.append(vector(name + "q_a_layernorm", "norm", query_rank))
        tensors.append(linear(name + "q_b_proj", "attention", heads * (nope + rope), query_rank, "column"))
    else:
        tensors.append(linear(name + "q_proj", "attention", heads * (nope + rope), hidden, "column"))
    if config.get("mla_use_output_gate"):
        tensors.append(linear(name + "g_proj", "attention", heads * value, hidden, "column"))
    return tensors + _indexer_tensors(attention, hidden)


def _indexer_tensors(attention, hidden):
    """The lightning indexer (``Indexer`` in ``deepseek_v2.py``): all of it on every GPU."""
    indexer = attention.get("indexer")
    if not indexer:
        return []
    heads, dim = indexer["num_heads"], indexer["head_dim"]
    return [
        linear("self_attn.indexer.wq_b", "attention", heads * dim, attention["q_lora_rank"] or hidden, "replicated"),
        linear("self_attn.indexer.wk", "attention", dim, hidden, "replicated"),
        linear("self_attn.indexer.weights_proj", "attention", heads, hidden, "replicated", plain=True),
        vector("self_attn.indexer.k_norm", "norm", 2 * dim, dtype="float32"),
    ]


def _compressed_tensors(attention, hidden):
    """DeepSeek-V4: queries of low rank, one latent for keys and values, grouped output of low rank, a compressor."""
    heads, head_dim, name = attention["num_heads"], attention["v_head_dim"], "attn."
    groups, rank, query_rank = max(1, attention["o_groups"]), attention["o_lora_rank"], attention["q_lora_rank"]
    tensors = [
        linear(name + "wq_a", "attention", query_rank, hidden, "replicated", fused="fused_wqa_wkv"),
        linear(name + "wkv", "attention", head_dim, hidden, "replicated", fused="fused_wqa_wkv"),
        linear(name + "wq_b", "attention", heads * head_dim, query_rank, "column"),
        linear(name + "wo_a", "attention", groups * rank, heads * head_dim // groups, "column"),
        linear(name + "wo_b", "attention", hidden, groups * rank, "row"),
        vector(name + "norms", "norm", query_rank + head_dim),
        vector(name + "attn_sink", "norm", heads, "column", dtype="float32"),
    ]
    ratio = attention["compress_ratio"]
    if ratio:
        width = head_dim * (2 if ratio == 4 else 1)
        tensors += _compressor("attn.compressor", width, ratio, hidden)
    if attention["indexer"]:
        indexer = attention["indexer"]
        tensors += [
            linear(
                name + "indexer.wq_b", "attention", indexer["num_heads"] * indexer["head_dim"], query_rank, "replicated"
            ),
            linear(name + "indexer.weights_proj", "attention", indexer["num_heads"], hidden, "replicated", plain=True),
        ] + _compressor("attn.indexer.compressor", 2 * indexer["head_dim"], ratio, hidden)
    return tensors


def _compressor(name, width, ratio, hidden):
    return [
        linear(name + ".wkv", "attention", width, hidden, "replicated", plain=True, dtype="float32"),
        linear(name + ".wgate", "attention", width, hidden, "replicated", plain=True, dtype="float32"),
        linear(name + ".ape", "attention", ratio, width, "replicated", plain=True, dtype="float32"),
        vector(name + ".norm", "norm", width),
    ]


def mlp_tensors(config, mlp, hidden):
    """Projections of a feed-forward part."""
    if mlp["kind"] == "none":
        return []
    if mlp["kind"] == "dense":
        prefix = "mixer" if traits_of(config).get("moe_prefix") == "mixer" else "mlp"
        return feed_forward(config, prefix, "mlp", hidden, mlp["intermediate_size"])
    tensors = _moe_tensors(config, mlp, hidden)
    if mlp.get("dense_intermediate_size"):
        tensors += feed_forward(config, "mlp", "mlp", hidden, mlp["dense_intermediate_size"])
    return tensors


def feed_forward(config, prefix, group, hidden, intermediate):
    """SwiGLU and its like (gate, up, down), or the two matrices of families without a gate."""
    traits = traits_of(config)
    bias = _stated(traits, config, "mlp_bias", "mlp_bias")
    tensors = [linear(prefix + ".up_proj", group, intermediate, hidden, "column", bias=bias, fused="gate_up_proj")]
    if traits.get("gated", True):
        tensors.append(
            linear(prefix + ".gate_proj", group, intermediate, hidden, "column", bias=bias, fused="gate_up_proj")
        )
    return tensors + [linear(prefix + ".down_proj", group, hidden, intermediate, "row", bias=bias)]


def _moe_tensors(config, mlp, hidden):
    traits = traits_of(config)
    prefix = traits.get("moe_prefix", "mlp")
    prefix += "." if prefix else ""
    experts, intermediate, width = mlp["num_experts"], mlp["intermediate_size"], mlp.get("hidden_size") or hidden
    gates = 2 if traits.get("gated", True) else 1
    bias = bool(traits.get("expert_bias"))
    tensors = [
        linear(
            prefix + "gate",
            "router",
            experts,
            hidden,
            "replicated",
            plain=True,
            dtype=traits.get("router_dtype"),
            bias=bool(traits.get("router_linear_bias")),
        ),
        linear(
            prefix + "experts.w13", "experts", gates * intermediate, width, "expert_column", copies=experts, bias=bias
        ),
        linear(prefix + "experts.w2", "experts", width, intermediate, "expert_row", copies=experts, bias=bias),
    ]
    if traits.get("router_bias"):
        tensors.append(vector(prefix + "gate.e_score_correction_bias", "router", experts, dtype="float32"))
    if width != hidden:
        tensors += [
            linear(prefix + "fc1_latent_proj", "router", width, hidden, "replicated"),
            linear(prefix + "fc2_latent_proj", "router", hidden, width, "replicated"),
        ]
    if mlp["shared_intermediate_size"]:
        shared = prefix + ("shared_expert" if traits.get("shared_gate") else "shared_experts")
        tensors += feed_forward(config, shared, "shared_experts", hidden, mlp["shared_intermediate_size"])
    if traits.get("shared_gate"):
        tensors.append(linear(prefix + "shared_expert_gate", "router", 1, hidden, "replicated", plain=True))
    return tensors


def outside_tensors(config):
    """Embedding, final norm and output head; ``stage`` says which pipeline stages hold them."""
    hidden, vocabulary = read_int(config, "hidden_size"), read_int(config, "vocab_size")
    embedding = linear("embed_tokens", "embedding", vocabulary, hidden, "vocabulary", plain=True, stage="first")
    tensors = [embedding, vector("norm", "norm", hidden, stage="last")]
    if traits_of(config).get("positions"):
        positions = read_int(config, "max_position_embeddings")
        tensors.append(
            linear("embed_positions", "embedding", positions, hidden, "replicated", plain=True, stage="first")
        )
    if config.get("hidden_size_per_layer_input"):
        tensors += _per_layer_embedding(config, hidden)
    if is_tied(config):
        embedding["stage"] = "first_and_last"
        return tensors
    return tensors + [linear("lm_head", "head", vocabulary, hidden, "vocabulary", stage="last", head=True)]


def _per_layer_embedding(config, hidden):
    """Gemma 3n and 4: every layer has an embedding of its own, as one table; the layers' gates are counted here too."""
    width, layers = int(config["hidden_size_per_layer_input"]), read_int(config, "num_hidden_layers")
    rows = int(config.get("vocab_size_per_layer_input") or read_int(config, "vocab_size"))
    return [
        linear("embed_tokens_per_layer", "embedding", rows, layers * width, "vocabulary", plain=True, stage="first"),
        linear("per_layer_model_projection", "embedding", layers * width, hidden, "column", stage="all"),
        linear("per_layer_input_gate", "mlp", width, hidden, "replicated", copies=layers, stage="all"),
        linear("per_layer_projection", "mlp", hidden, width, "replicated", copies=layers, stage="all"),
    ]


def is_tied(config):
    """Whether the output head is the embedding matrix itself."""
    tied = config.get("tie_word_embeddings")
    return bool(traits_of(config).get("tied")) if tied is None else bool(tied)

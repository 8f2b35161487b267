# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The weight tensors of a model, from its shape. Private to the collection gpufleet.vllm.

A tensor is a dict as the normal form (see ``_checkpoint``) describes it. The names are those of the checkpoint without
the layer's prefix, so that quantisation rules, which name modules, can be applied to them.
"""

from __future__ import annotations

from ._shape_config import read_int

TRAITS = {
    "qwen2": {"qkv_bias": True},
    "qwen2_vl": {"qkv_bias": True},
    "qwen2_5_vl": {"qkv_bias": True},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3": {"qk_norm": "head"},
    "qwen3_moe": {"qk_norm": "head"},
    "gemma2": {"norms": 4},
    "gemma3": {"norms": 4, "qk_norm": "head"},
    "gemma3_text": {"norms": 4, "qk_norm": "head"},
}
"""What distinguishes a family's layer from Llama's: biases, norms on queries and keys, norms per layer."""

TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "cohere",
                   "cohere2", "gpt2", "opt", "bloom", "falcon")
"""Families whose configuration class ties the embeddings where config.json does not say."""


def linear(name, group, rows, columns, split, **extra):
    """One weight matrix of ``rows`` outputs by ``columns`` inputs; extra: copies, bias, heads, dtype."""
    tensor = {"name": name, "group": group, "out": int(rows), "in": int(columns), "copies": 1, "split": split}
    tensor.update({key: value for key, value in extra.items() if value})
    return tensor


def vector(name, group, size, split="replicated", **extra):
    """A norm, a bias or another one-dimensional parameter; never quantised."""
    return linear(name, group, size, 1, split, plain=True, **extra)


def traits_of(config):
    return TRAITS.get(config.get("model_type"), {})


def layer_tensors(config, attention, mlp):
    """All tensors of one layer."""
    hidden = read_int(config, "hidden_size")
    norms = traits_of(config).get("norms", 2)
    tensors = [vector("norm", "norm", hidden, copies=norms)]
    tensors += attention_tensors(config, attention, hidden)
    return tensors + mlp_tensors(config, mlp, hidden)


def attention_tensors(config, attention, hidden):
    """Projections of a token mixer."""
    if attention["kind"] == "none":
        return []
    if attention["kind"] == "mla":
        return _mla_tensors(attention, hidden)
    return _grouped_query_tensors(config, attention, hidden)


def _grouped_query_tensors(config, attention, hidden):
    traits = traits_of(config)
    heads, kv_heads = attention["num_heads"], attention["num_kv_heads"]
    head_dim, head_dim_v = attention["head_dim"], attention["head_dim_v"]
    bias = bool(traits.get("qkv_bias") or config.get("attention_bias") or config.get("qkv_bias") or config.get("add_qkv_bias"))
    output_bias = bool(config.get("attention_bias") and not traits.get("qkv_bias"))
    tensors = [
        linear("self_attn.q_proj", "attention", heads * head_dim, hidden, "column", bias=bias),
        linear("self_attn.k_proj", "attention", kv_heads * head_dim, hidden, "kv_heads", heads=kv_heads, bias=bias),
        linear("self_attn.v_proj", "attention", kv_heads * head_dim_v, hidden, "kv_heads", heads=kv_heads, bias=bias),
        linear("self_attn.o_proj", "attention", hidden, heads * head_dim_v, "row", bias=output_bias),
    ]
    if traits.get("qk_norm") == "head":
        tensors.append(vector("self_attn.qk_norm", "norm", 2 * head_dim))
    return tensors


def _mla_tensors(attention, hidden):
    heads, rank = attention["num_heads"], attention["kv_lora_rank"]
    nope, rope, value = attention["qk_nope_head_dim"], attention["qk_rope_head_dim"], attention["v_head_dim"]
    tensors = [
        linear("self_attn.kv_a_proj_with_mqa", "attention", rank + rope, hidden, "replicated"),
        vector("self_attn.kv_a_layernorm", "norm", rank),
        linear("self_attn.kv_b_proj", "attention", heads * (nope + value), rank, "column"),
        linear("self_attn.o_proj", "attention", hidden, heads * value, "row"),
    ]
    if attention["q_lora_rank"]:
        tensors.append(linear("self_attn.q_a_proj", "attention", attention["q_lora_rank"], hidden, "replicated"))
        tensors.append(vector("self_attn.q_a_layernorm", "norm", attention["q_lora_rank"]))
    tensors.append(
        linear("self_attn.q_b_proj", "attention", heads * (nope + rope), attention["q_lora_rank"] or hidden, "column")
    )
    return tensors


def mlp_tensors(config, mlp, hidden):
    """Projections of a feed-forward part."""
    if mlp["kind"] == "none":
        return []
    if mlp["kind"] == "dense":
        return gated_mlp("mlp", "mlp", hidden, mlp["intermediate_size"])
    return _moe_tensors(mlp, hidden)


def gated_mlp(prefix, group, hidden, intermediate):
    """SwiGLU and its like: gate, up and down projections."""
    return [
        linear(prefix + ".gate_proj", group, intermediate, hidden, "column"),
        linear(prefix + ".up_proj", group, intermediate, hidden, "column"),
        linear(prefix + ".down_proj", group, hidden, intermediate, "row"),
    ]


def _moe_tensors(mlp, hidden):
    experts, intermediate = mlp["num_experts"], mlp["intermediate_size"]
    tensors = [
        linear("mlp.gate", "router", experts, hidden, "replicated", plain=True),
        linear("mlp.experts.gate_up_proj", "experts", 2 * intermediate, hidden, "expert_column", copies=experts),
        linear("mlp.experts.down_proj", "experts", hidden, intermediate, "expert_row", copies=experts),
    ]
    if mlp["shared_intermediate_size"]:
        tensors += gated_mlp("mlp.shared_experts", "shared_experts", hidden, mlp["shared_intermediate_size"])
    return tensors


def outside_tensors(config):
    """Embedding, final norm and output head; ``stage`` says which pipeline stages hold them."""
    hidden, vocabulary = read_int(config, "hidden_size"), read_int(config, "vocab_size")
    embedding = linear("embed_tokens", "embedding", vocabulary, hidden, "vocabulary", plain=True, stage="first")
    norm = vector("norm", "norm", hidden, stage="last")
    if is_tied(config):
        embedding["stage"] = "first_and_last"
        return [embedding, norm]
    return [embedding, norm, linear("lm_head", "head", vocabulary, hidden, "vocabulary", stage="last")]


def is_tied(config):
    """Whether the output head is the embedding matrix itself."""
    tied = config.get("tie_word_embeddings")
    return config.get("model_type") in TIED_BY_DEFAULT if tied is None else bool(tied)

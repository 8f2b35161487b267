# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Layers that keep a state of fixed size instead of keys and values. Private to the collection gpufleet.vllm.

`state_attention` gives their ``attention``, `state_tensors` their weights. The ``state`` names the mixer:

``mamba1``: intermediate_size, state_size, conv_kernel, dt_rank
``mamba2``: num_heads, head_dim, n_groups, state_size, conv_kernel
``gated_delta_net``: num_key_heads, num_value_heads, key_head_dim, value_head_dim, conv_kernel
``kda``: num_heads, head_dim, conv_kernel
``lightning``: num_heads, head_dim
``short_conv``: conv_dim, conv_kernel

and ``dtype``, of the recurrent state where it is not the model's. Shapes: ``MambaStateShapeCalculator`` in
``vllm/model_executor/layers/mamba/mamba_utils.py``.
"""

from __future__ import annotations

from ._shape_config import read_int
from ._shape_families import traits_of


def state_attention(config, kind):
    """The ``attention`` of a layer that keeps a state; kind: as `_shape_attention.layer_type` gives it."""
    mixer = mixer_of(config, kind)
    builder = {
        "gated_delta_net": _gated_delta_net,
        "kda": _kda,
        "lightning": _lightning,
        "short_conv": _short_conv,
        "mamba1": _mamba1,
        "mamba2": _mamba2,
    }[mixer]
    family = "mamba" if mixer.startswith("mamba") else "linear"
    return dict(builder(config), kind=family, state=mixer, window=None, dtype=state_dtype(config, mixer))


def mixer_of(config, kind):
    """Which mixer a linear or Mamba layer of this model is."""
    if kind == "conv":
        return "short_conv"
    if kind == "linear":
        if config.get("linear_attn_config"):
            return "kda"
        if config.get("linear_num_value_heads"):
            return "gated_delta_net"
    has_heads = any(config.get(key) for key in ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads"))
    if kind == "linear" and not has_heads:
        return "lightning"
    return "mamba2" if has_heads and config.get("model_type") not in ("jamba", "mamba", "falcon_mamba") else "mamba1"


def state_dtype(config, mixer):
    """dtype of the recurrent state where the model states one; None: the model's dtype."""
    stated = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    if mixer == "kda" or (config.get("model_type") == "nemotron_h" and not stated):
        return "float32"
    return str(stated).replace("torch.", "") if stated else None


def _first(config, *names):
    for name in names:
        if config.get(name) is not None:
            return int(config[name])
    return 0


def _gated_delta_net(config):
    return {
        "num_key_heads": _first(config, "linear_num_key_heads"),
        "num_value_heads": _first(config, "linear_num_value_heads"),
        "key_head_dim": _first(config, "linear_key_head_dim"),
        "value_head_dim": _first(config, "linear_value_head_dim"),
        "conv_kernel": _first(config, "linear_conv_kernel_dim"),
    }


def _kda(config):
    inner = config["linear_attn_config"]
    return {
        "num_heads": int(inner.get("num_heads") or 0),
        "head_dim": int(inner.get("head_dim") or 0),
        "conv_kernel": int(inner.get("short_conv_kernel_size") or 4),
        "full_rank_gate": bool(inner.get("use_full_rank_gate")),
    }


def _lightning(config):
    heads = read_int(config, "num_attention_heads")
    return {
        "num_heads": heads,
        "head_dim": read_int(config, "head_dim") or read_int(config, "hidden_size") // max(heads, 1),
    }


def _short_conv(config):
    return {
        "conv_dim": _first(config, "conv_dim", "hidden_size"),
        "conv_kernel": _first(config, "conv_L_cache", "conv_l_cache"),
    }


def _mamba1(config):
    hidden = read_int(config, "hidden_size")
    expand = _first(config, "mamba_expand", "expand") or 2
    return {
        "intermediate_size": _first(config, "mamba_intermediate_size") or expand * hidden,
        "state_size": _first(config, "mamba_d_state", "state_size", "ssm_state_size"),
        "conv_kernel": _first(config, "mamba_d_conv", "conv_kernel"),
        "dt_rank": _dt_rank(config, hidden),
    }


def _dt_rank(config, hidden):
    stated = config.get("mamba_dt_rank") or config.get("time_step_rank")
    return int(stated) if isinstance(stated, int) else -(-hidden // 16)


def _mamba2(config):
    hidden = read_int(config, "hidden_size")
    heads = _first(config, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    inner = _first(config, "mamba_d_ssm") or (_first(config, "mamba_expand", "expand") or 2) * hidden
    stated = config.get(
        "mamba_d_head", config.get("mamba_head_dim", config.get("mamba_headdim", config.get("head_dim")))
    )
    head_dim = int(stated) if isinstance(stated, int) else inner // max(heads, 1)
    return {
        "num_heads": heads,
        "head_dim": head_dim,
        "n_groups": _first(config, "mamba_n_groups", "n_groups", "mamba_ngroups") or 1,
        "state_size": _first(config, "mamba_d_state", "ssm_state_size", "state_size"),
        "conv_kernel": _first(config, "mamba_d_conv", "conv_kernel"),
    }


def state_tensors(config, attention, hidden, make):
    """Weights of a layer that keeps a state. ``make``: the module `_shape_tensors` (its ``linear`` and ``vector``)."""
    builder = {
        "gated_delta_net": _gated_delta_net_tensors,
        "kda": _kda_tensors,
        "lightning": _lightning_tensors,
        "short_conv": _short_conv_tensors,
        "mamba1": _mamba1_tensors,
        "mamba2": _mamba2_tensors,
    }[attention["state"]]
    return builder(config, attention, hidden, make)


def _gated_delta_net_tensors(config, attention, hidden, make):
    keys = attention["num_key_heads"] * attention["key_head_dim"]
    values = attention["num_value_heads"] * attention["value_head_dim"]
    heads, name = attention["num_value_heads"], "linear_attn."
    return [
        make.linear(name + "in_proj_qkv", "state", 2 * keys + values, hidden, "column", fused="in_proj_qkvz"),
        make.linear(name + "in_proj_z", "state", values, hidden, "column", fused="in_proj_qkvz"),
        make.linear(name + "in_proj_ba", "state", 2 * heads, hidden, "column"),
        make.linear(name + "out_proj", "state", hidden, values, "row"),
        make.linear(name + "conv1d", "state", 2 * keys + values, attention["conv_kernel"], "column", plain=True),
        make.vector(name + "A_log", "state", heads, "column", dtype="float32"),
        make.vector(name + "dt_bias", "state", heads, "column"),
        make.vector(name + "norm", "norm", attention["value_head_dim"]),
    ]


def _kda_tensors(config, attention, hidden, make):
    size, dim, heads = attention["num_heads"] * attention["head_dim"], attention["head_dim"], attention["num_heads"]
    name = "self_attn."
    tensors = [make.linear(name + part + "_proj", "state", size, hidden, "column") for part in ("q", "k", "v")]
    tensors += [
        make.linear(
            name + part + "_conv1d", "state", size, attention["conv_kernel"], "column", plain=True, dtype="float32"
        )
        for part in ("q", "k", "v")
    ]
    tensors += [
        make.linear(name + "f_a_proj", "state", dim, hidden, "replicated"),
        make.linear(name + "f_b_proj", "state", size, dim, "column"),
        make.linear(name + "b_proj", "state", heads, hidden, "column"),
        make.linear(name + "o_proj", "state", hidden, size, "row"),
        make.vector(name + "A_log", "state", heads, "column", dtype="float32"),
        make.vector(name + "dt_bias", "state", size, "column", dtype="float32"),
        make.vector(name + "o_norm", "norm", dim),
    ]
    if attention["full_rank_gate"]:
        return tensors + [make.linear(name + "g_proj", "state", size, hidden, "column")]
    return tensors + [
        make.linear(name + "g_a_proj", "state", dim, hidden, "replicated"),
        make.linear(name + "g_b_proj", "state", size, dim, "column"),
    ]


def _lightning_tensors(config, attention, hidden, make):
    size = attention["num_heads"] * attention["head_dim"]
    return [
        make.linear("self_attn.qkv_proj", "state", 3 * size, hidden, "column"),
        make.linear("self_attn.output_gate", "state", size, hidden, "column"),
        make.linear("self_attn.out_proj", "state", hidden, size, "row"),
        make.vector("self_attn.norm", "norm", size, "column"),
    ]


def _short_conv_tensors(config, attention, hidden, make):
    size, bias = attention["conv_dim"], bool(config.get("conv_bias"))
    return [
        make.linear("conv.in_proj", "state", 3 * size, hidden, "column", bias=bias),
        make.linear("conv.conv", "state", size, attention["conv_kernel"], "column", bias=bias, plain=True),
        make.linear("conv.out_proj", "state", hidden, size, "row", bias=bias),
    ]


def _mamba1_tensors(config, attention, hidden, make):
    size, states, rank = attention["intermediate_size"], attention["state_size"], attention["dt_rank"]
    tensors = [
        make.linear("mamba.in_proj", "state", 2 * size, hidden, "column"),
        make.linear("mamba.conv1d", "state", size, attention["conv_kernel"], "column", bias=True, plain=True),
        make.linear("mamba.x_proj", "state", rank + 2 * states, size, "row"),
        make.linear("mamba.dt_proj", "state", size, rank, "column", bias=True),
        make.linear("mamba.A", "state", size, states, "column", plain=True, dtype="float32"),
        make.vector("mamba.D", "state", size, "column"),
        make.linear("mamba.out_proj", "state", hidden, size, "row"),
    ]
    if config.get("model_type") == "jamba":
        tensors.append(make.vector("mamba.layernorms", "norm", rank + 2 * states))
    return tensors


def _mamba2_tensors(config, attention, hidden, make):
    size = attention["num_heads"] * attention["head_dim"]
    mixed = size + 2 * attention["n_groups"] * attention["state_size"]
    name = "mixer." if traits_of(config).get("moe_prefix") == "mixer" else "mamba."
    bias = bool(config.get("mamba_proj_bias") or config.get("use_bias"))
    return [
        make.linear(name + "in_proj", "state", size + mixed + attention["num_heads"], hidden, "column", bias=bias),
        make.linear(name + "conv1d", "state", mixed, attention["conv_kernel"], "column", plain=True, bias=True),
        make.vector(name + "A", "state", attention["num_heads"], "column", dtype="float32"),
        make.vector(name + "D", "state", 2 * attention["num_heads"], "column"),
        make.vector(name + "norm", "norm", size, "column"),
        make.linear(name + "out_proj", "state", hidden, size, "row", bias=bias),
    ]

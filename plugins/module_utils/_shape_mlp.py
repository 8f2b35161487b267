# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer's feed-forward part is: dense, mixture of experts, or none. Private to the collection gpufleet.vllm.

`mlp_of_layer` gives the ``mlp`` part of one layer of the normal form (see ``_checkpoint``).
"""

from __future__ import annotations

from ._shape_config import per_layer, read, read_int
from ._shape_families import traits_of

PATTERN_MLP = {"-": "dense", "mlp": "dense", "E": "moe", "moe": "moe"}
"""In Nemotron-H's pattern a layer is either a mixer or a feed-forward part."""


def mlp_of_layer(config, layer):
    """The feed-forward part of one layer, as the normal form's ``layers[].mlp`` describes it."""
    pattern = config.get("hybrid_override_pattern") or config.get("layers_block_type")
    if config.get("model_type") == "nemotron_h" and pattern:
        kind = PATTERN_MLP.get(pattern[layer], "none")
    elif traits_of(config).get("norms") == 1 and config.get("model_type") in ("mamba", "mamba2", "falcon_mamba"):
        kind = "none"
    else:
        kind = "moe" if is_moe_layer(config, layer) else "dense"
    return {"dense": _dense, "moe": _moe, "none": lambda config, layer: {"kind": "none"}}[kind](config, layer)


def _dense(config, layer):
    block = per_layer(config, "block_configs", layer)
    if isinstance(block, dict):
        size = _block_intermediate_size(config, block.get("ffn") or {})
    elif read_int(config, "num_experts") and config.get("dense_intermediate_size"):
        size = int(config["dense_intermediate_size"])
    elif config.get("intermediate_size_mlp"):
        size = int(config["intermediate_size_mlp"])
    else:
        size = int(per_layer(config, "intermediate_size", layer) or 4 * read_int(config, "hidden_size"))
    if _is_double_wide(config, layer):
        size *= 2
    return {"kind": "dense", "intermediate_size": size} if size else {"kind": "none"}


def _is_double_wide(config, layer):
    """Gemma 4 widens the feed-forward part of layers that reuse another layer's cache."""
    shared = read_int(config, "num_kv_shared_layers")
    return (
        bool(config.get("use_double_wide_mlp") and shared) and layer >= read_int(config, "num_hidden_layers") - shared
    )


def _block_intermediate_size(config, ffn):
    """DeciLM: ``ffn_mult`` x 2/3 of hidden, up to the next multiple of 256 (``nemotron_nas.py``)."""
    if ffn.get("no_op") or ffn.get("replace_with_linear"):
        return 0
    if ffn.get("intermediate_size"):
        return int(ffn["intermediate_size"])
    size = int(2 * float(ffn.get("ffn_mult") or 0) * read_int(config, "hidden_size") / 3)
    return -(-size // 256) * 256


def _moe(config, layer):
    intermediate = int(per_layer(config, "moe_intermediate_size", layer) or read_int(config, "intermediate_size"))
    mlp = {
        "kind": "moe",
        "intermediate_size": intermediate,
        "num_experts": read_int(config, "num_experts"),
        "num_experts_per_tok": int(per_layer(config, "num_experts_per_tok", layer) or 1),
        "shared_intermediate_size": shared_intermediate_size(config, intermediate),
    }
    if config.get("model_type") == "gemma4_text":
        mlp["dense_intermediate_size"] = read_int(config, "intermediate_size")
    latent = config.get("moe_latent_size") or config.get("routed_expert_hidden_size")
    return dict(mlp, hidden_size=int(latent)) if latent else mlp


def shared_intermediate_size(config, intermediate):
    """Width of the experts that every token passes; 0 where there are none."""
    for name in (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
    ):
        if config.get(name):
            number = read_int(config, "num_shared_experts") if name == "moe_shared_expert_intermediate_size" else 1
            return int(config[name]) * max(1, number)
    if config.get("model_type") == "llama4_text":
        return intermediate
    return read_int(config, "num_shared_experts") * intermediate


def is_moe_layer(config, layer):
    """Whether the layer routes tokens to experts, by the rules of the families that have both kinds."""
    if read_int(config, "num_experts") < 2 or layer in (config.get("mlp_only_layers") or ()):
        return False
    types = config.get("mlp_layer_types")
    if isinstance(types, (list, tuple)) and layer < len(types):
        return types[layer] != "dense"
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, (list, tuple)):
        return bool(frequency[layer]) if layer < len(frequency) else True
    if _stated_moe_layers(config) is not None:
        return layer in _stated_moe_layers(config)
    if layer < max(read_int(config, "first_k_dense_replace"), read_int(config, "moe_layer_start_index")):
        return False
    return _by_step(config, layer, frequency)


def _stated_moe_layers(config):
    if config.get("moe_layers"):
        return set(config["moe_layers"])
    if config.get("moe_layers_enum"):
        return {int(item) for item in str(config["moe_layers_enum"]).split(",") if item.strip()}
    if config.get("interleave_moe_layer_step") and config.get("model_type") == "llama4_text":
        step = int(config["interleave_moe_layer_step"])
        return set(range(step - 1, read_int(config, "num_hidden_layers"), step))
    return None


def _by_step(config, layer, frequency):
    if config.get("expert_layer_period"):
        return layer % int(config["expert_layer_period"]) == int(config.get("expert_layer_offset") or 0)
    if config.get("moe_layer_interval"):
        return (layer + 1) % int(config["moe_layer_interval"]) == 0
    if frequency:
        return layer % int(frequency) == 0
    return (layer + 1) % int(read(config, "decoder_sparse_step", 1) or 1) == 0

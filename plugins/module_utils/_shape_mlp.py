# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each layer's feed-forward part is: dense, mixture of experts, or none. Private to the collection gpufleet.vllm.

`mlp_of_layer` gives the ``mlp`` part of one layer of the normal form (see ``_checkpoint``).
"""

from __future__ import annotations

from ._shape_config import per_layer, read, read_int


def mlp_of_layer(config, layer):
    """The feed-forward part of one layer, as the normal form's ``layers[].mlp`` describes it."""
    if not is_moe_layer(config, layer):
        return {"kind": "dense", "intermediate_size": int(per_layer(config, "intermediate_size", layer) or 0)}
    intermediate = int(read(config, "moe_intermediate_size") or read_int(config, "intermediate_size"))
    return {
        "kind": "moe",
        "intermediate_size": intermediate,
        "num_experts": read_int(config, "num_experts"),
        "num_experts_per_tok": read_int(config, "num_experts_per_tok"),
        "shared_intermediate_size": shared_intermediate_size(config, intermediate),
    }


def shared_intermediate_size(config, intermediate):
    """Width of the experts that every token passes; 0 where there are none."""
    stated = config.get("shared_expert_intermediate_size") or config.get("moe_shared_expert_intermediate_size")
    if stated:
        return int(stated)
    return read_int(config, "num_shared_experts") * intermediate


def is_moe_layer(config, layer):
    """Whether the layer routes tokens to experts, by the rules of the families that have both kinds."""
    if not read_int(config, "num_experts"):
        return False
    if layer < read_int(config, "first_k_dense_replace"):
        return False
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    step = config.get("decoder_sparse_step") or 1
    return (layer + 1) % int(step) == 0

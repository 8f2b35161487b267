# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes and parameters of a checkpoint's tensors by group. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import re

SAFETENSORS_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "U16": 2,
    "U32": 4,
    "U64": 8,
    "F4": 0.5,
    "F6_E2M3": 0.75,
    "F6_E3M2": 0.75,
}

GROUPS = (
    ("drafter", r"(^|\.)(mtp|eagle|medusa)"),
    (
        "vision",
        r"(^|\.)(vision\w*|visual|vit|vpm|resampler|image_newline|multi_modal_projector|mm_projector|embed_vision|"
        r"patch_embed\w*|vision_embed_tokens|mlp1|aligner)(\.|$)",
    ),
    ("audio", r"(^|\.)(audio\w*|speech\w*|apm|embed_audio)(\.|$)"),
    (
        "embedding",
        r"(^|\.)(embed_tokens\w*|wte|wpe|tok_embeddings|word_embeddings|embed_in|embeddings|embedding|embed)(\.|$)",
    ),
    ("head", r"(^|\.)(lm_head|embed_out|output_layer|score|classifier)(\.|$)|^(head|output)\."),
    ("shared_experts", r"shared_(mlp|experts?)(\.|$)"),
    ("experts", r"\.experts?(\.|_|$)"),
    ("router", r"\.(gate|router|shared_expert_gate)(\.|$)|e_score_correction_bias"),
    ("norm", r"(norm\w*|ln_\w+|layernorm\w*)(\.|$)"),
    ("state", r"\.(linear_attn|mamba|mixer|conv|short_conv|ssm)(\.|$)"),
    ("attention", r"\.(self_attn|attention|attn|self_attention|cross_attn|wq|wk|wv|wo)(\.|$)"),
    ("mlp", r"\.(mlp|feed_forward|ffn|fc1|fc2|w1|w2|w3)(\.|$)"),
)
"""The first expression that a tensor's name matches says its group."""

_COMPILED = [(group, re.compile(expression)) for group, expression in GROUPS]
_LAYER = re.compile(r"(^|\.)(layers|h|blocks)\.(\d+)\.")


def group_of(name, layers):
    """The group of a tensor, as the normal form names it; ``other`` where the name tells nothing.

    Args: layers: the model's layers; a tensor of a later layer belongs to multi-token prediction.
    """
    found = _LAYER.search(name)
    tower = re.search(r"(vision|visual|audio|speech)", name.split("layers")[0]) if found else None
    if found and not tower and layers and int(found.group(3)) >= layers:
        return "drafter"
    for group, expression in _COMPILED:
        if expression.search(name):
            return group
    return "other"


def sum_tensors(shards, layers, value_bytes):
    """Groups of a checkpoint's tensors.

    Args: shards: of ``_checkpoint_files``; layers: the model's; value_bytes: of a value when it is loaded, to which
    wider floating-point weights shrink (scales stay as they are).
    Returns: {group: {"bytes", "parameters", "loaded_bytes"}}.
    """
    groups = {}
    for shard in shards:
        for name, (dtype, shape) in shard.tensors.items():
            group = groups.setdefault(group_of(name, layers), {"bytes": 0, "parameters": 0, "loaded_bytes": 0})
            values = 1
            for dimension in shape:
                values *= dimension
            width = SAFETENSORS_BYTES.get(dtype, 2)
            wide = dtype in ("F64", "F32") and "scale" not in name
            group["bytes"] += int(values * width)
            group["parameters"] += values
            group["loaded_bytes"] += int(values * (min(width, value_bytes) if wide else width))
    return groups

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the planner needs of a checkpoint, read once from describe_config's normal form. Private to gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

STATEFUL = ("linear", "mamba", "gated_delta", "short_conv")


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer; sizes in elements before tensor parallelism."""

    count: int
    per_token: int
    intermediate_size: int


@dataclass(frozen=True)
class Dimensions:
    """Sizes in elements; intermediate_size is the widest dense MLP."""

    architecture: str
    model_type: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    num_attention_heads: int
    intermediate_size: int
    experts: Experts | None
    stateful: bool
    vision: Mapping[str, Any] | None
    quantization: Mapping[str, Any] | None
    dtype: str
    max_model_len: int
    layers: tuple[Mapping[str, Any], ...]

    @cached_property
    def divided_sizes(self) -> tuple[tuple[str, int], ...]:
        """What tensor parallelism divides, each size once: heads, key_value_heads, shared, dense and expert widths."""
        found: dict[tuple[str, int], None] = {("heads", self.num_attention_heads): None}
        for layer in self.layers:
            attention, mlp = layer.get("attention") or {}, layer.get("mlp") or {}
            width = "expert width" if mlp.get("kind") == "moe" else "MLP width"
            found["heads", int(attention.get("num_heads") or 0)] = None
            found["key-value heads", int(attention.get("num_kv_heads") or 0)] = None
            found["shared expert width", int(mlp.get("shared_intermediate_size") or 0)] = None
            found[width, int(mlp.get("intermediate_size") or 0)] = None
        return tuple(size for size in found if size[1])

    @property
    def quantization_method(self) -> str | None:
        return str(self.quantization["method"]) if self.quantization and self.quantization.get("method") else None


def dimensions(checkpoint: Mapping[str, Any]) -> Dimensions:
    """Read the normal form of describe_config() or describe_checkpoint()."""
    layers = tuple(checkpoint.get("layers") or ())
    mlps = [layer.get("mlp") or {} for layer in layers]
    return Dimensions(
        architecture=str(checkpoint.get("architecture") or (checkpoint.get("architectures") or [""])[0]),
        model_type=str(checkpoint.get("model_type") or ""),
        hidden_size=int(checkpoint.get("hidden_size") or 0),
        vocab_size=int(checkpoint.get("vocab_size") or 0),
        num_layers=int(checkpoint.get("num_hidden_layers") or sum(int(layer["count"]) for layer in layers)),
        num_attention_heads=int(checkpoint.get("num_attention_heads") or 0),
        intermediate_size=max((_dense_width(mlp) for mlp in mlps), default=0),
        experts=_experts(mlps),
        stateful=any((layer.get("attention") or {}).get("kind") in STATEFUL for layer in layers),
        vision=checkpoint.get("vision"),
        quantization=checkpoint.get("quantization"),
        dtype=str(checkpoint.get("dtype") or "bfloat16"),
        max_model_len=int(checkpoint.get("max_model_len") or 0),
        layers=layers,
    )


def _dense_width(mlp: Mapping[str, Any]) -> int:
    if mlp.get("kind") == "moe":
        return int(mlp.get("shared_intermediate_size") or 0)
    return int(mlp.get("intermediate_size") or 0)


def _experts(mlps: list[Mapping[str, Any]]) -> Experts | None:
    routed = [mlp for mlp in mlps if mlp.get("kind") == "moe"]
    if not routed:
        return None
    widest = max(routed, key=lambda mlp: int(mlp.get("intermediate_size") or 0))
    return Experts(
        count=int(widest.get("num_experts") or 0),
        per_token=int(widest.get("num_experts_per_tok") or 1),
        intermediate_size=int(widest.get("intermediate_size") or 0),
    )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checkpoint that the engine is given: config.json, and whether its shards are whole."""

from __future__ import annotations

import glob
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

_GIB = 1 << 30
_LARGEST_HEADER = 100_000_000


class Missing(Exception):
    """There is no config.json."""


class Damaged(Exception):
    """A safetensors file does not hold what its header says."""


@dataclass(frozen=True)
class Checkpoint:
    """What the memory of an engine depends on. weights_gib: of the whole model."""

    path: str
    architecture: str
    model_type: str
    dtype: str
    max_position_embeddings: int
    weights_gib: float
    shards: tuple[str, ...]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    latent_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int

    @property
    def embeds(self) -> bool:
        """Whether it is a model for embeddings by its architecture."""
        return self.architecture.endswith(("Model", "ForTextEncoding"))


def read(path: str, replaced: dict[str, Any]) -> Checkpoint:
    """Returns the checkpoint of a directory. replaced: values in place of those of config.json, and ``weights_gib``.

    Raises Missing where there is no config.json.
    """
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as stream:
            config = json.load(stream)
    except (OSError, ValueError) as error:
        raise Missing(path) from error
    shards = tuple(sorted(glob.glob(os.path.join(path, "*.safetensors"))))
    outer = {**config, **replaced}
    text = {**outer, **outer.get("text_config", {})}
    heads = int(text.get("num_attention_heads", 1))
    hidden = int(text.get("hidden_size", 64))
    return Checkpoint(
        path=path,
        architecture=(outer.get("architectures") or ["LlamaForCausalLM"])[0],
        model_type=str(outer.get("model_type", "llama")),
        dtype=str(text.get("dtype") or text.get("torch_dtype") or "bfloat16"),
        max_position_embeddings=int(text.get("max_position_embeddings", 2048)),
        weights_gib=float(replaced.get("weights_gib", sum(map(os.path.getsize, shards)) / _GIB)),
        shards=shards,
        layers=int(text.get("num_hidden_layers", 1)),
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        latent_dim=int(text.get("kv_lora_rank") or 0) + int(text.get("qk_rope_head_dim") or 0),
        hidden_size=hidden,
        intermediate_size=int(text.get("intermediate_size") or 4 * hidden),
        vocab_size=int(text.get("vocab_size", 32000)),
    )


def check_shard(path: str) -> None:
    """Reads the header of a safetensors file and compares it with the size of the file. Raises Damaged, or OSError."""
    size = os.path.getsize(path)
    with open(path, "rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LARGEST_HEADER + 1
        if length > min(_LARGEST_HEADER, size - 8):
            raise Damaged(path)
        try:
            tensors = json.loads(stream.read(length))
            end = max([tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"] or [0])
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(path) from error
    if 8 + length + end != size:
        raise Damaged(path)

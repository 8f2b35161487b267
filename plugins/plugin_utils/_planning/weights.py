# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of weights on each GPU, the figure of vLLM's line ``Model loading took``. Private to the collection gpufleet.vllm.

Counted as vLLM's modules allocate them (``vllm/model_executor/layers``): every tensor of the normal form is divided as
its ``split`` says and stored in the format of its quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .shape import ceil_div, dtype_bytes, layer_sequence, round_up, stage_slices

VOCABULARY_PADDING = 64
"""``DEFAULT_VOCAB_PADDING_SIZE`` of vllm/model_executor/layers/vocab_parallel_embedding.py."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes on one GPU of a pipeline stage: expected, and the interval it is in with high confidence."""

    value: int
    low: int
    high: int


@dataclass(frozen=True)
class Split:
    """How many GPUs share the weights of one stage."""

    tensor_parallel_size: int
    expert_parallel_size: int


def weights_per_gpu(
    checkpoint: dict[str, Any],
    release: Any,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    quantization: str | None = None,
    dtype: str | None = None,
    max_model_len: int | None = None,
) -> list[WeightBytes]:
    """Bytes of weights on a GPU of each pipeline stage.

    Args:
        checkpoint: the normal form of describe_config() or describe_checkpoint().
        release: vLLM's version, or an object that has it as ``version``.
        quantization: vLLM's pin of that name (``fp8`` quantises a 16-bit checkpoint at load).
        dtype: vLLM's pin of that name; None is ``auto``.
        max_model_len: vLLM's pin; some rotary tables are as long as it.
    Returns: one WeightBytes per pipeline stage.
    """
    experts = tensor_parallel_size * data_parallel_size if enable_expert_parallel else 1
    split = Split(tensor_parallel_size, experts)
    value_bytes = dtype_bytes(dtype or checkpoint["dtype"])
    layers = layer_sequence(checkpoint)
    stages = stage_slices(len(layers), pipeline_parallel_size)
    result = []
    for stage, indices in enumerate(stages):
        tensors = [tensor for index in indices for tensor in layers[index]["tensors"]]
        tensors += [t for t in checkpoint["outside"] if _on_stage(t, stage, len(stages))]
        total = sum(_tensor_bytes(tensor, split, value_bytes) for tensor in tensors)
        result.append(WeightBytes(total, round(total * 0.97), round(total * 1.03)))
    return result


def _on_stage(tensor: dict[str, Any], stage: int, stages: int) -> bool:
    where = tensor["stage"]
    first, last = stage == 0, stage == stages - 1
    return where == "all" or (first and where.startswith("first")) or (last and where.endswith("last"))


def _tensor_bytes(tensor: dict[str, Any], split: Split, value_bytes: int) -> int:
    rows, columns, copies = _local_shape(tensor, split)
    values = rows * columns + (rows if tensor.get("bias") else 0)
    return copies * values * value_bytes


def _local_shape(tensor: dict[str, Any], split: Split) -> tuple[int, int, int]:
    rows, columns, copies, size = tensor["out"], tensor["in"], tensor["copies"], split.tensor_parallel_size
    how = tensor["split"]
    if how.startswith("expert_") and split.expert_parallel_size > 1:
        return rows, columns, ceil_div(copies, split.expert_parallel_size)
    if how in ("column", "expert_column"):
        rows = ceil_div(rows, size)
    elif how in ("row", "expert_row"):
        columns = ceil_div(columns, size)
    elif how == "kv_heads":
        rows = rows // tensor["heads"] * max(1, tensor["heads"] // size)
    elif how == "vocabulary":
        rows = round_up(rows, VOCABULARY_PADDING) // size
    return rows, columns, copies

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of weights on each GPU, the figure of vLLM's line ``Model loading took``.

Private to the collection gpufleet.vllm. Counted as vLLM's modules allocate them (``vllm/model_executor/layers``): every
tensor of the normal form is divided as its ``split`` says, stored in the format of its quantisation, fused with its
neighbours where vLLM fuses them, and rounded as PyTorch's caching allocator does, because the line reports the
allocator's figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._shape_quantization import FP8_TENSOR, MXFP4, MXFP8, NVFP4, scheme
from ...module_utils._shape_size import matrix_bytes
from .shape import ceil_div, dtype_bytes, round_up, stage_slices, version_of

VOCABULARY_PADDING = 64
"""``DEFAULT_VOCAB_PADDING_SIZE`` of vllm/model_executor/layers/vocab_parallel_embedding.py."""

MULTIMODAL_ROTARY_FACTOR = 4
"""``MRotaryEmbedding`` makes a table of four times the positions; Qwen3-VL's and later text models not from 0.32 on."""
SINGLE_ROTARY_FROM = (0, 32, 0)
SINGLE_ROTARY_FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_next")

MIB = 2**20

LOAD_TIME_SCHEMES: dict[str, dict[str, Any]] = {
    "fp8": FP8_TENSOR,
    "fp8_per_tensor": FP8_TENSOR,
    "fp8_per_block": scheme("fp8_block", 8, "block", block=[128, 128]),
    "fp8_per_channel": scheme("fp8_channel", 8, "channel"),
    "ptpc_fp8": scheme("fp8_channel", 8, "channel"),
    "int8": scheme("int8_channel", 8, "channel"),
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "bitsandbytes": scheme("nf4", 4, "group", group_size=64, scale_bytes=4),
}
"""What ``--quantization`` makes of a 16-bit checkpoint while loading it (``quantization/online``, bitsandbytes)."""

LOAD_TIME_EXPERTS_ONLY = {"experts_int8": scheme("int8_channel", 8, "channel")}

KNOWN_UNCERTAINTY, TOWER_UNCERTAINTY, PACKED_UNCERTAINTY, UNKNOWN_UNCERTAINTY = 0.005, 0.01, 0.02, 0.08
"""Half widths of the interval: described families in 16 or 8 bit; those with a vision or audio tower; 4-bit weights,
whose kernels pad them by card; families that are not described. tests/bench/bench_weights.py holds them against
measured lines."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes on one GPU of a pipeline stage: expected, and the interval it is in with high confidence."""

    value: int
    low: int
    high: int


@dataclass(frozen=True)
class Loading:
    """Everything that decides what one GPU holds."""

    version: tuple[int, ...]
    tensor_parallel_size: int
    expert_parallel_size: int
    expert_shards: int
    value_bytes: int
    schemes: dict[str, dict[str, Any]]
    load_time: dict[str, Any] | None
    load_time_experts_only: bool
    expert_kernel: ExpertKernel
    corrections: dict[str, float]


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
    compute_capability: str | None = None,
    layer_partition: Sequence[int] = (),
) -> list[WeightBytes]:
    """Bytes of weights on a GPU of each pipeline stage.

    Args:
        checkpoint: the normal form of describe_config() or describe_checkpoint().
        release: vLLM's version, or an object that has it as ``version``.
        quantization: vLLM's pin of that name (``fp8`` quantises a 16-bit checkpoint at load).
        dtype: vLLM's pin of that name; None is ``auto``.
        compute_capability: of the card (``9.0``): 4-bit kernels pad by card. None: the largest padding.
        layer_partition: the layers on each stage, where the environment fixes them (VLLM_PP_LAYER_PARTITION).
    Returns: one WeightBytes per pipeline stage.
    Raises: ValueError for a dtype or a release that is unknown.
    """
    # Over all engines, experts are either handed out whole or cut (FusedMoEParallelConfig.make, flatten_tp_across_dp).
    devices = tensor_parallel_size * data_parallel_size
    loading = _loading(
        checkpoint,
        version_of(release),
        tensor_parallel_size,
        devices,
        enable_expert_parallel,
        quantization,
        dtype,
        compute_capability,
    )
    layers = {id(run["tensors"]): run["tensors"] for run in checkpoint["layers"]}
    size_of = {key: _layer_bytes(tensors, loading) for key, tensors in layers.items()}
    sizes = [size_of[id(run["tensors"])] for run in checkpoint["layers"] for _layer in range(run["count"])]
    stages = stage_slices(len(sizes), pipeline_parallel_size, layer_partition)
    rotary = _rotary_bytes(checkpoint, loading)
    uncertainty = _uncertainty(checkpoint, loading)
    result = []
    for stage, indices in enumerate(stages):
        outside = [t for t in checkpoint["outside"] if _on_stage(t, stage, len(stages))]
        total = sum(sizes[index] for index in indices) + _layer_bytes(outside, loading) + rotary
        result.append(WeightBytes(total, int(total * (1 - uncertainty)), int(total * (1 + uncertainty))))
    return result


def share_equal_layers(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint with one and the same list where the tensors of layers are equal: each is counted once then.

    Models that alternate kinds of layers have dozens of runs, of two or three kinds.
    """
    kinds: list[Any] = []
    layers = []
    for run in checkpoint["layers"]:
        same = next((tensors for tensors in kinds if tensors == run.get("tensors")), None)
        if same is None:
            kinds.append(run.get("tensors"))
        layers.append(run if same is None else {**run, "tensors": same})
    return {**checkpoint, "layers": layers}


def _loading(
    checkpoint: dict[str, Any],
    version: tuple[int, ...],
    tensor_parallel_size: int,
    devices: int,
    enable_expert_parallel: bool,
    quantization: str | None,
    dtype: str | None,
    compute_capability: str | None,
) -> Loading:
    stated = checkpoint["quantization"] or {}
    pin = None if stated else quantization
    return Loading(
        version=version,
        tensor_parallel_size=tensor_parallel_size,
        expert_parallel_size=devices if enable_expert_parallel else 1,
        expert_shards=1 if enable_expert_parallel else devices,
        value_bytes=dtype_bytes(dtype or checkpoint["dtype"]),
        schemes=stated.get("schemes") or {},
        load_time=LOAD_TIME_SCHEMES.get(pin or "") or LOAD_TIME_EXPERTS_ONLY.get(pin or ""),
        load_time_experts_only=(pin or "") in LOAD_TIME_EXPERTS_ONLY,
        expert_kernel=expert_kernel(compute_capability) if stated.get("method") in MXFP4_METHODS else ExpertKernel(),
        corrections=_corrections(checkpoint["weights"], pin),
    )


MXFP4_METHODS = ("mxfp4", "gpt_oss_mxfp4")


@dataclass(frozen=True)
class ExpertKernel:
    """What a kernel for MXFP4 experts does to them: multiples it rounds sizes up to, and copies of scales it keeps."""

    intermediate: int = 1
    hidden: int = 1
    keeps_scales: bool = False


MXFP4_KERNELS = {
    9: ExpertKernel(intermediate=64, keeps_scales=True),
    10: ExpertKernel(intermediate=256, hidden=256),
}
MXFP4_MARLIN = ExpertKernel(intermediate=128, hidden=256)
"""By major compute capability: Triton's kernels on Hopper, which keep the checkpoint's scales beside the rearranged
ones; TensorRT-LLM's on Blackwell; elsewhere Marlin (``mxfp4_round_up_hidden_size_and_intermediate_size`` and
``convert_to_mxfp4_moe_kernel_format`` in ``fused_moe/oracle/mxfp4.py``)."""


def expert_kernel(compute_capability: str | None) -> ExpertKernel:
    """The kernel that runs MXFP4 experts on a card; the one that pads most where the card is not known."""
    if not compute_capability:
        return MXFP4_MARLIN
    return MXFP4_KERNELS.get(int(float(compute_capability)), MXFP4_MARLIN)


CORRECTED_TOGETHER = {
    "attention": "layer",
    "mlp": "layer",
    "router": "layer",
    "state": "layer",
    "norm": "layer",
    "shared_experts": "layer",
    "other": "layer",
}
"""Groups whose names in a checkpoint do not always tell them apart."""


def _corrections(weights: dict[str, Any], pin: str | None) -> dict[str, float]:
    """What the checkpoint's files hold of each group against what its shape says, where they are known."""
    if weights["source"] != "safetensors" or pin:
        return {}
    found = _by_correction({name: group["loaded_bytes"] for name, group in weights["groups"].items()})
    counted = _by_correction(weights["counted"])
    ratios = {name: found[name] / counted[name] for name in counted if counted[name] and found.get(name)}
    return {group: ratios.get(CORRECTED_TOGETHER.get(group, group), 1.0) for group in weights["counted"]}


def _by_correction(sizes: dict[str, int]) -> dict[str, int]:
    together: dict[str, int] = {}
    for group, size in sizes.items():
        name = CORRECTED_TOGETHER.get(group, group)
        together[name] = together.get(name, 0) + size
    return together


def _uncertainty(checkpoint: dict[str, Any], loading: Loading) -> float:
    if not checkpoint["known"] and not loading.corrections:
        return UNKNOWN_UNCERTAINTY
    used = list(loading.schemes.values()) + ([loading.load_time] if loading.load_time else [])
    if any(entry["weight_bits"] < 8 for entry in used):
        return PACKED_UNCERTAINTY
    return TOWER_UNCERTAINTY if checkpoint["vision"] or checkpoint["audio"] else KNOWN_UNCERTAINTY


def _on_stage(tensor: dict[str, Any], stage: int, stages: int) -> bool:
    where = tensor["stage"]
    first, last = stage == 0, stage == stages - 1
    return where == "all" or (first and where.startswith("first")) or (last and where.endswith("last"))


def _layer_bytes(tensors: Iterable[dict[str, Any]], loading: Loading) -> int:
    """Bytes of tensors that are allocated together: those with the same ``fused`` name are one allocation."""
    fused: dict[str, int] = {}
    total = 0
    for tensor in tensors:
        size = round(_tensor_bytes(tensor, loading) * loading.corrections.get(tensor["group"], 1.0))
        if "fused" in tensor:
            key = f"{tensor['group']} {tensor['fused']}"
            fused[key] = fused.get(key, 0) + size
        elif tensor.get("apart"):
            total += tensor["copies"] * allocated(size // tensor["copies"])
        else:
            total += allocated(size)
    return total + sum(allocated(size) for size in fused.values())


def allocated(size: int) -> int:
    """What PyTorch's caching allocator accounts for a tensor of ``size`` bytes.

    Small ones are rounded to 512 B. From 10 MiB on a segment of the next 2 MiB is taken, and what is left over is given
    back only if it is more than 1 MiB (``c10/cuda/CUDACachingAllocator.cpp``: kRoundLarge, kSmallSize, should_split).
    """
    if size < 10 * MIB:
        return round_up(size, 512)
    rest = round_up(size, 2 * MIB) - size
    return size + rest if rest <= MIB else round_up(size, 512)


def _tensor_bytes(tensor: dict[str, Any], loading: Loading) -> int:
    rows, columns, copies = _local_shape(tensor, loading)
    value_bytes = dtype_bytes(tensor["dtype"]) if tensor.get("dtype") else loading.value_bytes
    stored = _scheme(tensor, loading)
    size = matrix_bytes(rows, columns, stored, value_bytes)
    rearranged = stored and tensor["group"] == "experts" and loading.expert_kernel.keeps_scales
    if rearranged:
        size += _rearranged_scale_bytes(rows, columns, stored or {})
    if tensor.get("bias"):
        size += rows * (4 if rearranged else value_bytes)
    if tensor.get("absorbed") and stored:
        # MLA multiplies with both halves of kv_b_proj in 16 bit (W_UK_T, W_UV): views of an unquantised matrix,
        # a copy beside a quantised one (process_weights_after_loading of MLAAttention).
        size += rows * columns * loading.value_bytes
    return copies * size


SWIZZLED_ROWS = 256
"""Rows that the scales of Triton's kernels on Hopper are padded to (``HopperMXScaleLayout`` with 8 warps)."""


def _rearranged_scale_bytes(rows: int, columns: int, stored: dict[str, Any]) -> int:
    return int(round_up(rows, SWIZZLED_ROWS) * ceil_div(columns, stored["group_size"]) * stored["scale_bytes"])


def _scheme(tensor: dict[str, Any], loading: Loading) -> dict[str, Any] | None:
    stated = loading.schemes.get(tensor.get("scheme", ""))
    if stated or not loading.load_time or tensor.get("plain") or tensor["group"] in ("embedding", "head"):
        return stated
    if loading.load_time_experts_only and tensor["group"] != "experts":
        return None
    whole_tower = tensor["group"] in ("vision", "audio") and tensor["split"] == "replicated"
    return None if whole_tower else loading.load_time


def _local_shape(tensor: dict[str, Any], loading: Loading) -> tuple[int, int, int]:
    """(rows, columns, copies) that one GPU holds."""
    rows, columns, copies, size = tensor["out"], tensor["in"], tensor["copies"], loading.tensor_parallel_size
    how = tensor["split"]
    if tensor.get("split_from") and loading.version < version_of(tensor["split_from"]):
        return rows, columns, copies
    if how.startswith("expert_"):
        return _local_expert_shape(tensor, loading)
    if how == "column":
        rows = ceil_div(rows, size)
    elif how == "row":
        columns = ceil_div(columns, size)
    elif how == "kv_heads":
        rows = rows // tensor["heads"] * max(1, tensor["heads"] // size)
    elif how == "vocabulary":
        rows = round_up(rows, VOCABULARY_PADDING) // size
    return rows, columns, copies


def _local_expert_shape(tensor: dict[str, Any], loading: Loading) -> tuple[int, int, int]:
    rows, columns, copies = tensor["out"], tensor["in"], tensor["copies"]
    size, copies = loading.expert_shards, ceil_div(copies, loading.expert_parallel_size)
    intermediate, hidden = loading.expert_kernel.intermediate, loading.expert_kernel.hidden
    if tensor["split"] == "expert_column":
        return 2 * round_up(ceil_div(rows // 2, size), intermediate), round_up(columns, hidden), copies
    return round_up(rows, hidden), round_up(ceil_div(columns, size), intermediate), copies


def _rotary_bytes(checkpoint: dict[str, Any], loading: Loading) -> int:
    single = loading.version >= SINGLE_ROTARY_FROM and checkpoint["model_type"] in SINGLE_ROTARY_FAMILIES
    total = 0
    for table in checkpoint["rotary"]:
        factor = MULTIMODAL_ROTARY_FACTOR if table["multimodal"] and not single else 1
        width = dtype_bytes(table["dtype"]) if table["dtype"] else loading.value_bytes
        total += allocated(factor * table["positions"] * table["dim"] * width)
    return total

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory that vLLM takes beside weights and KV pool: activation, non-torch, CUDA graphs, CUDA context.

Private to the collection gpufleet.vllm. All results are bytes on one GPU. The shape of each formula follows vLLM's
source (profile_run and _dummy_sampler_run of the model runners, fused_moe's workspaces, the compile pass that fuses
all-reduce); the coefficients are data (data/overhead.json, written by tools/calibrate), with their bands of releases.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .dimensions import Dimensions
from .estimate import GIB, Estimate, total

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}

MOE_CHUNK_TOKENS = 32 * 1024
"""vllm/envs.py, VLLM_FUSED_MOE_CHUNK_SIZE."""

MLA_WORKSPACE_TOKENS = 64 * 1024
MLA_BLOCK_SIZE = 16
"""vllm: MLACommonMetadataBuilder.determine_chunked_prefill_workspace_size."""

Version = tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """One start of the engine, as far as its overhead depends on it."""

    version: Version
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    quantization: str | None
    enforce_eager: bool
    generates: bool
    compute_capability: str | None
    v2_runner: bool | None = None
    max_capture_size: int | None = None
    max_model_len: int = 0
    multimodal: bool = True
    graph_estimate: bool | None = None
    enable_expert_parallel: bool = False


@functools.cache
def coefficients() -> dict[str, Any]:
    """The calibrated data, read once a process."""
    text = (Path(__file__).parent / "data" / "overhead.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@functools.cache
def parse_version(text: str) -> Version:
    """The numbers of a version, for comparison: "0.10.1.1" -> (0, 10, 1, 1)."""
    numbers = []
    for part in text.lstrip("v").split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def in_band(band: Mapping[str, Any], version: Version) -> bool:
    before = band.get("before")
    return parse_version(band["from"]) <= version and (before is None or version < parse_version(before))


def band_of(bands: Iterable[Mapping[str, Any]], version: Version, **wanted: object) -> Mapping[str, Any]:
    """The one band that holds the release; the last where none does (a release newer than the data)."""
    matching = [band for band in bands if all(band.get(key) == value for key, value in wanted.items())]
    return next((band for band in matching if in_band(band, version)), matching[-1])


def uses_v2_runner(shape: Dimensions, start: Start) -> bool:
    """Whether the release runs this model in the V2 model runner by default (vllm/config/vllm.py)."""
    if start.v2_runner is not None:
        return start.v2_runner
    band = next((band for band in coefficients()["v2_runner"] if in_band(band, start.version)), None)
    if band is None:
        return False
    if band.get("all"):
        return True
    if not start.generates or shape.stateful or (shape.vision and not band.get("multimodal", True)):
        return False
    quantized = bool(start.quantization or shape.quantization_method)
    listed = shape.architecture in band["architectures"] or (bool(band.get("dense")) and shape.experts is None)
    return listed and (band["quantized"] or not quantized)


def source_of(shape: Dimensions, start: Start) -> str:
    """calibrated within the releases, cards and runner that were measured thoroughly, extrapolated elsewhere."""
    band = coefficients()["calibrated"]
    runner = "v2" if uses_v2_runner(shape, start) else "v1"
    inside = (
        in_band(band, start.version)
        and start.compute_capability in band["compute_capabilities"]
        and runner == band["runner"]
        and start.data_parallel_size == 1
        and not start.enable_expert_parallel
    )
    return "calibrated" if inside else "extrapolated"


def activation(shape: Dimensions, start: Start, stage: int) -> Estimate:
    """The peak that the profile run adds to the weights: the larger of the sampler's and the forward pass's peak.

    Multimodal models add what the encoder leaves in its cache, experts the workspace that persists between layers.
    """
    data = coefficients()["activation"]
    sampler = _sampler(shape, start, stage)
    forward = _forward(shape, start)
    workspace = moe_workspace(shape, start)
    persists = start.version >= parse_version(data["moe_workspace_persists_from"])
    if not persists:
        forward, workspace = max(forward, workspace + _hidden(shape, start) * data["hidden_outputs"]), 0.0
    encoder = _encoder_forward(shape, start)
    doubt = encoder * data["encoder_forward_deviation"]
    peak = _larger(_larger(sampler, Estimate.exact(forward)), Estimate.around(encoder, doubt, doubt))
    peak = _larger(peak, _compilation(shape, start))
    fixed = workspace + _encoder_cache(shape, start) + data["constant_gib"] * GIB
    source = source_of(shape, start)
    deviation = data["deviation_gib"] * GIB + data["deviation_relative"] * (peak.value + fixed)
    if source == "extrapolated":
        deviation *= data["extrapolated_factor"]
    return total((peak, Estimate.around(fixed, deviation, deviation, source))).at_least(0.0)


def _compilation(shape: Dimensions, start: Start) -> Estimate:
    """What torch.compile takes at its peak: it compiles within the profile run where its cache is empty, as it is at
    the first start of a model, a release and a batch on a host. Later starts have more."""
    band = band_of(coefficients()["compilation"], start.version)
    if start.enforce_eager:
        return Estimate.exact(0.0)
    high = band["high_gib"]
    if source_of(shape, start) == "extrapolated":
        high = band.get("extrapolated_high_gib", high)
    return Estimate(band["value_gib"] * GIB, band["low_gib"] * GIB, high * GIB)


def _larger(left: Estimate, right: Estimate) -> Estimate:
    return Estimate(max(left.value, right.value), max(left.low, right.low), max(left.high, right.high), "calibrated")


def _dtype_bytes(start: Start) -> int:
    return DTYPE_BYTES.get(start.dtype, 2)


def _hidden(shape: Dimensions, start: Start) -> float:
    """One tensor of hidden states for a full batch."""
    return float(start.max_num_batched_tokens * shape.hidden_size * _dtype_bytes(start))


def _sampler(shape: Dimensions, start: Start, stage: int) -> Estimate:
    """Logits of every sequence over the whole vocabulary, in as many float32 buffers as the release's sampler holds."""
    data = coefficients()["activation"]
    hidden = _hidden(shape, start) * data["hidden_outputs"]
    if not start.generates or stage < start.pipeline_parallel_size - 1:
        return Estimate.exact(hidden)
    band = band_of(coefficients()["sampler"], start.version, runner="v2" if uses_v2_runner(shape, start) else "v1")
    sequences = min(start.max_num_seqs, start.max_num_batched_tokens)
    buffer = sequences * shape.vocab_size * 4.0
    # The model's own logits come in its dtype: half a buffer is in the coefficient, float32 logits take another half.
    wide = 0.5 if _dtype_bytes(start) == 4 else 0.0
    return Estimate(
        hidden + (band["logit_buffers"] + wide) * buffer,
        hidden + (band["low"] + wide) * buffer,
        hidden + (band["high"] + wide) * buffer,
    )


def _forward(shape: Dimensions, start: Start) -> float:
    """The widest layer: gate and up projection, their product, and the residual stream around them."""
    data = coefficients()["activation"]
    wide = shape.intermediate_size / start.tensor_parallel_size
    width = data["forward_intermediate"] * wide
    if (
        shape.quantization_method in data["quantized_activations"]
        and (shape.quantization or {}).get("weight_bits") == 8
    ):
        # Beside the 16-bit product stands its 8-bit copy, the input of the next layer.
        width += wide / _dtype_bytes(start)
    stream = data["forward_hidden"] + (data["pipeline_hidden"] if start.pipeline_parallel_size > 1 else 0.0)
    layer = start.max_num_batched_tokens * _dtype_bytes(start) * (width + stream * shape.hidden_size)
    return layer + _latent_attention(shape, start)


def _latent_attention(shape: Dimensions, start: Start) -> float:
    """MLA: the profile run makes the largest up-projection of a chunk of cached context (mla_attention.py)."""
    layers = [layer["attention"] for layer in shape.layers if (layer.get("attention") or {}).get("kind") == "mla"]
    if not layers:
        return 0.0
    pages = start.max_num_seqs * MLA_BLOCK_SIZE
    tokens = max(min(max(8 * start.max_model_len, 4 * pages), MLA_WORKSPACE_TOKENS), pages)
    widest = max(
        int(layer.get("num_heads") or 0) * (int(layer.get("qk_nope_head_dim") or 0) + int(layer.get("v_head_dim") or 0))
        for layer in layers
    )
    return float(tokens * widest / start.tensor_parallel_size * _dtype_bytes(start))


def moe_workspace(shape: Dimensions, start: Start) -> float:
    """The two workspaces of the fused experts (TritonExperts and MarlinExperts .workspace_shapes), for a full batch."""
    if shape.experts is None or not _has_workspace(shape, start):
        return 0.0
    devices = start.tensor_parallel_size * start.data_parallel_size
    inner = shape.experts.intermediate_size // (1 if start.enable_expert_parallel else devices)
    hidden = shape.hidden_size
    rows = _expert_tokens(start) * shape.experts.per_token * _dtype_bytes(start)
    if _is_marlin(shape, start):
        return float(rows * (max(2 * inner, hidden) + inner))
    return float(rows * (max(inner, hidden) + max(2 * inner, hidden)))


def _expert_tokens(start: Start) -> int:
    """Tokens that the experts of a GPU see at once: those of all engines, in chunks (VLLM_FUSED_MOE_CHUNK_SIZE)."""
    tokens = start.max_num_batched_tokens
    return min(tokens * start.data_parallel_size, max(tokens, MOE_CHUNK_TOKENS))


def _has_workspace(shape: Dimensions, start: Start) -> bool:
    """Not where the experts run in the kernels of triton_kernels (gpt-oss on Hopper and Blackwell)."""
    data = coefficients()["activation"]
    method = start.quantization or shape.quantization_method
    newest = (None, *data["moe_without_workspace_capabilities"])
    return method not in data["moe_without_workspace"] or start.compute_capability not in newest


def _is_marlin(shape: Dimensions, start: Start) -> bool:
    """4-bit experts run in Marlin's kernel, 8-bit ones on cards that lack a better one."""
    method, bits = start.quantization or shape.quantization_method, (shape.quantization or {}).get("weight_bits")
    if method is None:
        return False
    four_bits = bits == 4 and method not in ("bitsandbytes", "gguf")
    eight_bits = bits == 8 or method == "fp8"
    return four_bits or (
        eight_bits and start.compute_capability in coefficients()["activation"]["moe_fp8_by_marlin_capabilities"]
    )


def _encoder_tokens(shape: Dimensions, start: Start) -> int:
    """Tokens of the images that are profiled: a batch, or one item of the largest size where that is more
    (vllm/multimodal/encoder_budget.py)."""
    if not shape.vision or not start.multimodal:
        return 0
    item = coefficients()["encoder"]["item_tokens"].get(shape.model_type, {"image": 0, "video": 0})
    image, video = int(item["image"]), int(item["video"])
    if start.max_model_len:
        # A video is cut to whole frames of that length; the largest image is profiled whatever the length
        # (get_mm_max_tokens_per_item): a public start with 8,192 tokens profiled an image of 16,384.
        video = min(video, start.max_model_len // image * image if image else start.max_model_len)
    return max(start.max_num_batched_tokens, image, video)


def _encoder_cache(shape: Dimensions, start: Start) -> float:
    """What the profiled images leave: their embeddings in the encoder cache, and their pixels."""
    tokens = _encoder_tokens(shape, start)
    pixels = coefficients()["encoder"]["pixel_bytes"]
    embeddings = coefficients()["activation"]["multimodal_hidden"] * shape.hidden_size * _dtype_bytes(start)
    return float(tokens * (embeddings + pixels.get(shape.model_type, pixels["default"])))


def _encoder_forward(shape: Dimensions, start: Start) -> float:
    """The vision tower's own peak; it counts where one item is much larger than a batch.

    The feed-forward part and the heads are divided among the GPUs, the residual stream is not.
    """
    tokens = _encoder_tokens(shape, start)
    if tokens <= start.max_num_batched_tokens:
        return 0.0
    width = int((shape.vision or {}).get("hidden_size") or 0)
    band = band_of(coefficients()["encoder"]["forward"], start.version)
    elements = (band["whole_hidden"] + band["divided_hidden"] / start.tensor_parallel_size) * width
    patches = tokens * coefficients()["encoder"]["patches_per_token"]
    return float(patches * _dtype_bytes(start) * elements)


def non_torch(shape: Dimensions, start: Start, stage: int) -> Estimate:
    """What the driver and the communication libraries take between vLLM's first look at the card and the profile.

    Most of what one GPU takes belongs to the output head and the sampler: stages before the last have less.
    """
    band = band_of(coefficients()["non_torch"], start.version)
    source = source_of(shape, start)
    if source == "calibrated":
        value = band["value_gib"]
    else:
        # Without torch.compile fewer kernels are loaded before the profile ends.
        value = band["extrapolated_eager_gib" if start.enforce_eager else "extrapolated_gib"]
    if stage < start.pipeline_parallel_size - 1:
        value = band["before_last_gib"]
    deviation = coefficients()["non_torch_deviation"][source]
    base = _around_gib(value, deviation["below_gib"], deviation["above_gib"], source)
    return total((base, *_communication(start))).at_least(0.0)


def _communication(start: Start) -> list[Estimate]:
    data = coefficients()["non_torch_parallel"]
    terms = []
    if start.tensor_parallel_size > 1:
        terms.append(_tensor_communication(start, data))
    if start.pipeline_parallel_size > 1:
        deviation = data["pipeline_deviation_gib"]
        terms.append(_around_gib(data["pipeline_gib"], deviation, deviation))
    return terms


def _tensor_communication(start: Start, data: Mapping[str, Any]) -> Estimate:
    if fuses_all_reduce(start):
        value, deviation = _by_size(data["fusion_gib"], start.tensor_parallel_size), data["fusion_deviation_gib"]
        return _around_gib(value, deviation, deviation)
    nccl = data["nccl_counted"]
    if start.version < parse_version(nccl["before"]) and start.compute_capability in nccl["compute_capabilities"]:
        return _around_gib(nccl["value_gib"], nccl["below_gib"], nccl["above_gib"], "extrapolated")
    band = band_of(data["tensor"], start.version)
    value = _by_size(band["gib"], start.tensor_parallel_size)
    return _around_gib(value, max(value, band["below_gib"]), band["above_gib"])


def _by_size(sizes: Mapping[str, float], size: int) -> float:
    """The value of a tensor parallel size, or of the largest that was measured."""
    return float(sizes.get(str(size), max(sizes.values())))


def _around_gib(value: float, below: float, above: float, source: str = "calibrated") -> Estimate:
    return Estimate.around(value * GIB, below * GIB, above * GIB, source)


def fuses_all_reduce(start: Start) -> bool:
    """FlashInfer's fused all-reduce, on by default (vllm/config/vllm.py, enable_allreduce_rms_fusion)."""
    data = coefficients()["non_torch_parallel"]
    return (
        start.version >= parse_version(data["fusion_from"])
        and start.compute_capability in data["fusion_capabilities"]
        and start.tensor_parallel_size > 1
        and start.pipeline_parallel_size == 1
        and start.data_parallel_size == 1
        and not start.enforce_eager
    )


def captured_graphs(start: Start) -> int:
    """How many graphs vLLM captures: mixed batches to twice max_num_seqs, decodes to max_num_seqs, neither beyond the
    release's largest size for the card and the batch (vllm/config/vllm.py, _set_cudagraph_sizes)."""
    largest = start.max_capture_size or min(2 * start.max_num_seqs, _largest_graph(start))
    largest = min(largest, start.max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    mixed = sum(size <= largest for size in sizes)
    return mixed + sum(size <= min(largest, start.max_num_seqs) for size in sizes)


def _largest_graph(start: Start) -> int:
    bands = coefficients()["cuda_graphs"]["largest"]
    wanted = (
        band
        for band in bands
        if in_band(band, start.version) and start.compute_capability in band["compute_capabilities"]
    )
    return int(next(wanted, {"size": coefficients()["cuda_graphs"]["largest_size"]})["size"])


def cuda_graphs(shape: Dimensions, start: Start) -> Estimate:
    """The memory of the captured CUDA graphs."""
    if start.enforce_eager:
        return Estimate.exact(0.0)
    data = coefficients()["cuda_graphs"]
    experts = data["moe_gib"] if shape.experts else 0.0
    layers = shape.num_layers / start.pipeline_parallel_size
    full = data["base_gib"] + data["layer_gib"] * layers + experts
    share = data["estimate_factor"] * captured_graphs(start) / data["graphs_of_calibration"]
    value = (data["first_graph_gib"] + full * share) * GIB
    above = value * data["estimate_above_relative"] + data["estimate_above_gib"] * GIB
    return Estimate.around(value, value * data["estimate_below_relative"], above, source_of(shape, start))


def graphs_leave_pool(shape: Dimensions, start: Start) -> bool:
    """Whether the release takes its estimate of the graphs' memory off the KV pool, rather than out of the margin."""
    data = coefficients()["cuda_graphs"]
    if start.enforce_eager or start.graph_estimate is False:
        return False
    if uses_v2_runner(shape, start):
        return start.version >= parse_version(data["v2_runner_estimates_from"])
    if start.graph_estimate:
        return start.version >= (0, 17)
    return start.version >= parse_version(data["taken_from_pool_from"])


def cuda_context(start: Start) -> Estimate:
    """What a process holds before vLLM's first look at the card: CUDA's context, NCCL's buffers with several GPUs."""
    data = coefficients()["context"]
    several = data["parallel_gib"] if start.tensor_parallel_size * start.pipeline_parallel_size > 1 else 0.0
    return Estimate(
        (data["value_gib"] + several) * GIB, data["low_gib"] * GIB, (data["high_gib"] + several) * GIB, "calibrated"
    )

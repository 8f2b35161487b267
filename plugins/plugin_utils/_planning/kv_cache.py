# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV cache as vLLM lays it out: groups, pages, blocks, tokens, concurrency.

Private to the collection gpufleet.vllm. Follows ``vllm/v1/core/kv_cache_utils.py``, ``vllm/v1/kv_cache_interface.py``
and the block-size rules of ``vllm/platforms/interface.py`` (earlier ``vllm/model_executor/models/config.py``), release
by release: what changed when is in `RULE_CHANGES`. Judged against vLLM itself by ``tests/integration/kv_judge``.

How vLLM thinks: each layer has a cache of one kind and a page (bytes per block). Layers of one kind share a block
table: a group. Groups draw blocks from one pool, so their blocks must have one size: pages are made equal, and groups
get the same number of layers. A request takes blocks from every group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from .shape import ceil_div, dtype_bytes, layer_sequence, stage_slices, version_of

DEFAULT_BLOCK_SIZE = 16
MLA_BLOCK_SIZE = 64
"""Kernels for latent attention take blocks of 64 tokens (CUTLASS 128); the platform raises the default of 16 to it."""

KV_DTYPE_BYTES = {
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "fp8_ds_mla": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "bfloat16": 2.0,
    "float16": 2.0,
}
"""Bytes per value by ``--kv-cache-dtype``; nvfp4 has one byte of scale for 16 values."""


def is_described(kv_cache_dtype: str) -> bool:
    """Whether the bytes of that cache are known; releases take more kinds than were looked at."""
    return kv_cache_dtype == "auto" or kv_cache_dtype in KV_DTYPE_BYTES


SPARSE_MLA_FP8_BYTES = 656
"""A token's latent vector in the fp8_ds_mla format of sparse attention: 512 B, 16 B of scales, 128 B of rotary part."""

INDEXER_SCALE_BLOCK = 128
"""The indexer's keys are 8-bit with a float32 scale for 128 values (``DeepseekV32IndexerCache``)."""


@dataclass(frozen=True)
class Rules:
    """What differs between releases.

    group_aware_tokens: the logged tokens are concurrency x max_model_len, earlier blocks // groups x block size.
    padding_threshold: groups take the larger layer count where it is less than this times the smaller one.
    counts_batches_in_flight: windows reserve for every batch under way, not for one.
    hybrid: layers with a window free what leaves it; earlier they were kept like full attention.
    chunked_hybrid: so do layers with chunked attention.
    prefix_caches_state: prefix caching is on by default for models with a state, which then keep more states.
    checkpoints_state: Mamba layers keep a state per block then (mode ``all``), not two (``align``).
    state_block_alignment_mla: multiple of the attention block of hybrid models with latent attention.
    separate_value_width: values may be narrower than keys.
    checkpoint_kv_dtype: ``auto`` follows the checkpoint's KV-cache scheme.
    prefill_checkpoints: mixers that keep one state more with prefix caching, for a prompt that is being read.
    """

    group_aware_tokens: bool = False
    padding_threshold: float = 1.0
    counts_batches_in_flight: bool = False
    hybrid: bool = False
    chunked_hybrid: bool = False
    prefix_caches_state: bool = False
    checkpoints_state: bool = False
    state_block_alignment_mla: int = 64
    separate_value_width: bool = False
    checkpoint_kv_dtype: bool = False
    prefill_checkpoints: tuple[str, ...] = ()


RULE_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("0.9.1", {"hybrid": True}),
    ("0.12.0", {"padding_threshold": 1.25}),
    ("0.14.0", {"checkpoint_kv_dtype": True, "chunked_hybrid": True, "separate_value_width": True}),
    ("0.18.0", {"padding_threshold": 1.5}),
    ("0.20.2", {"group_aware_tokens": True}),
    ("0.26.0", {"counts_batches_in_flight": True, "prefix_caches_state": True, "checkpoints_state": True}),
    ("0.27.0", {"state_block_alignment_mla": 128}),
    ("0.28.0", {"checkpoints_state": False}),
    ("0.29.0", {"prefill_checkpoints": ("kda",)}),
    ("0.32.0", {"prefill_checkpoints": ("kda", "mamba2")}),
    ("0.33.0", {"prefill_checkpoints": ("kda", "mamba2", "gated_delta_net")}),
)
"""First release of each change, read from the wheels 0.9.2 to 0.33.0; between two wheels the later one counts."""

CHECKPOINTING_STATES = ("mamba1", "mamba2")
"""Mixers whose kernels can keep a state per block (``SupportsMambaPrefixCaching``)."""


def rules_of(release: Any) -> Rules:
    """The rules of a release."""
    version, rules = version_of(release), Rules()
    for first, changes in RULE_CHANGES:
        if version >= version_of(first):
            rules = replace(rules, **changes)
    return rules


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps. ``page_bytes`` per block of ``block_size`` tokens on one GPU.

    kind: ``full``, ``sliding``, ``chunked`` or ``state``; window in tokens; states: how many of a request are kept.
    """

    kind: str
    block_size: int
    page_bytes: int
    window: int | None = None
    states: int = 0

    @property
    def bucket(self) -> tuple[Any, ...]:
        """Layers with an equal bucket need the same number of tokens, so they may share a block table."""
        return (self.kind, self.block_size, self.window, self.states)


@dataclass(frozen=True)
class Group:
    """Layers that share one block table.

    cache: of one of its layers; layers: how many each pipeline stage has; block_bytes: their pages together, by stage.
    """

    cache: LayerCache
    layers: tuple[int, ...]
    block_bytes: tuple[int, ...]


@dataclass(frozen=True)
class KVCacheLayout:
    """Per GPU. Pools are bytes: one figure, or one per pipeline stage (the least number of blocks counts).

    block_bytes: bytes of one block of the pool on each pipeline stage; block_size: tokens of a block of attention with
    the largest page.
    """

    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    block_size: int
    max_model_len: int
    tokens_in_flight: int
    decode_context_parallel_size: int
    group_aware_tokens: bool

    @property
    def bytes_per_token(self) -> float:
        """Bytes a token takes on the fullest GPU, averaged over a request of max_model_len tokens."""
        if not self.groups:
            return 0.0
        if len(self.groups) == 1 and self.groups[0].cache.kind == "full":
            return max(self.block_bytes) / self.block_size / self.decode_context_parallel_size
        return self.blocks_per_request() * max(self.block_bytes) / self.max_model_len

    def blocks(self, pool_bytes: int | Sequence[int]) -> int:
        """Blocks that a pool holds."""
        pools = [pool_bytes] * len(self.block_bytes) if isinstance(pool_bytes, int) else list(pool_bytes)
        held = [pool // size for pool, size in zip(pools, self.block_bytes, strict=True) if size]
        return max(0, min(held, default=0))

    def blocks_per_request(self, context: int | None = None) -> int:
        """Blocks that one request of ``context`` tokens (max_model_len) takes from the pool."""
        length = self.max_model_len if context is None else min(context, self.max_model_len)
        return sum(self._blocks_of_group(group.cache, length) for group in self.groups)

    def _blocks_of_group(self, cache: LayerCache, length: int) -> int:
        if cache.kind == "state":
            return cache.states or ceil_div(length, cache.block_size)
        if cache.kind == "sliding":
            held = min((cache.window or 0) - 1 + self.tokens_in_flight, length)
            # One more, because a window need not begin where a block does.
            return ceil_div(held, cache.block_size) + 1
        if cache.kind == "chunked":
            return ceil_div(min((cache.window or 0) + self.tokens_in_flight, length), cache.block_size)
        return ceil_div(ceil_div(length, self.decode_context_parallel_size), cache.block_size)

    def max_concurrency(self, pool_bytes: int | Sequence[int]) -> float:
        """vLLM's ``Maximum concurrency for N tokens per request``; infinite where the model keeps nothing."""
        needed = self.blocks_per_request()
        return self.blocks(pool_bytes) / needed if needed else float("inf")

    def tokens(self, pool_bytes: int | Sequence[int]) -> int:
        """vLLM's ``GPU KV cache size: N tokens``, as the release counts it."""
        if not self.groups:
            return 0
        if self.group_aware_tokens:
            return int(self.max_concurrency(pool_bytes) * self.max_model_len)
        smallest = min(group.cache.block_size for group in self.groups)
        return self.blocks(pool_bytes) // len(self.groups) * smallest * self.decode_context_parallel_size

    def required_bytes(self, sequences: int, context: int | None = None) -> int:
        """Pool that ``sequences`` requests of ``context`` tokens (max_model_len) need on the fullest GPU.

        One block more than they hold: vLLM's block pool never hands out block 0.
        """
        if not self.groups:
            return 0
        return (sequences * self.blocks_per_request(context) + 1) * max(self.block_bytes)

    def required_bytes_by_stage(self, sequences: int, context: int | None = None) -> list[int]:
        """Like `required_bytes`, for each pipeline stage."""
        blocks = sequences * self.blocks_per_request(context) + 1
        return [blocks * size for size in self.block_bytes]


@dataclass(frozen=True)
class CacheOptions:
    """What decides the pages of one GPU."""

    tensor_parallel_size: int
    key_bytes: float
    model_bytes: int
    block_size: int
    sparse_mla_bytes: int | None
    speculative_tokens: int
    prefix_caching: bool
    max_model_len: int
    rules: Rules
    state_bytes: int | None = None


def kv_cache_layout(
    checkpoint: dict[str, Any],
    release: Any,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    kv_cache_dtype: str | None = "auto",
    block_size: int | None = None,
    max_model_len: int | None = None,
    max_num_batched_tokens: int | None = None,
    dtype: str | None = None,
    decode_context_parallel_size: int = 1,
    enable_prefix_caching: bool | None = None,
    disable_hybrid_kv_cache_manager: bool = False,
    num_speculative_tokens: int = 0,
    async_scheduling: bool = True,
    mamba_ssm_cache_dtype: str | None = None,
    layer_partition: Sequence[int] = (),
) -> KVCacheLayout:
    """The layout of a checkpoint's KV cache on each GPU.

    Args:
        checkpoint: the normal form of describe_config() or describe_checkpoint().
        release: vLLM's version, or an object that has it as ``version``.
        kv_cache_dtype, block_size, max_model_len, max_num_batched_tokens, dtype, decode_context_parallel_size,
        enable_prefix_caching, disable_hybrid_kv_cache_manager, async_scheduling, mamba_ssm_cache_dtype: vLLM's
        arguments of these names; None: vLLM's default (2048 for max_num_batched_tokens, which counts only for windows).
        num_speculative_tokens: of the speculative configuration; states are kept for each of them.
        layer_partition: the layers on each stage, where the environment fixes them (VLLM_PP_LAYER_PARTITION).
    Raises: ValueError for a dtype or a release that is unknown.
    """
    rules = rules_of(release)
    if disable_hybrid_kv_cache_manager:
        rules = replace(rules, hybrid=False)
    options = _options(
        checkpoint,
        rules,
        tensor_parallel_size,
        kv_cache_dtype,
        block_size,
        max_model_len,
        dtype,
        enable_prefix_caching,
        num_speculative_tokens,
    )
    if mamba_ssm_cache_dtype not in (None, "auto"):
        options = replace(options, state_bytes=dtype_bytes(str(mamba_ssm_cache_dtype)))
    layers = layer_sequence(checkpoint)
    options = _aligned_to_states(layers, options)
    stages = stage_slices(len(layers), pipeline_parallel_size, layer_partition)
    placed = [
        (stage, cache)
        for stage, indices in enumerate(stages)
        for index in indices
        for cache in layer_caches(layers[index], options)
    ]
    groups = _groups(placed, len(stages), rules)
    batches = pipeline_parallel_size + (1 if async_scheduling else 0) if rules.counts_batches_in_flight else 1
    return KVCacheLayout(
        groups=groups,
        block_bytes=tuple(max((g.block_bytes[stage] for g in groups), default=0) for stage in range(len(stages))),
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        tokens_in_flight=batches * (max_num_batched_tokens or 2048),
        decode_context_parallel_size=decode_context_parallel_size,
        group_aware_tokens=rules.group_aware_tokens,
    )


def _options(
    checkpoint: dict[str, Any],
    rules: Rules,
    tensor_parallel_size: int,
    kv_cache_dtype: str | None,
    block_size: int | None,
    max_model_len: int | None,
    dtype: str | None,
    enable_prefix_caching: bool | None,
    speculative_tokens: int,
) -> CacheOptions:
    stated = (checkpoint["quantization"] or {}).get("kv_cache_dtype") if rules.checkpoint_kv_dtype else None
    chosen = kv_cache_dtype if kv_cache_dtype not in (None, "auto") else stated
    attentions = [run["attention"] for run in checkpoint["layers"]]
    sparse = any(attention["kind"] == "mla" and attention.get("indexer") for attention in attentions)
    latent = any(attention["kind"] == "mla" for attention in attentions)
    model_bytes = dtype_bytes(dtype or checkpoint["dtype"])
    return CacheOptions(
        tensor_parallel_size=tensor_parallel_size,
        key_bytes=_kv_bytes(chosen, model_bytes),
        model_bytes=model_bytes,
        block_size=block_size or (MLA_BLOCK_SIZE if latent else DEFAULT_BLOCK_SIZE),
        sparse_mla_bytes=SPARSE_MLA_FP8_BYTES if sparse and str(chosen).startswith("fp8") else None,
        speculative_tokens=speculative_tokens,
        prefix_caching=rules.prefix_caches_state if enable_prefix_caching is None else enable_prefix_caching,
        max_model_len=max_model_len or checkpoint["max_model_len"],
        rules=rules,
    )


def _kv_bytes(kv_cache_dtype: str | None, model_bytes: int) -> float:
    if kv_cache_dtype is None:
        return float(model_bytes)
    if kv_cache_dtype not in KV_DTYPE_BYTES:
        raise ValueError(
            f"kv_cache_dtype {kv_cache_dtype!r} is not described here; "
            f"known are auto, {', '.join(sorted(KV_DTYPE_BYTES))}."
        )
    return KV_DTYPE_BYTES[kv_cache_dtype]


def _aligned_to_states(layers: list[dict[str, Any]], options: CacheOptions) -> CacheOptions:
    """In hybrid models the attention block grows until its page holds a state ("Setting attention block size to")."""
    states = [_state_bytes(attention, options) for attention in _attentions(layers) if _keeps_state(attention)]
    per_token = [_bytes_per_token(attention, options) for attention in _attentions(layers) if _keeps_tokens(attention)]
    if not states or not per_token:
        return options
    latent = any(attention["kind"] == "mla" for attention in _attentions(layers))
    alignment = max(options.block_size, options.rules.state_block_alignment_mla if latent else DEFAULT_BLOCK_SIZE)
    chunk = _state_chunk(layers, options)
    if chunk:
        alignment = lcm(chunk, alignment)
    needed = ceil_div(max(states), alignment * max(1, int(max(per_token)))) * alignment
    return replace(options, block_size=max(options.block_size, needed))


STATE_CHUNK = 256
"""Tokens of a chunk of the Mamba kernels where the model does not say."""


def _state_chunk(layers: list[dict[str, Any]], options: CacheOptions) -> int | None:
    """The kernels' chunk, a multiple of which is kept as a state with mode ``all``."""
    mixers = [attention for attention in _attentions(layers) if _keeps_state(attention)]
    if _state_mode(mixers[0], options) != "all":
        return None
    return int(mixers[0].get("chunk_size") or STATE_CHUNK)


def _attentions(layers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for layer in layers:
        found.append(layer["attention"])
        if layer["attention"].get("beside"):
            found.append(layer["attention"]["beside"])
    return found


def _keeps_state(attention: dict[str, Any]) -> bool:
    return attention["kind"] in ("linear", "mamba")


def _keeps_tokens(attention: dict[str, Any]) -> bool:
    quiet = attention.get("shares_kv") or attention.get("encoder_only")
    return attention["kind"] in ("full", "sliding", "chunked", "mla") and not quiet


def layer_caches(layer: dict[str, Any], options: CacheOptions) -> list[LayerCache]:
    """The caches of one layer: none, one, or more where a mixer or an indexer is beside attention."""
    caches = []
    for attention in _attentions([layer]):
        if _keeps_state(attention):
            caches.append(_state_cache(attention, options))
        elif _keeps_tokens(attention):
            caches.append(_token_cache(attention, options))
            if attention.get("indexer"):
                caches.append(_index_cache(attention, options))
    return caches


def _token_cache(attention: dict[str, Any], options: CacheOptions) -> LayerCache:
    page = int(options.block_size * _bytes_per_token(attention, options))
    kind, window = attention["kind"], attention.get("window")
    if kind == "sliding" and options.rules.hybrid:
        return LayerCache("sliding", options.block_size, page, window)
    if kind == "chunked" and options.rules.hybrid and options.rules.chunked_hybrid:
        return LayerCache("chunked", options.block_size, page, window)
    return LayerCache("full", options.block_size, page)


def _bytes_per_token(attention: dict[str, Any], options: CacheOptions) -> float:
    """Keys and values of one token in one layer, on one GPU; KV heads are repeated where there are fewer than GPUs."""
    if attention["kind"] == "mla":
        if options.sparse_mla_bytes:
            return options.sparse_mla_bytes
        return (attention["kv_lora_rank"] + attention["qk_rope_head_dim"]) * options.key_bytes
    heads = max(1, attention["num_kv_heads"] // options.tensor_parallel_size)
    values = attention["head_dim_v"] if options.rules.separate_value_width else attention["head_dim"]
    return heads * (attention["head_dim"] + values) * options.key_bytes


def _index_cache(attention: dict[str, Any], options: CacheOptions) -> LayerCache:
    """Keys of a sparse-attention indexer: one head on every GPU, 8-bit with scales beside latent attention."""
    dim = attention["indexer"]["head_dim"]
    width = dim + dim // INDEXER_SCALE_BLOCK * 4 if attention["kind"] == "mla" else dim * options.model_bytes
    return LayerCache("full", options.block_size, options.block_size * width)


def _state_cache(attention: dict[str, Any], options: CacheOptions) -> LayerCache:
    page = _state_bytes(attention, options)
    mode = _state_mode(attention, options)
    if mode == "all":
        return LayerCache("state", options.block_size, page)
    if mode == "none":
        return LayerCache("state", options.max_model_len, page, states=1 + options.speculative_tokens)
    reading = 1 if attention["state"] in options.rules.prefill_checkpoints else 0
    return LayerCache("state", options.block_size, page, states=2 + reading + options.speculative_tokens)


def _state_mode(attention: dict[str, Any], options: CacheOptions) -> str:
    """``mamba_cache_mode``: ``none``, ``align`` (the last block's state and the running one) or ``all``."""
    if not options.prefix_caching:
        return "none"
    checkpoints = options.rules.checkpoints_state and attention["state"] in CHECKPOINTING_STATES
    return "all" if checkpoints else "align"


def _state_bytes(attention: dict[str, Any], options: CacheOptions) -> int:
    convolution, recurrent = STATE_SIZES[attention["state"]](attention, options)
    stated = dtype_bytes(attention["dtype"]) if attention.get("dtype") else options.model_bytes
    return convolution * options.model_bytes + recurrent * (options.state_bytes or stated)


def _gated_delta_net_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    size = options.tensor_parallel_size
    keys = attention["num_key_heads"] * attention["key_head_dim"]
    values = attention["num_value_heads"] * attention["value_head_dim"]
    kept = attention["conv_kernel"] - 1 + options.speculative_tokens
    heads = ceil_div(attention["num_value_heads"], size)
    return kept * (2 * keys + values) // size, heads * attention["key_head_dim"] * attention["value_head_dim"]


def _kda_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    heads, dim = ceil_div(attention["num_heads"], options.tensor_parallel_size), attention["head_dim"]
    return 3 * heads * dim * (attention["conv_kernel"] - 1 + options.speculative_tokens), heads * dim * dim


def _lightning_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    heads = ceil_div(attention["num_heads"], options.tensor_parallel_size)
    return 0, heads * attention["head_dim"] ** 2


def _short_conv_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    return attention["conv_dim"] // options.tensor_parallel_size * (attention["conv_kernel"] - 1), 0


def _mamba1_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    size = attention["intermediate_size"] // options.tensor_parallel_size
    return size * (attention["conv_kernel"] - 1), size * attention["state_size"]


def _mamba2_state(attention: dict[str, Any], options: CacheOptions) -> tuple[int, int]:
    size = options.tensor_parallel_size
    # Groups are repeated until every GPU has one (``extra_groups_for_head_shards``).
    groups = attention["n_groups"] if attention["n_groups"] % size == 0 else size
    mixed = attention["num_heads"] * attention["head_dim"] + 2 * groups * attention["state_size"]
    kept = attention["conv_kernel"] - 1 + options.speculative_tokens
    heads = ceil_div(attention["num_heads"], size)
    return kept * (mixed // size), heads * attention["head_dim"] * attention["state_size"]


STATE_SIZES: dict[str, Callable[[dict[str, Any], CacheOptions], tuple[int, int]]] = {
    "gated_delta_net": _gated_delta_net_state,
    "kda": _kda_state,
    "lightning": _lightning_state,
    "short_conv": _short_conv_state,
    "mamba1": _mamba1_state,
    "mamba2": _mamba2_state,
}
"""Values of (convolution state, recurrent state) of one layer on one GPU, by mixer (``MambaStateShapeCalculator``)."""


def _groups(placed: list[tuple[int, LayerCache]], stages: int, rules: Rules) -> tuple[Group, ...]:
    """Layers in groups, as get_kv_cache_groups does: one group where all need the same tokens, else equal ones."""
    buckets = {cache.bucket for _stage, cache in placed}
    if len(buckets) <= 1:
        return (_group(placed, stages),) if placed else ()
    placed = _unified(placed)
    by_cache: dict[LayerCache, list[tuple[int, LayerCache]]] = {}
    for entry in placed:
        by_cache.setdefault(entry[1], []).append(entry)
    counts = [len(members) for members in by_cache.values()]
    size = max(counts) if max(counts) < rules.padding_threshold * min(counts) else min(counts)
    groups = []
    for members in by_cache.values():
        number = ceil_div(len(members), size)
        # Every n-th layer, so that pipeline stages have equal shares of each group.
        groups += [_group(members[position::number], stages) for position in range(number)]
    return tuple(groups)


def _group(members: list[tuple[int, LayerCache]], stages: int) -> Group:
    by_stage = [[cache.page_bytes for stage, cache in members if stage == wanted] for wanted in range(stages)]
    return Group(
        cache=members[0][1],
        layers=tuple(len(pages) for pages in by_stage),
        block_bytes=tuple(sum(pages) for pages in by_stage),
    )


def _unified(placed: list[tuple[int, LayerCache]]) -> list[tuple[int, LayerCache]]:
    """All pages as large as the largest: larger blocks where that divides, padding where it does not."""
    largest = max(cache.page_bytes for _stage, cache in placed)
    return [(stage, _with_page(cache, largest)) for stage, cache in placed]


def _with_page(cache: LayerCache, page_bytes: int) -> LayerCache:
    if cache.kind != "state" and page_bytes % cache.page_bytes == 0:
        return replace(cache, page_bytes=page_bytes, block_size=cache.block_size * (page_bytes // cache.page_bytes))
    return replace(cache, page_bytes=page_bytes)

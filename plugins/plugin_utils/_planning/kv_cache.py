# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The KV cache as vLLM lays it out: groups, pages, blocks, tokens, concurrency. Private to the collection gpufleet.vllm.

Follows ``vllm/v1/core/kv_cache_utils.py`` and ``vllm/v1/kv_cache_interface.py``, release by release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .shape import ceil_div, dtype_bytes, layer_sequence, stage_slices, version_of

DEFAULT_BLOCK_SIZE = 16
KV_DTYPE_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps: ``page_bytes`` per block of ``block_size`` tokens."""

    kind: str
    block_size: int
    page_bytes: int
    window: int | None = None


@dataclass(frozen=True)
class Group:
    """Layers that share one block table: ``layers`` counts them, on each pipeline stage."""

    cache: LayerCache
    layers: tuple[int, ...]


@dataclass(frozen=True)
class KVCacheLayout:
    """Per GPU. Pools are bytes: one figure, or one per pipeline stage (the least number of blocks counts)."""

    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    max_model_len: int
    max_num_batched_tokens: int
    group_aware_tokens: bool

    @property
    def bytes_per_token(self) -> float:
        """Bytes a token takes on the fullest GPU, averaged over a request of max_model_len tokens."""
        if len(self.groups) == 1 and self.groups[0].cache.window is None:
            return max(self.block_bytes) / self.groups[0].cache.block_size
        return self.required_bytes(1) / self.max_model_len

    def blocks(self, pool_bytes: int | list[int]) -> int:
        """Blocks that a pool holds."""
        pools = [pool_bytes] * len(self.block_bytes) if isinstance(pool_bytes, int) else pool_bytes
        return min(pool // size for pool, size in zip(pools, self.block_bytes, strict=True) if size)

    def blocks_per_request(self, context: int | None = None) -> int:
        """Blocks that one request of ``context`` tokens (max_model_len) takes from the pool."""
        length = self.max_model_len if context is None else min(context, self.max_model_len)
        return sum(blocks_of_request(group.cache, length, self.max_num_batched_tokens) for group in self.groups)

    def max_concurrency(self, pool_bytes: int | list[int]) -> float:
        """vLLM's ``Maximum concurrency for N tokens per request``."""
        return self.blocks(pool_bytes) / self.blocks_per_request()

    def tokens(self, pool_bytes: int | list[int]) -> int:
        """vLLM's ``GPU KV cache size: N tokens``, as the release counts it."""
        if self.group_aware_tokens:
            return int(self.max_concurrency(pool_bytes) * self.max_model_len)
        return self.blocks(pool_bytes) // len(self.groups) * self.groups[0].cache.block_size

    def required_bytes(self, sequences: int, context: int | None = None) -> int:
        """Pool that ``sequences`` requests of ``context`` tokens (max_model_len) need on the fullest GPU."""
        return sequences * self.blocks_per_request(context) * max(self.block_bytes)


def blocks_of_request(cache: LayerCache, length: int, batched_tokens: int) -> int:
    """Blocks of one group that a request of ``length`` tokens holds at most."""
    if cache.kind == "sliding":
        return ceil_div(min((cache.window or 0) - 1 + batched_tokens, length), cache.block_size) + 1
    if cache.kind == "chunked":
        return ceil_div(min((cache.window or 0) + batched_tokens, length), cache.block_size)
    return ceil_div(length, cache.block_size)


def kv_cache_layout(
    checkpoint: dict[str, Any],
    release: Any,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    kv_cache_dtype: str = "auto",
    block_size: int | None = None,
    max_model_len: int | None = None,
    max_num_batched_tokens: int = 8192,
    dtype: str | None = None,
) -> KVCacheLayout:
    """The layout of a checkpoint's KV cache on each GPU.

    Args:
        checkpoint: the normal form of describe_config() or describe_checkpoint().
        release: vLLM's version, or an object that has it as ``version``.
        kv_cache_dtype, block_size, max_model_len, max_num_batched_tokens, dtype: vLLM's arguments of these names.
    Raises: ValueError for a dtype that is unknown.
    """
    value_bytes = KV_DTYPE_BYTES.get(kv_cache_dtype) or dtype_bytes(dtype or checkpoint["dtype"])
    caches = [
        _layer_cache(layer["attention"], tensor_parallel_size, value_bytes, block_size or DEFAULT_BLOCK_SIZE)
        for layer in layer_sequence(checkpoint)
    ]
    stages = stage_slices(len(caches), pipeline_parallel_size)
    groups = _group(caches, stages)
    version = version_of(release)
    return KVCacheLayout(
        groups=groups,
        block_bytes=tuple(
            max((group.layers[stage] * group.cache.page_bytes for group in groups), default=0)
            for stage in range(len(stages))
        ),
        max_model_len=max_model_len or checkpoint["max_model_len"],
        max_num_batched_tokens=max_num_batched_tokens,
        group_aware_tokens=version >= (0, 20, 2),
    )


def _layer_cache(attention: dict[str, Any], size: int, value_bytes: int, block_size: int) -> LayerCache | None:
    kind = attention["kind"]
    if kind == "none" or attention.get("shares_kv"):
        return None
    if kind == "mla":
        width = attention["kv_lora_rank"] + attention["qk_rope_head_dim"]
        return LayerCache("full", block_size, block_size * width * value_bytes)
    heads = max(1, attention["num_kv_heads"] // size)
    width = heads * (attention["head_dim"] + attention["head_dim_v"])
    return LayerCache(kind, block_size, block_size * width * value_bytes, attention["window"])


def _group(caches: list[LayerCache | None], stages: list[range]) -> tuple[Group, ...]:
    by_cache: dict[LayerCache, list[int]] = {}
    for index, cache in enumerate(caches):
        if cache is not None:
            by_cache.setdefault(cache, []).append(index)
    if not by_cache:
        return ()
    counts = [len(layers) for layers in by_cache.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for cache, layers in by_cache.items():
        number = ceil_div(len(layers), size)
        for position in range(number):
            members = set(layers[position::number])
            groups.append(Group(cache, tuple(len(members.intersection(stage)) for stage in stages)))
    return tuple(groups)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The split of each GPU's memory for one start. Private to the collection gpufleet.vllm.

vLLM's own arithmetic (gpu_worker.py, determine_available_memory): KV pool = total x utilization - weights - activation
- non-torch - CUDA graph estimate (releases that take it off); with kv_cache_memory_bytes the pool is that figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .._catalogue import Release
from . import overhead
from .dimensions import Dimensions
from .estimate import Estimate, remainder, total
from .extras import Extras
from .hosts import Gpu
from .kv_cache import KVCacheLayout, is_described, kv_cache_layout
from .parallelism import Layout
from .receipts import Receipt
from .settings import Settings
from .weights import share_equal_layers, weights_per_gpu


@dataclass(frozen=True)
class Model:
    """The checkpoint with all that is computed of it once for every layout that is tried."""

    checkpoint: Mapping[str, Any]
    shape: Dimensions
    release: Release
    generates: bool
    unverified: str
    """What is not understood of its memory; empty where all is."""
    extras: Extras
    cache: dict[Any, Any]
    receipt: Receipt | None = None

    def weights(self, layout: Layout, settings: Settings) -> list[Estimate]:
        """Bytes on a GPU of each pipeline stage."""
        key = (
            "weights",
            layout.tensor_parallel_size,
            layout.pipeline_parallel_size,
            settings.data_parallel_size,
            settings.enable_expert_parallel,
            settings.quantization,
            settings.dtype,
            least_capability(layout.gpus),
            settings.layer_partition,
        )
        return self._once(key, lambda: self._weights(layout, settings))

    def _weights(self, layout: Layout, settings: Settings) -> list[Estimate]:
        stages = weights_per_gpu(
            self._once("shared", lambda: share_equal_layers(dict(self.checkpoint))),
            self.release,
            layout.tensor_parallel_size,
            layout.pipeline_parallel_size,
            data_parallel_size=settings.data_parallel_size,
            enable_expert_parallel=settings.enable_expert_parallel,
            quantization=settings.quantization,
            dtype=settings.dtype,
            compute_capability=least_capability(layout.gpus),
            layer_partition=settings.layer_partition,
        )
        source = "unverified" if self.unverified else "calibrated"
        found = [Estimate(stage.value, stage.low, stage.high, source) for stage in stages]
        # Equal stages are one object: predict() counts them once.
        known: dict[Estimate, Estimate] = {}
        return [known.setdefault(estimate, estimate) for estimate in found]

    def kv(self, layout: Layout, settings: Settings) -> KVCacheLayout:
        key = (
            "kv",
            layout.tensor_parallel_size,
            layout.pipeline_parallel_size,
            settings.kv_cache_dtype,
            settings.block_size,
            settings.max_model_len,
            settings.max_num_batched_tokens,
            settings.dtype,
            settings.cache,
            settings.layer_partition,
        )
        return self._once(key, lambda: self._kv(layout, settings))

    def _kv(self, layout: Layout, settings: Settings) -> KVCacheLayout:
        return kv_cache_layout(
            dict(self.checkpoint),
            self.release,
            layout.tensor_parallel_size,
            layout.pipeline_parallel_size,
            kv_cache_dtype=settings.kv_cache_dtype if is_described(settings.kv_cache_dtype) else "fp8",
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            dtype=settings.dtype,
            layer_partition=settings.layer_partition,
            **vars(settings.cache),
        )

    def terms(self, facts: overhead.Start) -> list[tuple[Estimate, Estimate, Estimate]]:
        """Activation, non-torch and CUDA graphs on a GPU of each pipeline stage."""
        return self._once(("terms", facts), lambda: _terms(self, facts))

    def graphs_leave_pool(self, facts: overhead.Start) -> bool:
        """Whether the estimate of the CUDA graphs is taken off the KV pool."""
        return self._once(("graphs", facts), lambda: overhead.graphs_leave_pool(self.shape, facts))

    def least_weights(self, layout: Layout, settings: Settings) -> float:
        """Bytes that the fullest GPU holds at least, without dividing the model: an equal share of the whole."""
        alone = replace(layout, tensor_parallel_size=1, pipeline_parallel_size=1)
        share = layout.tensor_parallel_size * layout.pipeline_parallel_size * settings.data_parallel_size
        settings = replace(settings, data_parallel_size=1)
        return self.weights(alone, settings)[0].low / share - settings.cpu_offload_bytes

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]


@dataclass(frozen=True)
class GpuBudget:
    """Bytes on one GPU; gpu and stage are one of those that it is the budget of.

    requested is total x utilization; outside are terms that come out of the rest of the card.
    """

    gpu: Gpu
    stage: int
    requested: float
    weights: Estimate
    activation: Estimate
    non_torch: Estimate
    cuda_graphs: Estimate
    graphs_in_request: bool
    context: Estimate
    pool: Estimate
    pinned_pool: bool

    @cached_property
    def engine(self) -> Estimate:
        """All that the engine holds beside the KV pool and its CUDA context when it runs."""
        return total((self.weights, self.activation, self.non_torch, self.cuda_graphs))

    @cached_property
    def headroom(self) -> Estimate:
        """What stays free on the card while the engine runs: for fragmentation and for what vLLM does not count."""
        free = float(self.gpu.free_bytes)
        outside = self.context if self.graphs_in_request else total((self.context, self.cuda_graphs))
        if self.pinned_pool:
            return remainder(free, (self.engine, self.pool, self.context))
        return remainder(free - self.requested, (outside,))

    def at_utilization(self, utilization: float) -> GpuBudget:
        """The same start with another share of the card: only the pool differs."""
        more = self.gpu.total_bytes * utilization - self.requested
        pool = self.pool if self.pinned_pool else self.pool.moved(more)
        return GpuBudget(**{**self._fields, "requested": self.requested + more, "pool": pool})

    @property
    def _fields(self) -> dict[str, Any]:
        """Without what was computed of them; dataclasses.replace() takes ten times as long."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def start_margin(self) -> float:
        """Free memory at vLLM's first look minus what it asks for; below zero it refuses to start."""
        return self.gpu.free_bytes - self.context.value - self.requested

    def as_dict(self) -> dict[str, Any]:
        exact = Estimate.exact
        return {
            "host": self.gpu.host,
            "gpu": self.gpu.index,
            "uuid": self.gpu.uuid,
            "name": self.gpu.name,
            "total_gib": exact(self.gpu.total_bytes).as_gib(),
            "free_gib": exact(self.gpu.free_bytes).as_gib(),
            "others_gib": exact(self.gpu.others_bytes).as_gib(),
            "requested_gib": exact(self.requested).as_gib(),
            "weights_gib": self.weights.as_gib(),
            "activation_gib": self.activation.as_gib(),
            "non_torch_gib": self.non_torch.as_gib(),
            "cuda_graph_gib": self.cuda_graphs.as_gib(),
            "cuda_graphs_in_request": self.graphs_in_request,
            "kv_pool_gib": self.pool.as_gib(),
            "headroom_gib": self.headroom.as_gib(),
        }


Kind = tuple[int, int, int]
"""Pipeline stage, total and free bytes: all that the budgets of the GPUs of one start differ by."""


@dataclass(frozen=True)
class Prediction:
    """One layout with its settings: the budget of each GPU and the KV cache that follows."""

    model: Model
    layout: Layout
    settings: Settings
    run: Mapping[str, Any]
    kinds: Mapping[Kind, GpuBudget]

    @cached_property
    def kv(self) -> KVCacheLayout:
        return self.model.kv(self.layout, self.settings)

    @property
    def distinct(self) -> tuple[GpuBudget, ...]:
        """The budgets that differ: GPUs of one size, equally free, on stages that are alike have equal ones."""
        return tuple({id(budget): budget for budget in self.kinds.values()}.values())

    @property
    def staged(self) -> Iterator[tuple[int, GpuBudget]]:
        """One budget of each kind, with its pipeline stage."""
        return ((stage, budget) for (stage, _total, _free), budget in self.kinds.items())

    @cached_property
    def budgets(self) -> tuple[GpuBudget, ...]:
        """The budget of each GPU, in rank order."""
        ranks = [(gpu, self.layout.stage(rank)) for rank, gpu in enumerate(self.layout.gpus)]
        return tuple(replace(self.kinds[_kind(gpu, stage)], gpu=gpu, stage=stage) for gpu, stage in ranks)

    def at_utilization(self, utilization: float) -> Prediction:
        """The same start with another gpu_memory_utilization."""
        settings = replace(self.settings, gpu_memory_utilization=utilization)
        if self.model.unverified:
            return predict(self.model, self.layout, settings, self.run)
        moved = {id(budget): budget.at_utilization(utilization) for budget in self.distinct}
        kinds = {kind: moved[id(budget)] for kind, budget in self.kinds.items()}
        return Prediction(self.model, self.layout, settings, self.run, kinds)

    def pools(self, bound: str) -> list[int]:
        """The KV pool of each pipeline stage: the least over its GPUs. bound is value, low or high.

        A draft model's layers keep a cache, too: what they take is not there for the model's.
        """
        share = self.model.shape.num_layers / (self.model.shape.num_layers + self.model.extras.draft_layers or 1)
        if bound == "low" and self.model.unverified and self.settings.kv_cache_memory_bytes is not None:
            # The bytes are certain then, but not how many tokens they hold.
            share *= UNVERIFIED_POOL_SHARE
        least = [math.inf] * self.layout.pipeline_parallel_size
        for stage, budget in self.staged:
            least[stage] = min(least[stage], getattr(budget.pool, bound))
        return [int(share * max(0, pool)) for pool in least]

    def blocks(self, bound: str) -> int:
        if bound not in self._blocks:
            self._blocks[bound] = self._count_blocks(bound)
        return self._blocks[bound]

    @cached_property
    def _blocks(self) -> dict[str, int]:
        return {}

    def _count_blocks(self, bound: str) -> int:
        if self.settings.num_gpu_blocks_override:
            return self.settings.num_gpu_blocks_override
        return int(self.kv.blocks(self.pools(bound))) if self.kv.groups else 0

    def tokens(self, bound: str) -> int:
        """vLLM's "GPU KV cache size", with decode context parallelism as many times."""
        if not self.kv.groups or self.settings.max_model_len < 1:
            return 0
        return int(self.kv.tokens(self._pool_of_blocks(bound))) * self.settings.decode_context_parallel_size

    def concurrency(self, bound: str) -> float:
        if not self.kv.groups or self.settings.max_model_len < 1:
            return 0.0
        return float(self.kv.max_concurrency(self._pool_of_blocks(bound))) * self.settings.decode_context_parallel_size

    def _pool_of_blocks(self, bound: str) -> list[int]:
        if not self.settings.num_gpu_blocks_override:
            return self.pools(bound)
        return [self.settings.num_gpu_blocks_override * size for size in self.kv.block_bytes]

    def holds(self, sequences: int, context: int, bound: str = "low") -> bool:
        """Whether so many requests of so many tokens fit into the pool, surely (low) or as expected (value)."""
        if not self.kv.groups:
            return True
        share = -(-context // self.settings.decode_context_parallel_size)
        return self.blocks(bound) >= sequences * self.kv.blocks_per_request(share)


def least_capability(gpus: Sequence[Gpu]) -> str | None:
    """The lowest compute capability among the cards; None where none is known."""
    return min((gpu.compute_capability for gpu in gpus if gpu.compute_capability), key=float, default=None)


def predict(model: Model, layout: Layout, settings: Settings, run: Mapping[str, Any]) -> Prediction:
    """Predict one start. run holds what only the overhead depends on (runner, capture sizes, multimodal limits)."""
    weights = model.weights(layout, settings)
    facts = overhead.Start(
        version=overhead.parse_version(model.release.version),
        tensor_parallel_size=layout.tensor_parallel_size,
        pipeline_parallel_size=layout.pipeline_parallel_size,
        data_parallel_size=settings.data_parallel_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        dtype=settings.dtype,
        quantization=settings.quantization,
        enforce_eager=settings.enforce_eager,
        generates=model.generates,
        max_model_len=settings.max_model_len,
        compute_capability=least_capability(layout.gpus),
        enable_expert_parallel=settings.enable_expert_parallel,
        **run,
    )
    shared = Shared(facts, model.graphs_leave_pool(facts), overhead.cuda_context(facts), model)
    terms = model.terms(facts)
    kinds: dict[Kind, GpuBudget] = {}
    alike: dict[tuple[int, ...], GpuBudget] = {}
    for rank, gpu in enumerate(layout.gpus):
        stage = layout.stage(rank)
        kind = _kind(gpu, stage)
        if kind in kinds:
            continue
        same = (gpu.total_bytes, gpu.free_bytes, id(weights[stage]), id(terms[stage]))
        if same not in alike:
            alike[same] = _gpu_budget(gpu, stage, settings, weights[stage], terms[stage], shared)
        kinds[kind] = alike[same]
    return Prediction(model, layout, settings, run, kinds)


def _kind(gpu: Gpu, stage: int) -> Kind:
    return stage, gpu.total_bytes, gpu.free_bytes


def _terms(model: Model, facts: overhead.Start) -> list[tuple[Estimate, Estimate, Estimate]]:
    """Of each stage: those before the last have equal ones."""
    last = facts.pipeline_parallel_size - 1
    before = [_stage_terms(model, facts, 0)] * last if last else []
    return [*before, _stage_terms(model, facts, last)]


def _stage_terms(model: Model, facts: overhead.Start, stage: int) -> tuple[Estimate, Estimate, Estimate]:
    terms = (
        overhead.activation(model.shape, facts, stage),
        overhead.non_torch(model.shape, facts, stage),
        overhead.cuda_graphs(model.shape, facts),
    )
    if model.unverified:
        return tuple(term.widened(2.0, "unverified").at_least(0.0) for term in terms)  # type: ignore[return-value]
    return terms


UNVERIFIED_POOL_SHARE = 0.6
"""Of the expected pool, where the model is not understood: the one that was measured had 1 / 1.37 of it."""


@dataclass(frozen=True)
class Shared:
    """What all GPUs of one start have in common."""

    facts: overhead.Start
    graphs_leave_pool: bool
    context: Estimate
    model: Model


def _gpu_budget(
    gpu: Gpu,
    stage: int,
    settings: Settings,
    weights: Estimate,
    terms: Sequence[Estimate],
    shared: Shared,
) -> GpuBudget:
    activation, non_torch, graphs = terms
    facts, model, in_request = shared.facts, shared.model, shared.graphs_leave_pool
    requested = gpu.total_bytes * settings.gpu_memory_utilization
    if stage == facts.pipeline_parallel_size - 1 and model.extras.any:
        weights = total((weights, model.extras.weights(facts.tensor_parallel_size)))
    if settings.cpu_offload_bytes:
        weights = weights.moved(-min(settings.cpu_offload_bytes, weights.low))
    if model.receipt and model.receipt.counts_for(facts.tensor_parallel_size, facts.pipeline_parallel_size):
        weights, non_torch = model.receipt.correct(weights, non_torch)
    taken = (weights, activation, non_torch, *((graphs,) if in_request else ()))
    pinned = settings.kv_cache_memory_bytes is not None
    pool = Estimate.exact(float(settings.kv_cache_memory_bytes or 0)) if pinned else remainder(requested, taken)
    if model.unverified and not pinned:
        pool = replace(pool, low=min(pool.low, pool.value * UNVERIFIED_POOL_SHARE))
    return GpuBudget(
        gpu=gpu,
        stage=stage,
        requested=requested,
        weights=weights,
        activation=activation,
        non_torch=non_torch,
        cuda_graphs=graphs,
        graphs_in_request=in_request or pinned,
        context=shared.context,
        pool=pool,
        pinned_pool=pinned,
    )

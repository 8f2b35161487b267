# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much of a GPU's memory the engine says that it uses.

The terms are those of vLLM's log. Their shape is that of real starts (activation is the larger of the sampler's and the
forward pass's peak), so that every argument pulls in the right direction; it is no prediction of a real engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import wording
from .cards import Card
from .checkpoint import Checkpoint

_GIB = 1 << 30
_BLOCK = 16
# vLLM keeps 150 MiB back when it proposes a size of the KV cache.
_BUFFER_GIB = 150 / 1024


@dataclass
class Memory:
    """One rank's memory, in GiB."""

    total_gib: float
    free_gib: float
    gpu_memory_utilization: float
    requested_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    graph_gib: float
    graph_estimate_gib: float
    graph_applied_gib: float
    kv_pool_gib: float
    kv_bytes_per_token: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV pool holds, in whole blocks."""
        return max(int(self.kv_pool_gib * _GIB) // (self.kv_bytes_per_token * _BLOCK), 0) * _BLOCK

    @property
    def left_gib(self) -> float:
        """What is free when the weights and the KV pool are there."""
        return self.free_gib - self.weights_gib - self.non_torch_gib - self.kv_pool_gib

    def needed_gib(self, length: int) -> float:
        """What one request of that many tokens needs of the KV pool."""
        return -(-length // _BLOCK) * _BLOCK * self.kv_bytes_per_token / _GIB

    def figures(self) -> dict[str, Any]:
        """The figures of the log's lines."""
        consumed = self.weights_gib + self.non_torch_gib
        suggested = self.requested_gib - consumed - self.activation_gib - self.graph_gib - _BUFFER_GIB
        largest = suggested + self.free_gib - self.requested_gib
        delta = self.graph_estimate_gib / self.total_gib
        difference = abs(self.graph_gib - self.graph_estimate_gib)
        return {
            **vars(self),
            "consumed_gib": consumed,
            "non_kv_gib": consumed + self.activation_gib,
            "peak_activation_gib": self.activation_gib + self.graph_applied_gib,
            "suggested_gib": suggested,
            "suggested_bytes": int(suggested * _GIB),
            "largest_gib": largest,
            "largest_bytes": int(largest * _GIB),
            "equivalent_utilization": self.gpu_memory_utilization - delta,
            "suggested_utilization": min(self.gpu_memory_utilization + delta, 1.0),
            "graph_difference_gib": difference,
            "graph_difference_percent": 100 * difference / max(self.graph_gib, 0.01),
        }


def measure(card: Card, checkpoint: Checkpoint, release: str, config: dict[str, Any]) -> Memory:
    """Returns what a rank on that card measures. config: the arguments with their defaults."""
    tp, pp = config["tensor_parallel_size"], config["pipeline_parallel_size"]
    weights = checkpoint.weights_gib / tp / pp
    activation = _activation_bytes(checkpoint, release, config) / _GIB + 0.1
    non_torch = (0.27 if wording.since(release, "0.17.0") else 0.03) + (1.0 if tp * pp > 1 else 0.0)
    graphs = 0.0 if config["enforce_eager"] else 0.2 + 0.6 * config["max_num_seqs"] / 1024
    profiles = config["profiles_graphs"] and not config["enforce_eager"]
    estimate = graphs * 1.1 if wording.since(release, "0.18.0") else 0.0
    applied = estimate if profiles else 0.0
    requested = card.total_gib * config["gpu_memory_utilization"]
    pinned = config["kv_cache_memory_bytes"]
    pool = pinned / _GIB if pinned else requested - weights - activation - non_torch - applied
    return Memory(
        total_gib=card.total_gib,
        free_gib=card.free_gib,
        gpu_memory_utilization=config["gpu_memory_utilization"],
        requested_gib=requested,
        weights_gib=weights,
        activation_gib=activation,
        non_torch_gib=non_torch,
        graph_gib=graphs,
        graph_estimate_gib=estimate,
        graph_applied_gib=applied,
        kv_pool_gib=pool,
        kv_bytes_per_token=_kv_bytes(checkpoint, config),
    )


def _activation_bytes(checkpoint: Checkpoint, release: str, config: dict[str, Any]) -> float:
    """The larger peak: of the sampler (a sort of the logits up to 0.16, a kernel from 0.17), or of the forward pass."""
    factor = 3.65 if wording.since(release, "0.17.0") else 9.5
    sampler = factor * config["max_num_seqs"] * checkpoint.vocab_size * 4
    width = 2 * checkpoint.hidden_size + 3 * checkpoint.intermediate_size / config["tensor_parallel_size"]
    return max(sampler, config["max_num_batched_tokens"] * 2 * width)


def _kv_bytes(checkpoint: Checkpoint, config: dict[str, Any]) -> int:
    """Bytes of one token in the KV cache of one rank; every layer counts as one of full attention."""
    layers = -(-checkpoint.layers // config["pipeline_parallel_size"])
    size = 1 if str(config["kv_cache_dtype"]).startswith("fp8") else 2
    if checkpoint.latent_dim:
        return layers * checkpoint.latent_dim * size
    kv_heads = max(checkpoint.kv_heads // config["tensor_parallel_size"], 1)
    return 2 * layers * kv_heads * checkpoint.head_dim * size

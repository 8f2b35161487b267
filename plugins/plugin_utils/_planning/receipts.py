# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an earlier start taught: a receipt corrects the prediction for its like. Private to gpufleet.vllm.

A receipt is of the same start where release, card, parallel sizes and weights agree: then it replaces the prediction.
With other weights it is a neighbour's: the shift of all that is not weights is taken over, with half the doubt. Of
another release, card or division it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .estimate import GIB, Estimate

SAME_WEIGHTS_GIB = 0.02
RECEIPT_DEVIATION_GIB = 0.05
"""Repeated starts of one engine differ by that much (two pairs of equal runs in the measured starts differ by none)."""

NEIGHBOUR_FACTOR = 0.5

FAR_OVER_CAPTURE = 3.0
"""A graph estimate of so many times what the capture took is vLLM's error (vllm#45178), not the model's nature."""


@dataclass(frozen=True)
class Receipt:
    """GiB of one GPU: what was measured less what was planned, and for whom it counts."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    weights_planned: float
    weights_measured: float
    rest_shift: float

    def counts_for(self, tensor_parallel_size: int, pipeline_parallel_size: int) -> bool:
        own = self.tensor_parallel_size, self.pipeline_parallel_size
        return own == (tensor_parallel_size, pipeline_parallel_size)

    def correct(self, weights: Estimate, non_torch: Estimate) -> tuple[Estimate, Estimate]:
        """The corrected weights and non-torch term; the latter carries all that the receipt cannot tell apart."""
        shift, deviation = self.rest_shift * GIB, RECEIPT_DEVIATION_GIB * GIB
        if abs(weights.value / GIB - self.weights_planned) <= SAME_WEIGHTS_GIB:
            measured = Estimate.around(self.weights_measured * GIB, deviation, deviation, "receipt")
            return measured, Estimate.around(non_torch.value + shift, deviation, deviation, "receipt")
        narrowed = non_torch.widened(NEIGHBOUR_FACTOR, non_torch.source)
        moved = replace(narrowed, value=narrowed.value + shift, low=narrowed.low + shift, high=narrowed.high + shift)
        return weights, moved


def read_receipt(instance: Mapping[str, Any], version: str, cards: Sequence[str]) -> tuple[Receipt | None, list[str]]:
    """The receipt of an instance if it may be used, and what is to be said about it."""
    given = instance.get("receipt")
    if not isinstance(given, Mapping):
        return None, []
    measured, planned = given.get("measured") or {}, given.get("planned") or {}
    absurd = _absurdities(measured)
    if absurd:
        return None, [f"the receipt is not used: {text}" for text in absurd]
    if given.get("release") != version:
        return None, [f"the receipt is of vLLM {given.get('release')}, not of {version}: it is not used"]
    if given.get("card") not in cards:
        return None, [f"the receipt is of {given.get('card')}, not of {', '.join(cards)}: it is not used"]
    if any(source.get(figure) is None for source in (measured, planned) for figure in ("weights_gib", "kv_pool_gib")):
        return None, ["the receipt lacks weights or KV pool: it is not used"]
    weights_shift = float(measured["weights_gib"]) - float(planned["weights_gib"])
    return (
        Receipt(
            int(given.get("tensor_parallel_size") or 1),
            int(given.get("pipeline_parallel_size") or 1),
            float(planned["weights_gib"]),
            float(measured["weights_gib"]),
            float(planned["kv_pool_gib"] - measured["kv_pool_gib"] - weights_shift),
        ),
        [],
    )


def _absurdities(measured: Mapping[str, Any]) -> list[str]:
    """Figures of vLLM's own that cannot be: another process changed its memory, or the estimate went wrong."""
    estimate, captured = measured.get("cuda_graph_estimate_gib"), measured.get("cuda_graph_gib")
    if estimate is None:
        return []
    if estimate < 0:
        return [f"vLLM estimated {estimate} GiB for CUDA graphs; something released memory on the card meanwhile"]
    if captured is not None and captured > 0.05 and estimate > FAR_OVER_CAPTURE * captured:
        return [
            f"vLLM estimated {estimate} GiB for CUDA graphs and captured {captured} GiB; "
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 would give the difference to the KV pool"
        ]
    return []

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
    """GiB of one GPU: what was measured, what was planned then, for whom it counts, and the arguments of that start.

    weights_planned and pool_planned are None where the plan did not know them, pool_measured where vLLM measured none:
    with a pool in bytes it skips its profile.
    """

    tensor_parallel_size: int
    pipeline_parallel_size: int
    weights_planned: float
    weights_measured: float
    pool_planned: float | None
    pool_measured: float | None
    arguments: Mapping[str, Any]

    def counts_for(self, tensor_parallel_size: int, pipeline_parallel_size: int) -> bool:
        own = self.tensor_parallel_size, self.pipeline_parallel_size
        return own == (tensor_parallel_size, pipeline_parallel_size)

    def compared_with(self, weights: Estimate, pool: Estimate) -> Receipt:
        """The receipt of the same model, beside what would be planned today for the arguments of its start.

        What was planned then may have been corrected by an earlier receipt: compared with that, the newest receipt
        would show no error, and the correction would be lost. Other weights are another model's: it stays as it is.
        """
        doubt = SAME_WEIGHTS_GIB * GIB
        if not weights.low - doubt <= self.weights_measured * GIB <= weights.high + doubt:
            return self
        return replace(self, weights_planned=weights.value / GIB, pool_planned=pool.value / GIB)

    def correct(self, weights: Estimate, non_torch: Estimate) -> tuple[Estimate, Estimate]:
        """The corrected weights and non-torch term; the latter carries all that the receipt cannot tell apart."""
        deviation = RECEIPT_DEVIATION_GIB * GIB
        shift = self._rest_shift() * GIB
        if abs(weights.value / GIB - self.weights_planned) <= SAME_WEIGHTS_GIB:
            measured = Estimate.around(self.weights_measured * GIB, deviation, deviation, "receipt")
            if self.pool_measured is None:
                return measured, non_torch
            return measured, Estimate.around(non_torch.value + shift, deviation, deviation, "receipt")
        if self.pool_measured is None:
            return weights, non_torch
        return weights, non_torch.widened(NEIGHBOUR_FACTOR, non_torch.source).moved(shift)

    def _rest_shift(self) -> float:
        """GiB that all but the weights took more than was planned."""
        if self.pool_planned is None or self.pool_measured is None:
            return 0.0
        return self.pool_planned - self.pool_measured - (self.weights_measured - self.weights_planned)


def read_receipt(instance: Mapping[str, Any], version: str, cards: Sequence[str]) -> tuple[Receipt | None, list[str]]:
    """The receipt of an instance if it may be used, and what is to be said about it.

    A start that did not log its weights teaches nothing, and there is nothing to be said: it is no mistake.
    """
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
    weights = measured.get("weights_gib"), planned.get("weights_gib")
    if None in weights:
        return None, []
    arguments = given.get("arguments")
    return (
        Receipt(
            int(given.get("tensor_parallel_size") or 1),
            int(given.get("pipeline_parallel_size") or 1),
            weights_planned=float(planned["weights_gib"]),
            weights_measured=float(measured["weights_gib"]),
            pool_planned=planned.get("kv_pool_gib"),
            pool_measured=measured.get("kv_pool_gib"),
            arguments=arguments if isinstance(arguments, Mapping) else {},
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

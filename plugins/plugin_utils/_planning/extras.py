# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pinned features add to the weights: LoRA slots, draft models, CPU offload. Private to gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .estimate import Estimate, total
from .settings import Pins

LORA_GROUPS = {"attention", "mlp", "shared_experts", "experts"}
LORA_VALUE_BYTES = 2
DEFAULT_LORA_RANK = 16
"""vllm/config/lora.py: max_lora_rank; max_loras is 1."""

WITHOUT_DRAFTER = {"ngram", "ngram_gpu", "suffix"}
"""Methods of speculation that need no weights."""


@dataclass(frozen=True)
class Extras:
    """What is loaded beside the model; draft_layers keep a KV cache like the model's own."""

    lora: Mapping[str, Any] | None
    drafter_bytes: float
    drafter_is_known: bool
    draft_layers: int
    checkpoint: Mapping[str, Any]

    @property
    def any(self) -> bool:
        return bool(self.lora or self.drafter_bytes)

    def weights(self, tensor_parallel_size: int) -> Estimate:
        """Bytes on one GPU."""
        drafter = self.drafter_bytes / tensor_parallel_size
        high = drafter * (1.1 if self.drafter_is_known else 3.0)
        terms = [Estimate(drafter, drafter * 0.9, high, "exact" if not drafter else "extrapolated")]
        if self.lora:
            slots = _lora_bytes(self.checkpoint, self.lora, tensor_parallel_size)
            terms.append(Estimate(slots, slots * 0.8, slots * 1.2, "extrapolated"))
        return total(terms)


def read_extras(checkpoint: Mapping[str, Any], pins: Pins) -> tuple[Extras, list[str]]:
    """The extras that are pinned, and what cannot be known of them."""
    lora = None
    if pins.flag("enable_lora"):
        lora = {"loras": pins.integer("max_loras") or 1, "rank": pins.integer("max_lora_rank") or DEFAULT_LORA_RANK}
    speculation = pins.mapping("speculative_config") or {}
    method = str(speculation.get("method") or ("draft_model" if speculation.get("model") else ""))
    if not method or method in WITHOUT_DRAFTER:
        return Extras(lora, 0.0, True, 0, checkpoint), []
    own = ((checkpoint.get("weights") or {}).get("groups") or {}).get("drafter", {}).get("bytes", 0)
    if "mtp" in method and own:
        return Extras(lora, float(own), True, int(checkpoint.get("mtp_layers") or 1), checkpoint), []
    guess = _one_layer_bytes(checkpoint)
    warning = (
        f"the draft model of speculative_config ({method}) is not described: one layer of the model is planned for it, "
        "up to three are in the interval"
    )
    return Extras(lora, guess, False, 1, checkpoint), [warning]


def _one_layer_bytes(checkpoint: Mapping[str, Any]) -> float:
    weights = checkpoint.get("weights") or {}
    return float(weights.get("total_bytes") or 0) / max(1, int(checkpoint.get("num_hidden_layers") or 1))


def _lora_bytes(checkpoint: Mapping[str, Any], lora: Mapping[str, Any], size: int) -> float:
    """vLLM holds the slots of all adapters from the start (vllm/lora/layers): A is (rank, in), B is (out, rank)."""
    elements = sum(
        run["count"] * tensor.get("copies", 1) * _lora_elements(tensor, lora["rank"], size)
        for run in checkpoint.get("layers") or ()
        for tensor in run.get("tensors") or ()
        if tensor.get("group") in LORA_GROUPS and tensor.get("in", 1) > 1
    )
    return float(elements * lora["loras"] * LORA_VALUE_BYTES)


def _lora_elements(tensor: Mapping[str, Any], rank: int, size: int) -> float:
    inputs, outputs = float(tensor["in"]), float(tensor["out"])
    if str(tensor.get("split", "")).endswith("row"):
        inputs /= size
    elif tensor.get("split") != "replicated":
        outputs /= size
    return rank * (inputs + outputs)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Precision by the card: dtype, quantisation, KV dtype; never changed silently. Private to gpufleet.vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._catalogue import Release, matrix
from .dimensions import Dimensions
from .hosts import Host
from .settings import Pins

BFLOAT16_CAPABILITY = 8.0
"""Least compute capability for bfloat16 (vllm/platforms/cuda.py, supported_dtypes)."""

SIXTEEN_BIT = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Precision:
    """What the engine computes in, and what had to be said about it."""

    dtype: str
    dtype_argument: str | None
    quantization: str | None
    kv_cache_dtype: str
    rules: list[str] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def least_capability(hosts: Sequence[Host]) -> float | None:
    """The lowest compute capability among the GPUs; None where no card's is known."""
    known = [float(gpu.compute_capability) for host in hosts for gpu in host.gpus if gpu.compute_capability]
    return min(known, default=None)


def choose_precision(
    shape: Dimensions, checkpoint: Mapping[str, Any], hosts: Sequence[Host], release: Release, pins: Pins
) -> Precision:
    """Pins first, then the checkpoint's own precision, as far as the cards can do it."""
    pinned = pins.text("dtype")
    dtype = SIXTEEN_BIT.get(pinned or "", pinned or "") or shape.dtype
    decisions, argument = [], None
    capability = least_capability(hosts)
    if pinned is None and dtype == "bfloat16" and capability is not None and capability < BFLOAT16_CAPABILITY:
        dtype = argument = "float16"
        decisions.append(
            {
                "step": 1,
                "decision": "dtype float16 in place of the checkpoint's bfloat16",
                "why": f"bfloat16 needs compute capability {BFLOAT16_CAPABILITY}, the weakest card has {capability}",
                "cost": "float16 has a smaller range: compare answers before you rely on it",
            }
        )
    quantization = pins.text("quantization") or shape.quantization_method
    kv_cache_dtype = pins.text("kv_cache_dtype") or "auto"
    rules, degraded, warnings = _judge(checkpoint, hosts, release, pins, argument)
    return Precision(dtype, argument, quantization, kv_cache_dtype, rules, decisions + degraded, warnings)


def _judge(
    checkpoint: Mapping[str, Any], hosts: Sequence[Host], release: Release, pins: Pins, dtype: str | None
) -> tuple[list[str], list[dict[str, Any]], list[str]]:
    """The catalogue's matrix of image, host and checkpoint: what is refused, what costs something, what is unknown."""
    engine_args = {**pins.extra, **pins.values, **({"dtype": dtype} if dtype else {})}
    rules, decisions, warnings = [], [], []
    rows = {}
    for host in hosts:
        facts = {**host.facts, "gpus": [gpu.facts for gpu in host.gpus]}
        for row in matrix(release, facts, dict(checkpoint), engine_args):
            rows[row["subject"], row["status"], row["reason"]] = host.name
    for (subject, status, reason), host_name in rows.items():
        if status == "unsupported":
            rules.append(f"{subject} on {host_name}: {reason}")
        elif status == "degraded":
            decisions.append(
                {"step": 1, "decision": f"{subject} works with a drawback", "why": reason, "cost": "see why"}
            )
        elif status == "unverified":
            warnings.append(f"{subject} is not verified: {reason}")
    return rules, decisions, warnings

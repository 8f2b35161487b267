# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs that the container sees: those of the simulated nvidia-smi, or those that a test names."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from typing import Any

_QUERY = ("name", "memory.total", "memory.free", "compute_cap", "memory.reserved", "uuid")
_MIB_PER_GIB = 1024
# What the driver keeps for itself is not in PyTorch's total: an H100 of 81559 MiB has 79.19 GiB there.
_UNTOLD_RESERVE = 0.0057
# vLLM looks at the free memory when its own CUDA context is there already: an idle H100 has 78.68 of 79.19 GiB then.
CONTEXT_GIB = 0.5


@dataclass(frozen=True)
class Card:
    """One GPU. Sizes in GiB, as PyTorch sees them."""

    name: str
    total_gib: float
    free_gib: float
    compute_capability: str
    uuid: str | None = None

    @property
    def capability(self) -> float:
        """The compute capability as a number, such as 8.9."""
        return float(self.compute_capability)


def visible(asked: list[dict[str, Any]] | None) -> list[Card]:
    """Returns the GPUs, in order. asked: the setting ``gpus``, entries as gpu_info has them; None: ask nvidia-smi."""
    if asked is not None:
        return [
            _card(gpu["name"], gpu["memory_total_mib"], gpu.get("memory_free_mib"), gpu["compute_capability"], None)
            for gpu in asked
        ]
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(_QUERY), "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [_from_row([cell.strip() for cell in row.split(",")]) for row in told.splitlines() if row.strip()]


def _from_row(cells: list[str]) -> Card:
    name, total, free, capability, reserved, uuid = cells
    return replace(_card(name, float(total), _number(free), capability, _number(reserved)), uuid=uuid)


def _number(text: str) -> float | None:
    """A figure of nvidia-smi; GPUs with unified memory have none ("[N/A]")."""
    try:
        return float(text)
    except ValueError:
        return None


def _card(name: str, total_mib: float, free_mib: float | None, capability: str, reserved_mib: float | None) -> Card:
    reserved = total_mib * _UNTOLD_RESERVE if reserved_mib is None else reserved_mib
    total = total_mib - reserved
    free = total if free_mib is None else min(free_mib, total)
    return Card(name, total / _MIB_PER_GIB, free / _MIB_PER_GIB - CONTEXT_GIB, str(capability))

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which kernels an engine chose, and the change that makes it choose others. Private to the collection.

The wordings are those of ``model_executor/kernels/linear/__init__.py`` ("Selected %s for %s", from 0.16),
``model_executor/layers/fused_moe/oracle/*.py`` ("Using %s Fp8 MoE backend", from 0.16) and of
``model_executor/layers/quantization/fp8.py`` before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .change import release_of
from .lines import Line

_LINEAR = re.compile(r"Selected (?P<kernel>\w+) for (?P<user>\w+)")
_MOE = re.compile(
    r"Using '?(?P<kernel>[A-Za-z_]\w*)'? (?:\w*[Ff][Pp][48]|Int8|WNA16|W4A8|Unquantized)? ?MoE backend"
    r"|Using (?P<before>DeepGEMM|Triton|Marlin|Cutlass|CUTLASS) backend for (?:FP8|Fp8) MoE"
    r"|Using (?P<oldest>DeepGemm|Cutlass\w*) kernels for \w*MoE"
)
_DEEP_GEMM = re.compile(r"deep_?gemm", re.IGNORECASE)
# The backend that every card can run, for FP8. It needs no compiler of CUDA.
_SAFE_BACKEND = "triton"


@dataclass(frozen=True)
class Kernel:
    """A kernel that the log names. part: linear or moe."""

    part: str
    name: str
    line: Line

    @property
    def deep_gemm(self) -> bool:
        return bool(_DEEP_GEMM.search(self.name))


def selected_kernels(lines: list[Line]) -> list[Kernel]:
    """Returns what the log says was selected, each part once."""
    found: dict[str, Kernel] = {}
    for line in lines:
        linear, moe = _LINEAR.search(line.message), _MOE.search(line.message)
        if linear:
            found["linear"] = Kernel("linear", linear["kernel"], line)
        elif moe:
            found["moe"] = Kernel("moe", next(name for name in moe.groups() if name), line)
    return list(found.values())


def other_kernel(kernel: Kernel, context: dict[str, Any]) -> dict[str, Any] | None:
    """The one change that takes another kernel for this part; None where the pinned release has no such argument.

    DeepGEMM is switched off for linear layers and experts at once; --linear-backend does not act on experts.
    """
    if kernel.deep_gemm:
        return {"variable": "environment.VLLM_USE_DEEP_GEMM", "from": None, "to": "0"}
    argument = f"{kernel.part}_backend"
    release = release_of(context)
    if _SAFE_BACKEND in kernel.name.lower() or (release is not None and release.argument(argument) is None):
        return None
    pins = (context.get("instance") or {}).get("engine_args") or {}
    return {"variable": f"engine_args.{argument}", "from": pins.get(argument, "auto"), "to": _SAFE_BACKEND}

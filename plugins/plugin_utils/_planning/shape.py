# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model's layers are divided over GPUs. Private to the collection gpufleet.vllm.

Works on the normal form of a checkpoint (``plugins/module_utils/_checkpoint.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def version_of(release: Any) -> tuple[int, ...]:
    """The numbers of a release: (0, 20, 0) for ``v0.20.0``, ``0.20.0-cu129`` or an object with such a ``version``.

    Raises: ValueError where no version can be read.
    """
    text = str(getattr(release, "version", release))
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not match:
        raise ValueError(f"{text!r} is not a vLLM release; a release looks like v0.32.0.")
    return tuple(int(part or 0) for part in match.groups())


def layer_sequence(checkpoint: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per layer, in order (the normal form merges runs of equal layers)."""
    return [run for run in checkpoint["layers"] for _layer in range(run["count"])]


def stage_sizes(num_layers: int, pipeline_parallel_size: int) -> list[int]:
    """Layers on each pipeline stage.

    Equal shares; what is left over goes to the stages from the last but one backwards, because the last stage holds the
    output head and the first one the embedding (``vllm/distributed/utils.py``, get_pp_indices).
    """
    share, left = divmod(num_layers, pipeline_parallel_size)
    sizes = [share] * pipeline_parallel_size
    for position in range(2, left + 2):
        sizes[-position] += 1
    return sizes


def stage_slices(num_layers: int, pipeline_parallel_size: int, partition: Sequence[int] = ()) -> list[range]:
    """The layer indices of each pipeline stage. partition: the layers on each, where VLLM_PP_LAYER_PARTITION says."""
    slices, start = [], 0
    given = len(partition) == pipeline_parallel_size
    for size in partition if given else stage_sizes(num_layers, pipeline_parallel_size):
        slices.append(range(start, start + size))
        start += size
    return slices


def dtype_bytes(dtype: str) -> int:
    """Bytes of one value. Raises: ValueError for an unknown dtype."""
    try:
        return DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} is unknown; known are {', '.join(sorted(DTYPE_BYTES))}.") from None


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def round_up(value: int, multiple: int) -> int:
    return ceil_div(value, multiple) * multiple

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine may be divided over GPUs, and which GPUs to take. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .dimensions import Dimensions
from .estimate import MIB
from .hosts import Gpu, Host

VOCABULARY_PADDING = 64
"""vllm/model_executor/layers/vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE."""

LINK_DISTANCE = {"PIX": 20, "PXB": 21, "PHB": 30, "NODE": 40, "SYS": 50}
"""How far two GPUs are apart, by nvidia-smi's names; NVLink is nearer, the more links the nearer."""

EXHAUSTIVE_GPUS = 8
"""Up to so many GPUs all subsets are compared; beyond, neighbours are taken in the order of the best link."""


LARGEST_DIVISION = 64
"""The largest tensor parallel size that is spoken of."""


@dataclass(frozen=True)
class Layout:
    """One way to divide an engine: its sizes and the GPUs in rank order (engine by engine, stage by stage)."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpus: tuple[Gpu, ...]
    data_parallel_size: int = 1

    @property
    def size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def hosts(self) -> int:
        return len({gpu.host_index for gpu in self.gpus})

    def stage(self, rank: int) -> int:
        return rank % (self.tensor_parallel_size * self.pipeline_parallel_size) // self.tensor_parallel_size


def divisors(shape: Dimensions, most: int, expert_parallel: bool = False) -> list[int]:
    """The tensor parallel sizes up to most by which the model can be divided."""
    return [size for size in range(1, most + 1) if not division_faults(shape, size, expert_parallel)]


def division_faults(shape: Dimensions, tensor_parallel_size: int, expert_parallel: bool = False) -> list[str]:
    """Why the model cannot be divided by so many GPUs; empty where it can.

    The rules are vLLM's own: attention heads and padded vocabulary must divide (config/model.py,
    vocab_parallel_embedding.py), key-value heads divide or are repeated, the widths of the MLPs must divide, and with
    block-wise FP8 each part must hold whole blocks (quantization/fp8.py).
    """
    size = tensor_parallel_size
    if size == 1:
        return []
    faults = []
    if shape.num_attention_heads and shape.num_attention_heads % size:
        faults.append(f"{shape.num_attention_heads} attention heads are not divisible by {size}")
    padded = -(-shape.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % size:
        faults.append(f"the vocabulary, padded to {padded}, is not divisible by {size}")
    for layer in shape.layers:
        faults += _attention_faults(layer.get("attention") or {}, size)
        faults += _mlp_faults(layer.get("mlp") or {}, size, shape.quantization, expert_parallel)
    return list(dict.fromkeys(faults))


def _attention_faults(attention: Mapping[str, Any], size: int) -> list[str]:
    faults = []
    heads, groups = attention.get("num_heads"), attention.get("num_kv_heads")
    if heads and int(heads) % size:
        faults.append(f"{heads} attention heads are not divisible by {size}")
    if groups and int(groups) % size and size % int(groups):
        faults.append(f"{groups} key-value heads and {size} GPUs do not divide each other")
    return faults


def _mlp_faults(
    mlp: Mapping[str, Any], size: int, quantization: Mapping[str, Any] | None, expert_parallel: bool
) -> list[str]:
    widths = {"shared expert width": mlp.get("shared_intermediate_size")}
    if not (mlp.get("kind") == "moe" and expert_parallel):
        widths["expert width" if mlp.get("kind") == "moe" else "MLP width"] = mlp.get("intermediate_size")
    block = block_size(quantization)
    faults = []
    for name, width in widths.items():
        if not width:
            continue
        if int(width) % size:
            faults.append(f"the {name} {width} is not divisible by {size}")
        elif block and int(width) // size % block:
            faults.append(f"the {name} {width} over {size} GPUs holds no whole blocks of {block} (block-wise FP8)")
    return faults


def block_size(quantization: Mapping[str, Any] | None) -> int | None:
    """The block of block-wise FP8 (DeepSeek's scheme); None for every other scheme."""
    schemes = ((quantization or {}).get("schemes") or {}).values()
    blocks = [scheme["block"] for scheme in schemes if scheme.get("granularity") == "block" and scheme.get("block")]
    return max((int(block[0]) for block in blocks), default=None)


def layouts(
    shape: Dimensions,
    hosts: Sequence[Host],
    tensor: int | None,
    pipeline: int | None,
    expert_parallel: bool = False,
    engines: int = 1,
) -> Iterator[Layout]:
    """The layouts to try, in the order of preference: one GPU, the fewest GPUs of one host, then over hosts.

    tensor, pipeline and engines (the data parallel size) are pins; several engines stand on one host. There tensor
    parallelism comes first; pipeline stages are for what cannot be divided evenly, and for several hosts (tensor
    parallelism within a host, one or more stages a host).
    """
    seen = set()
    chosen: dict[tuple[int, int], tuple[Gpu, ...]] = {}
    for tp, pp, span in _sizes(shape, hosts, tensor, pipeline, expert_parallel):
        if (tp, pp, span) in seen or (shape.num_layers and pp > shape.num_layers):
            continue
        seen.add((tp, pp, span))
        wanted = (tp * pp * engines, span)
        if wanted not in chosen:
            chosen[wanted] = _choose(hosts, *wanted) if span == 1 or engines == 1 else ()
        if chosen[wanted]:
            yield Layout(tp, pp, chosen[wanted], engines)


def _sizes(
    shape: Dimensions, hosts: Sequence[Host], tensor: int | None, pipeline: int | None, expert_parallel: bool
) -> Iterator[tuple[int, int, int]]:
    """(tensor, pipeline, hosts), in order of preference."""
    hosts = [host if not any(gpu.divided for gpu in host.gpus) else _alone(host) for host in hosts]
    most = max((len(host.gpus) for host in hosts), default=0)
    degrees = [tensor] if tensor else divisors(shape, most, expert_parallel)
    if pipeline in (None, 1):
        for tp in degrees:
            yield tp, 1, -(-tp // most) if most else 1
    single = [(tp, pp) for tp in degrees for pp in range(2, most // tp + 1) if pipeline in (None, pp)]
    for tp, pp in sorted(single, key=lambda sizes: (sizes[0] * sizes[1], -sizes[0])):
        yield tp, pp, 1
    for span in range(2, len(hosts) + 1):
        spread = [(tp, pp) for tp in degrees if tp <= most for pp in _stages(span, most // tp, pipeline)]
        for tp, pp in sorted(spread, key=lambda sizes: (sizes[0] * sizes[1], -sizes[0])):
            yield tp, pp, span


def _alone(host: Host) -> Host:
    """A host with MIG devices: only one of them can serve an engine."""
    whole = tuple(gpu for gpu in host.gpus if not gpu.divided)
    return replace(host, gpus=whole or host.gpus[:1])


def _stages(span: int, per_host: int, pipeline: int | None) -> Iterable[int]:
    return [span * n for n in range(1, per_host + 1) if pipeline in (None, span * n)]


def _choose(hosts: Sequence[Host], size: int, span: int) -> tuple[Gpu, ...]:
    """The GPUs of a layout: as many of each host, in the hosts' order; empty where the hosts do not have them."""
    per_host = size // span
    if per_host * span != size:
        return ()
    enough = [host for host in hosts if len(host.gpus) >= per_host]
    if len(enough) < span:
        return ()
    if span == 1:
        options = [nearest(host, per_host) for host in enough]
        # The first host wins where hosts are equal, so that the choice does not move with a few MiB.
        return max(options, key=lambda gpus: min(gpu.free_bytes >> 30 for gpu in gpus))
    return tuple(gpu for host in enough[:span] for gpu in nearest(host, per_host))


def nearest(host: Host, count: int) -> tuple[Gpu, ...]:
    """The count GPUs of a host to take: of one kind, those with the most free memory, near to each other.

    Free memory counts in steps of 1 GiB: a few MiB more or less on an idle card must not move an engine.
    """
    if count >= len(host.gpus):
        return host.gpus
    if count == 1:
        return (max(host.gpus, key=_free_steps),)
    if _alike(host):
        return host.gpus[:count]
    apart = {(left.index, right.index): distance(host, left, right) for left in host.gpus for right in host.gpus}
    return max(_subsets(host, count, apart), key=lambda gpus: _score(gpus, apart))


def _alike(host: Host) -> bool:
    """Whether no choice is better than another: one kind of card, equally free, every pair linked in the same way."""
    links = {str(cell) for row in host.links for cell in row} - {"X"}
    cards = {(gpu.name, gpu.total_bytes, _free_steps(gpu), gpu.numa_node) for gpu in host.gpus}
    return len(links) <= 1 and len(cards) == 1


def _free_steps(gpu: Gpu) -> int:
    return gpu.free_bytes // (1024 * MIB)


def _subsets(host: Host, count: int, apart: Mapping[tuple[int, int], int]) -> Iterator[tuple[Gpu, ...]]:
    if len(host.gpus) <= EXHAUSTIVE_GPUS:
        yield from itertools.combinations(host.gpus, count)
        return
    for first in host.gpus:
        near = sorted(host.gpus, key=lambda gpu: (-_free_steps(gpu), apart[first.index, gpu.index], gpu.index))
        yield tuple(sorted(near[:count], key=lambda gpu: gpu.index))


def _score(gpus: Sequence[Gpu], apart: Mapping[tuple[int, int], int]) -> tuple[int, int, int, int]:
    """Larger is better: one kind of card, the least free memory among them, the sum of distances."""
    kinds = len({(gpu.name, gpu.total_bytes // (1024 * MIB)) for gpu in gpus})
    indices = [gpu.index for gpu in gpus]
    total = sum(map(apart.__getitem__, itertools.combinations(indices, 2)))
    numa = len({gpu.numa_node for gpu in gpus})
    return -kinds, min(map(_free_steps, gpus)), -total, -numa


def distance(host: Host, left: Gpu, right: Gpu) -> int:
    """How far two GPUs of a host are apart: 0 for itself, NVLink 1 to 19 by its number of links, then PCIe."""
    if left.index == right.index:
        return 0
    name = link(host, left.index, right.index)
    nvlink = re.match(r"NV(\d+)", name)
    if nvlink:
        return max(1, 19 - int(nvlink.group(1)))
    return LINK_DISTANCE.get(name, 60)


def link(host: Host, row: int, column: int) -> str:
    """The connection of two GPUs by nvidia-smi's name (NV18, PHB, SYS); empty where it is not known."""
    try:
        cell = host.links[row][column]
    except (IndexError, KeyError, TypeError):
        return ""
    return str(cell.get("type", "")) if isinstance(cell, Mapping) else str(cell or "")

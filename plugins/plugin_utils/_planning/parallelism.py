# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine may be divided over GPUs, and which GPUs to take. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .dimensions import Dimensions
from .estimate import GIB
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


def divisors(shape: Dimensions, most: int, expert_parallel: bool = False, engines: int = 1) -> list[int]:
    """The tensor parallel sizes up to most by which the model can be divided."""
    return [size for size in range(1, most + 1) if not division_faults(shape, size, expert_parallel, engines)]


def division_faults(
    shape: Dimensions, tensor_parallel_size: int, expert_parallel: bool = False, engines: int = 1
) -> list[str]:
    """Why the model cannot be divided by so many GPUs; empty where it can.

    The rules are vLLM's own: attention heads and padded vocabulary must divide (config/model.py,
    vocab_parallel_embedding.py), key-value heads divide or are repeated, the widths of the MLPs must divide, and with
    block-wise FP8 each part must hold whole blocks (quantization/fp8.py).
    """
    size = tensor_parallel_size
    if size * engines == 1:
        return []
    padded = -(-shape.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    faults = [f"the vocabulary, padded to {padded}, is not divisible by {size}"] if padded % size else []
    block = block_size(shape.quantization)
    for kind, width in shape.divided_sizes:
        if kind != "expert width":
            faults += _size_faults(kind, width, size, block)
        elif not expert_parallel:
            # Experts are cut over the GPUs of all data parallel engines.
            faults += _size_faults(kind, width, size * engines, block)
    return faults


def _size_faults(kind: str, width: int, size: int, block: int | None) -> list[str]:
    if kind == "heads":
        return [f"{width} attention heads are not divisible by {size}"] if width % size else []
    if kind == "key-value heads":
        apart = width % size and size % width
        return [f"{width} key-value heads and {size} GPUs do not divide each other"] if apart else []
    if width % size:
        return [f"the {kind} {width} is not divisible by {size}"]
    if block and width // size % block:
        return [f"the {kind} {width} over {size} GPUs holds no whole blocks of {block} (block-wise FP8)"]
    return []


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
    engines_here: int = 1,
) -> Iterator[Layout]:
    """The layouts to try, in the order of preference: one GPU, the fewest GPUs of one host, then over hosts.

    tensor, pipeline and engines (the data parallel size) are pins; engines_here of them stand on one host. There tensor
    parallelism comes first; pipeline stages are for what cannot be divided evenly, and for several hosts (tensor
    parallelism within a host, one or more stages a host).
    """
    seen = set()
    chosen: dict[tuple[int, int], tuple[Gpu, ...]] = {}
    for tp, pp, span in _sizes(
        hosts, tensor, pipeline, partial(divisors, shape, expert_parallel=expert_parallel, engines=engines)
    ):
        if (tp, pp, span) in seen or (shape.num_layers and pp > shape.num_layers):
            continue
        seen.add((tp, pp, span))
        wanted = (tp * pp * engines_here, span)
        if wanted not in chosen:
            chosen[wanted] = _choose(hosts, *wanted) if span == 1 or engines_here == 1 else ()
        if chosen[wanted]:
            yield Layout(tp, pp, chosen[wanted], engines_here)


def _sizes(
    hosts: Sequence[Host], tensor: int | None, pipeline: int | None, sizes_to: Callable[[int], list[int]]
) -> Iterator[tuple[int, int, int]]:
    """(tensor, pipeline, hosts), in order of preference. sizes_to gives the tensor parallel sizes up to a number."""
    hosts = [host if not any(gpu.divided for gpu in host.gpus) else _alone(host) for host in hosts]
    most = max((len(host.gpus) for host in hosts), default=0)
    degrees = [tensor] if tensor else sizes_to(most)
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


@dataclass(frozen=True)
class Card:
    """What the choice among the GPUs of a host depends on. Free memory counts in steps of 1 GiB: a few MiB more or less
    on an idle card must not move an engine."""

    index: int
    kind: tuple[str, int]
    free_steps: int
    numa_node: int | None


def nearest(host: Host, count: int) -> tuple[Gpu, ...]:
    """The count GPUs of a host to take: of one kind, those with the most free memory, near to each other."""
    if count >= len(host.gpus):
        return host.gpus
    if count == 1:
        return (max(host.gpus, key=lambda gpu: gpu.free_bytes // GIB),)
    cards = tuple(
        Card(gpu.index, (gpu.name, gpu.total_bytes // GIB), gpu.free_bytes // GIB, gpu.numa_node) for gpu in host.gpus
    )
    links = tuple(tuple(link(host, left.index, right.index) for right in cards) for left in cards)
    return tuple(host.gpus[position] for position in _positions(cards, links, count))


@functools.lru_cache(maxsize=4096)
def _positions(cards: tuple[Card, ...], links: tuple[tuple[str, ...], ...], count: int) -> tuple[int, ...]:
    """The positions of the cards to take. The hosts of a fleet are mostly alike, so that each kind is compared once."""
    apart = [
        [0 if left.index == right.index else distance(links[row][column]) for column, right in enumerate(cards)]
        for row, left in enumerate(cards)
    ]
    return max(_subsets(cards, count, apart), key=lambda positions: _score(cards, positions, apart))


def _subsets(cards: Sequence[Card], count: int, apart: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    if len(cards) <= EXHAUSTIVE_GPUS:
        yield from itertools.combinations(range(len(cards)), count)
        return
    for first in range(len(cards)):
        near = sorted(range(len(cards)), key=lambda other: (-cards[other].free_steps, apart[first][other], other))
        yield tuple(sorted(near[:count]))


def _score(
    cards: Sequence[Card], positions: Sequence[int], apart: Sequence[Sequence[int]]
) -> tuple[int, int, int, int]:
    """Larger is better: one kind of card, the least free memory among them, the sum of distances."""
    taken = [cards[position] for position in positions]
    total = sum(apart[left][right] for left, right in itertools.combinations(positions, 2))
    kinds, nodes = {card.kind for card in taken}, {card.numa_node for card in taken}
    return -len(kinds), min(card.free_steps for card in taken), -total, -len(nodes)


def distance(name: str) -> int:
    """How far two GPUs with that link are apart: NVLink 1 to 19 by its number of links, then PCIe, then the unknown."""
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

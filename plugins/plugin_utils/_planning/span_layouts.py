# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How one engine may be divided over the hosts that it spans. Private to the collection gpufleet.vllm.

Every host takes part with as many GPUs, for vLLM gives each the same number of ranks (vllm/config/parallel.py,
local_world_size). Within a host the GPUs share layers (tensor parallel), from host to host the layers go on in stages
(pipeline parallel): stages send one activation a token over the network, tensor parallelism two all-reduces a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .estimate import GIB
from .hosts import Host
from .parallelism import Layout, divisors, nearest

if TYPE_CHECKING:
    from .case import Case


def span_layouts(case: Case) -> Iterator[Layout]:
    """The layouts to try: the fewest stages first, of equals the fewest GPUs.

    One stage a host, whose GPUs share its layers; more stages only where the GPUs of a host do not divide the model
    evenly, in the end tensor parallel 1 and a stage for each GPU. A pinned tensor parallel size divides layers over the
    network only where no host has so many GPUs.
    """
    per_host = min((len(host.gpus) for host in case.hosts), default=0)
    found: dict[tuple[int, int], int] = {}
    for count in range(1, per_host + 1):
        for tensor, pipeline in _sizes(case, count):
            found.setdefault((tensor, pipeline), count)
    order = sorted(found.items(), key=lambda item: (item[0][0] > item[1], item[0][1], item[1]))
    for (tensor, pipeline), count in order:
        gpus = tuple(gpu for host in case.hosts for gpu in nearest(host, count))
        yield Layout(tensor, pipeline, gpus, case.engines)


def _sizes(case: Case, count: int) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline) that take exactly count GPUs of each host."""
    total = count * len(case.hosts)
    if total % case.engines:
        return
    size = total // case.engines
    pinned_tensor, pinned_pipeline = (case.pins.integer(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    expert_parallel = bool(case.pins.flag("enable_expert_parallel"))
    tensors = [pinned_tensor] if pinned_tensor else divisors(case.shape, count, expert_parallel, case.engines)
    for tensor in tensors:
        pipeline = size // tensor
        fits = tensor * pipeline == size and pinned_pipeline in (None, pipeline)
        # Without a pin no layer is divided over the network.
        if fits and (pinned_tensor or count % tensor == 0) and pipeline <= (case.shape.num_layers or pipeline):
            yield tensor, pipeline


def span_rules(case: Case) -> list[str]:
    """Why these hosts cannot be one engine, whatever the memory."""
    if not case.spans:
        return []
    kinds = {host.name: _cards(host) for host in case.hosts}
    rules = []
    if len({kind for kind in kinds.values() if kind}) > 1:
        told = "; ".join(f"{name} has {', '.join(cards)}" for name, cards in kinds.items())
        rules.append(
            f"span: the hosts have different cards ({told}): every stage is as large as on the smallest, and waits for "
            "the slowest; span hosts of one kind, or choose cards of one kind with the instance's gpus"
        )
    if any(gpu.divided for host in case.hosts for gpu in host.gpus):
        rules.append("span: MIG devices work alone, NCCL does not connect them; span hosts with whole cards")
    if case.engines > 1 and case.engines % len(case.hosts):
        rules.append(
            f"span: data_parallel_size {case.engines} is not divisible by {len(case.hosts)} hosts; each runs as many "
            "engines"
        )
    return rules


def _cards(host: Host) -> tuple[str, ...]:
    return tuple(sorted({f"{gpu.name} ({round(gpu.total_bytes / GIB)} GiB)" for gpu in host.gpus}))

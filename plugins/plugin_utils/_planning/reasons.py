# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why an engine is divided as it is: what was pinned, what does not fit, what cannot be divided. Private."""

from __future__ import annotations

from .case import Case
from .parallelism import division_faults
from .search import Choice


def why_one_gpu(case: Case, choice: Choice) -> str:
    """Why one GPU is taken and not more."""
    if "tensor_parallel_size" in case.pins or "pipeline_parallel_size" in case.pins:
        return _pinned(case, "tensor_parallel_size", "pipeline_parallel_size")
    if case.set_aside and not choice.reduced:
        return "the promise fits there; the weaker cards would lower the precision"
    if sum(len(host.gpus) for host in case.hosts) == 1:
        return "it is the only one that may be used"
    if choice.reduced:
        return "no division of the GPUs here keeps the whole promise, and this keeps as much as any"
    return "the promise fits there; more GPUs are capacity, not speed"


def why_divided(case: Case, choice: Choice) -> str:
    """Why several GPUs are taken, and in this division."""
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    found = [why_tensor_parallel(case, choice), why_pipeline_parallel(case, choice)]
    return "; ".join(reason for reason in found if reason) or _pinned(case, *sizes)


def why_tensor_parallel(case: Case, choice: Choice) -> str:
    """Why so many GPUs share every layer; empty for one GPU and for a pin."""
    layout = choice.start.layout
    if layout.tensor_parallel_size == 1 or "tensor_parallel_size" in case.pins:
        return ""
    pinned = _pinned(case, "pipeline_parallel_size", "data_parallel_size")
    condition = f"{pinned}; " if pinned else ""
    if choice.reduced:
        return f"{condition}no division of the GPUs here keeps the whole promise; this keeps the most of it"
    return f"{condition}the promise does not fit on fewer GPUs; {layout.tensor_parallel_size} share every layer"


def why_pipeline_parallel(case: Case, choice: Choice) -> str:
    """Why the layers go in stages; empty for one stage and for a pin."""
    layout = choice.start.layout
    tensor, stages = layout.tensor_parallel_size, layout.pipeline_parallel_size
    if stages == 1 or "pipeline_parallel_size" in case.pins:
        return ""
    if case.spans:
        return f"the instance spans {layout.hosts} hosts; the layers go in {stages} stages over them"
    if layout.hosts > 1:
        return (
            f"no single host keeps as much of the promise; the layers go in {stages} stages over {layout.hosts} hosts"
        )
    pinned = _pinned(case, "tensor_parallel_size")
    if pinned:
        return f"{pinned}; further GPUs can only take layers of their own, in {stages} stages"
    size = tensor * stages
    faults = division_faults(case.shape, size, bool(case.pins.flag("enable_expert_parallel")), case.engines)
    if faults:
        return f"the layers go in {stages} stages, for the model cannot be divided by {size}: {faults[0]}"
    return f"the layers go in {stages} stages, for divided by {size} the engine keeps less of the promise"


def _pinned(case: Case, *names: str) -> str:
    return ", ".join(f"{name} is pinned to {case.pins.integer(name)}" for name in names if name in case.pins)

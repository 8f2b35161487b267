# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether one start of an engine is better than another: by more than the noise. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .._report.columns import plain
from .case import TuningError

Run = Mapping[str, Any]
"""What one run of the benchmark measured: the objective, and the latencies that have bounds."""


@dataclass(frozen=True)
class Mark:
    """What several runs on one start tell.

    score: mean of the objective for each card. spread: largest less smallest run, as a share of the mean. excess: by
    what share the worst bound is exceeded; 0 where all are kept. broken: the bounds that are not kept, in words.
    """

    score: float
    spread: float
    excess: float
    broken: tuple[str, ...]


def mark(runs: Sequence[Run], maximize: str, bounds: Mapping[str, float], cards: int) -> Mark:
    """The mark of the runs on a start that took so many cards. Raises TuningError for a figure that is missing."""
    values = [_figure(run, maximize) for run in runs]
    mean = fmean(values)
    excess, broken = 0.0, []
    for name, bound in sorted(bounds.items()):
        measured = fmean(_figure(run, name) for run in runs)
        if measured > bound:
            excess = max(excess, measured / bound - 1)
            broken.append(f"{name} {plain(measured)} is above {plain(bound)}")
    return Mark(mean / cards, (max(values) - min(values)) / mean if mean else 0.0, excess, tuple(broken))


def _figure(run: Run, name: str) -> float:
    value = run.get(name)
    if value is None:
        raise TuningError(f"the benchmark of this release measures no {name}. Next: take another bound or objective")
    return float(value)


def compare(candidate: Mark, best: Mark, noise: float) -> tuple[bool, str]:
    """Whether the candidate is better, and why in words. noise: as a share; what differs by less counts as equal."""
    if best.broken and not candidate.broken:
        return True, "keeps the bounds"
    if candidate.broken and candidate.excess < best.excess - noise:
        return True, "nearer to the bounds"
    if candidate.broken:
        return False, "; ".join(candidate.broken)
    gain = candidate.score / best.score - 1 if best.score else 0.0
    if gain > noise:
        return True, f"{gain:+.1%}, above the noise of {noise:.1%}"
    return False, f"{gain:+.1%} is no gain" if gain < -noise else f"{gain:+.1%} is within the noise of {noise:.1%}"

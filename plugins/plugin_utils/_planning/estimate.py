# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A number of bytes with its interval and its source. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

GIB = 2**30
MIB = 2**20

SOURCES = ("exact", "receipt", "calibrated", "extrapolated", "unverified")
"""From the surest to the least sure. A sum is as sure as its least sure term."""


@dataclass(frozen=True)
class Estimate:
    """Bytes: the expected value, and the bounds between which the measured value lies in 95 of 100 starts."""

    value: float
    low: float
    high: float
    source: str = "calibrated"

    @classmethod
    def exact(cls, value: float) -> Estimate:
        return cls(value, value, value, "exact")

    @classmethod
    def around(cls, value: float, below: float, above: float, source: str = "calibrated") -> Estimate:
        """value with absolute deviations below and above it."""
        return cls(value, value - below, value + above, source)

    def widened(self, factor: float, source: str) -> Estimate:
        """The same value, its interval wider by factor, of at most the sureness of source."""
        return Estimate(
            self.value,
            self.value - (self.value - self.low) * factor,
            self.value + (self.high - self.value) * factor,
            least_sure((self.source, source)),
        )

    def moved(self, shift: float) -> Estimate:
        """Value and bounds, all moved by as many bytes."""
        return Estimate(self.value + shift, self.low + shift, self.high + shift, self.source)

    def at_least(self, floor: float) -> Estimate:
        """No value or bound below floor (memory is never negative)."""
        return Estimate(max(self.value, floor), max(self.low, floor), max(self.high, floor), self.source)

    def as_gib(self) -> dict[str, float | str]:
        """The form of the contract: GiB, rounded to 1 MiB."""
        return {
            "value": round(self.value / GIB, 3),
            "low": round(self.low / GIB, 3),
            "high": round(self.high / GIB, 3),
            "source": self.source,
        }


def least_sure(sources: Iterable[str]) -> str:
    return max(sources, key=SOURCES.index)


def total(terms: Iterable[Estimate]) -> Estimate:
    """The sum of independent terms: their deviations add up as squares, for all of them are never at an end at once."""
    parts = tuple(terms)
    value = math.fsum(part.value for part in parts)
    below = math.hypot(*(part.value - part.low for part in parts))
    above = math.hypot(*(part.high - part.value for part in parts))
    return Estimate(value, value - below, value + above, least_sure(part.source for part in parts))


def remainder(whole: float, terms: Iterable[Estimate]) -> Estimate:
    """What is left of a known number of bytes when the terms are taken off: high terms make a low remainder."""
    taken = total(terms)
    return Estimate(whole - taken.value, whole - taken.high, whole - taken.low, taken.source)

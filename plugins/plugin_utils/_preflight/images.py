# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the driver and the cards of a host run the pinned images. Private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._catalogue import Release, UnknownRelease, matrix
from .case import Case, Check, Engine, limits

SUBJECTS = {"driver": "driver_for_image", "compute_capability": "card_for_image"}
STATUS = {"supported": "ok", "degraded": "warning", "unverified": "warning", "unsupported": "failed"}


def images(case: Case) -> Iterator[Check]:
    """Each image against the driver (minor-version and forward compatibility) and against the cards' kernels."""
    by_image: dict[str, list[Engine]] = {}
    for engine in case.engines:
        by_image.setdefault(engine.image, []).append(engine)
    for image, engines in by_image.items():
        release = engines[0].find_release()
        if isinstance(release, UnknownRelease):
            fix = "an image whose tag is a release of the catalogue"
            yield Check("release", "failed", str(release), f"image {image} of {_names(engines)}", fix)
        elif _working(case):
            yield from _image(case, release, engines)


def _working(case: Case) -> list[Mapping[str, Any]]:
    """What does not work is said elsewhere, and tells nothing of itself."""
    return [gpu for gpu in case.gpus if gpu.get("state") in (None, "ok")]


def _image(case: Case, release: Release, engines: list[Engine]) -> Iterator[Check]:
    facts = {**case.facts, "gpus": _working(case), "machine": case.resources.get("machine")}
    where = f"image {engines[0].image} of {_names(engines)}"
    for row in matrix(release, facts):
        status, fix = STATUS[row["status"]], ""
        if row["subject"] == "driver" and row["status"] == "degraded":
            status, fix = _condition(row["reason"], engines)
        elif status == "failed":
            fix = (
                "update the driver, or pin an image that this host runs"
                if row["subject"] == "driver"
                else "pin an image that has them, or use other cards"
            )
        yield Check(SUBJECTS[row["subject"]], status, row["reason"], where, fix)


def _condition(reason: str, engines: list[Engine]) -> tuple[str, str]:
    """An older driver runs the image on conditions that the catalogue's reason names: the instances must meet them."""
    needed = [name for name in limits()["compatibility_variables"] if name in reason]
    lacking = [engine for engine in engines if not all(_is_on(engine.environment.get(name)) for name in needed)]
    if not lacking:
        return "warning", "a newer driver, which needs no such help"
    return (
        "failed",
        f"set environment ({', '.join(needed)}) of {_names(lacking)} in vllm_instances, or update the driver",
    )


def _is_on(value: str | None) -> bool:
    return (value or "").lower() not in ("", "0", "false")


def _names(engines: list[Engine]) -> str:
    return ", ".join(engine.name for engine in engines)

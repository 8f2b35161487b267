# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan against the plan that runs, argument by argument. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT = "(default)"
"""Shown for an argument that is not given: vLLM does what the release does by itself."""

LAUNCHED = ("image", "checkpoint", "served_model_name", "address", "port")
"""What the launch command takes from a plan beside arguments, further words, environment and GPUs."""


@dataclass(frozen=True)
class Difference:
    """One line: what differs, as it runs, as it is planned."""

    name: str
    running: str
    planned: str


def differences(running: Mapping[str, Any], planned: Mapping[str, Any]) -> list[Difference]:
    """Everything of the launch command that differs; the engine restarts if it is deployed and the list is not empty.

    Both are items of what the filter plan returns. What only predicts (budget, decisions) starts no engine anew.
    """
    return [
        Difference(name, before, after)
        for name, before, after in _pairs(dict(_launch(running)), dict(_launch(planned)))
        if before != after
    ]


def _pairs(running: Mapping[str, str], planned: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in [*planned, *(name for name in running if name not in planned)]:
        yield name, running.get(name, DEFAULT), planned.get(name, DEFAULT)


def _launch(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in LAUNCHED:
        yield name, written(plan.get(name))
    for host, uuids in (plan.get("devices") or {}).items():
        yield f"GPUs of {host}", ", ".join(map(str, uuids))
    for argument in plan.get("arguments") or ():
        yield argument["name"], written(argument["value"])
    if plan.get("extra_args"):
        yield "extra_args", " ".join(map(str, plan["extra_args"]))
    for variable, value in sorted((plan.get("environment") or {}).items()):
        yield f"environment {variable}", str(value)


def written(value: Any) -> str:
    """A value as it is written on a command line; JSON for what is no plain word."""
    return value if isinstance(value, str) else json.dumps(value)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /metrics of an engine tells of its requests. Private to the collection.

Names are those of ``vllm/v1/metrics/loggers.py`` of 0.9 to 0.33 and of engine V0; a figure that a release does not
have is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>[^ ]+)(?: \d+)?$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Of several engines behind one front end (data parallelism) the sums count, and the fullest cache.
_FIGURES: dict[str, tuple[tuple[str, ...], Callable[[list[float]], float]]] = {
    "running": (("vllm:num_requests_running",), sum),
    "waiting": (("vllm:num_requests_waiting",), sum),
    "kv_cache_usage": (("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), max),
    "preemptions": (("vllm:num_preemptions_total", "vllm:num_preemptions"), sum),
    "prompt_tokens": (("vllm:prompt_tokens_total",), sum),
    "generation_tokens": (("vllm:generation_tokens_total",), sum),
    "finished": (("vllm:request_success_total",), sum),
}


@dataclass(frozen=True)
class Metrics:
    """One look at /metrics. kv_cache_usage is a share from 0 to 1; the counters count from the start of the engine."""

    running: float | None
    waiting: float | None
    kv_cache_usage: float | None
    preemptions: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    finished: float | None
    deferred: float
    num_gpu_blocks: int | None
    block_size: int | None


def parse_metrics(text: str) -> Metrics | None:
    """Returns the figures of one answer of /metrics, or None if it is none of vLLM's."""
    values, deferred, config = _samples(text)
    if not any(name.startswith("vllm:") for name in values):
        return None
    figures: dict[str, float | None] = {}
    for figure, (names, combine) in _FIGURES.items():
        found = next((values[name] for name in names if name in values), None)
        figures[figure] = combine(found) if found else None
    return Metrics(
        **figures,
        deferred=deferred,
        num_gpu_blocks=_whole(config.get("num_gpu_blocks")),
        block_size=_whole(config.get("block_size")),
    )


def _samples(text: str) -> tuple[dict[str, list[float]], float, dict[str, str]]:
    values: dict[str, list[float]] = {}
    config: dict[str, str] = {}
    deferred = 0.0
    for line in text.splitlines():
        match = _SAMPLE.match(line.strip())
        if match is None:
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        if match["name"] == "vllm:cache_config_info":
            config = labels
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if match["name"] == "vllm:num_requests_waiting_by_reason" and labels.get("reason") == "deferred":
            deferred += value
        values.setdefault(match["name"], []).append(value)
    return values, deferred, config


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of /metrics, with the names that the release has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import wording
from .engine import Engine

# name, kind, first release, first release without it, what it says
_METRICS = (
    ("num_requests_running", "gauge", "0.9.0", None, "Number of requests in model execution batches."),
    ("num_requests_waiting", "gauge", "0.9.0", None, "Number of requests waiting to be processed."),
    ("gpu_cache_usage_perc", "gauge", "0.9.0", "0.12.0", "GPU KV-cache usage. 1 means 100 percent usage."),
    ("kv_cache_usage_perc", "gauge", "0.9.2", None, "KV-cache usage. 1 means 100 percent usage."),
    (
        "prefix_cache_queries_total",
        "counter",
        "0.9.2",
        None,
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    ("prefix_cache_hits_total", "counter", "0.9.2", None, "Prefix cache hits, in terms of number of cached tokens."),
    ("num_preemptions_total", "counter", "0.9.0", None, "Cumulative number of preemption from the engine."),
    ("prompt_tokens_total", "counter", "0.9.0", None, "Number of prefill tokens processed."),
    ("generation_tokens_total", "counter", "0.9.0", None, "Number of generation tokens processed."),
    ("request_success_total", "counter", "0.9.0", None, "Count of successfully processed requests."),
    ("time_to_first_token_seconds", "histogram", "0.9.0", None, "Histogram of time to first token in seconds."),
    ("e2e_request_latency_seconds", "histogram", "0.9.0", None, "Histogram of e2e request latency in seconds."),
)


def text(engine: Engine, release: str, replaced: Mapping[str, Any]) -> str:
    """Returns /metrics. replaced: values in place of those counted, by the names of the metrics without "vllm:"."""
    values = {**_values(engine), **replaced}
    label = f'engine="0",model_name="{engine.config["served_model_name"][0]}"'
    rows: list[str] = []
    for name, kind, first, gone, said in _METRICS:
        if wording.since(release, first) and not (gone and wording.since(release, gone)):
            rows += [
                f"# HELP vllm:{name} {said}",
                f"# TYPE vllm:{name} {kind}",
                *_samples(name, kind, label, values[name]),
            ]
    rows += [
        "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{block_size="16",cache_dtype="{engine.config["kv_cache_dtype"]}",engine="0",'
        f'gpu_memory_utilization="{engine.config["gpu_memory_utilization"]}",'
        f'num_gpu_blocks="{engine.kv_tokens // 16}"}} 1.0',
    ]
    return "\n".join(rows) + "\n"


def _values(engine: Engine) -> dict[str, Any]:
    counts = engine.counts
    usage = min(counts.tokens_in_cache / max(engine.kv_tokens, 1), 1.0)
    finished = counts.stopped + counts.cut
    return {
        "num_requests_running": counts.running,
        "num_requests_waiting": counts.waiting,
        "gpu_cache_usage_perc": usage,
        "kv_cache_usage_perc": usage,
        "prefix_cache_queries_total": counts.prompt_tokens,
        "prefix_cache_hits_total": 0,
        "num_preemptions_total": 0,
        "prompt_tokens_total": counts.prompt_tokens,
        "generation_tokens_total": counts.generated_tokens,
        "request_success_total": {"stop": counts.stopped, "length": counts.cut, "abort": 0},
        "time_to_first_token_seconds": (counts.first_token_seconds, finished),
        "e2e_request_latency_seconds": (counts.request_seconds, finished),
    }


def _samples(name: str, kind: str, label: str, value: Any) -> list[str]:
    if kind == "histogram":
        total, count = value
        return [
            f'vllm:{name}_bucket{{{label},le="+Inf"}} {float(count)}',
            f"vllm:{name}_count{{{label}}} {float(count)}",
            f"vllm:{name}_sum{{{label}}} {float(total)}",
        ]
    if isinstance(value, dict):
        return [f'vllm:{name}{{{label},finished_reason="{reason}"}} {float(one)}' for reason, one in value.items()]
    return [f"vllm:{name}{{{label}}} {float(value)}"]

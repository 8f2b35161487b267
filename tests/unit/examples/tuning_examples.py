# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tuning for the tests of the filters: an engine that becomes faster up to 32 sequences, and fails with more."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._tuning import next_step, row_of

PROBLEM: dict[str, Any] = {
    "instance": {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "workload": {"context": 4096, "sequences": 64}},
    "plan": {
        "name": "chat",
        "verdict": "fits",
        "release": {"version": "0.32.0"},
        "kv": {"max_model_len": 4096},
        "arguments": [
            {"name": "gpu_memory_utilization", "value": 0.9},
            {"name": "max_num_seqs", "value": 8},
            {"name": "max_num_batched_tokens", "value": 2048},
        ],
    },
    "hosts": [{"gpus": [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "memory_total_mib": 81920}]}],
    "checkpoint": {"max_model_len": 40960, "num_attention_heads": 32},
    "parameters": ["max_num_seqs", "kv_cache_dtype"],
    "bounds": {"p99_ttft_ms": 900},
}


def result(step: dict[str, Any]) -> dict[str, Any]:
    sequences = step["changes"].get("engine_args.max_num_seqs", 8)
    if sequences > 32:
        finding = {"title": "The GPU ran out of memory while the sampler was warmed up", "change": None}
        return {"outcome": "failed", "minutes": 2, "finding": finding}
    runs = [
        {"output_throughput": 30.0 * sequences + jitter, "p99_ttft_ms": 10.0 * sequences} for jitter in (0.0, 1.0, 2.0)
    ]
    receipt = {"release": "0.32.0", "card": "NVIDIA A100-SXM4-80GB", "measured": {"kv_tokens": 100000 - sequences}}
    return {"outcome": "serves", "minutes": 3, "runs": runs, "receipt": receipt}


def tuned(steps: int = 100) -> list[dict[str, Any]]:
    """The ledger of the tuning, with its end if it has so many steps."""
    rows: list[dict[str, Any]] = []
    for _step in range(steps):
        step = next_step(PROBLEM, rows)
        if step["verdict"] != "try":
            return [*rows, {**step, "kind": "tune", "stage": "end"}]
        rows.append(row_of(PROBLEM, rows, step, result(step)))
    return rows

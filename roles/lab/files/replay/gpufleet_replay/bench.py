# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm bench serve`, as far as tuning needs it: real requests to the replay engine, and a result in vLLM's form.

It says what the replay engine does under load: how many answers at a time, how long a token takes. Nothing of vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

_MS = 1000.0


def main(words: list[str]) -> int:
    """Sends the requests and writes the result; returns the exit code. words: what follows `vllm bench serve`."""
    given = _arguments().parse_args(words)
    began = time.monotonic()
    with ThreadPoolExecutor(given.max_concurrency) as pool:
        answers = list(pool.map(lambda number: _request(given, number), range(given.num_prompts)))
    result = _result(given, [answer for answer in answers if answer], time.monotonic() - began)
    (Path(given.result_dir) / given.result_filename).write_text(json.dumps(result), encoding="utf-8")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vllm bench serve")
    for name in ("base-url", "model", "served-model-name", "dataset-name", "percentile-metrics", "metric-percentiles"):
        parser.add_argument(f"--{name}", required=True)
    for name in (
        "random-input-len",
        "random-output-len",
        "random-prefix-len",
        "num-prompts",
        "max-concurrency",
        "seed",
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("result-dir", "result-filename"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("ignore-eos", "disable-tqdm", "save-result"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser


def _request(given: argparse.Namespace, number: int) -> list[float] | None:
    """Seconds from the request to each token of its answer; None where it was not answered."""
    words = ["word"] * (given.random_prefix_len + given.random_input_len - 1)
    body = {
        "model": given.served_model_name,
        "prompt": " ".join([*words, str(number)]),
        "max_tokens": given.random_output_len,
        "ignore_eos": given.ignore_eos,
        "stream": True,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(f"{given.base_url}/v1/completions", json.dumps(body).encode(), headers)
    began, times = time.monotonic(), []
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            times = [time.monotonic() - began for line in response if line.startswith(b'data: {"')]
    except OSError:
        return None
    return times or None


def _result(given: argparse.Namespace, answers: list[list[float]], duration: float) -> dict[str, Any]:
    prompt_tokens = len(answers) * (given.random_prefix_len + given.random_input_len)
    tokens = len(answers) * given.random_output_len
    gaps = [later - sooner for times in answers for sooner, later in zip(times, times[1:])]
    latencies = {
        "ttft": [times[0] for times in answers],
        "tpot": [(times[-1] - times[0]) / max(1, len(times) - 1) for times in answers],
        "itl": gaps,
        "e2el": [times[-1] for times in answers],
    }
    return {
        "duration": duration,
        "completed": len(answers),
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": tokens,
        "request_throughput": len(answers) / duration,
        "output_throughput": tokens / duration,
        "total_token_throughput": (prompt_tokens + tokens) / duration,
        **{
            f"{name}_{latency}_ms": _MS * of(seconds)
            for latency, seconds in latencies.items()
            for name, of in _STATISTICS
        },
    }


def _percentile(share: float) -> Callable[[list[float]], float]:
    def of(values: list[float]) -> float:
        return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0

    return of


_STATISTICS: tuple[tuple[str, Callable[[list[float]], float]], ...] = (
    ("mean", lambda values: sum(values) / len(values) if values else 0.0),
    ("median", _percentile(0.5)),
    ("p90", _percentile(0.9)),
    ("p95", _percentile(0.95)),
    ("p99", _percentile(0.99)),
)

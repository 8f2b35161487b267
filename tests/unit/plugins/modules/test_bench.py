# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from ansible_collections.gpufleet.vllm.plugins.modules import bench

PARAMS = {
    "name": "chat",
    "task": "generate",
    "served_model_name": "chat",
    "model": "/models/qwen",
    "port": 8000,
    "input_tokens": 90,
    "output_tokens": 10,
    "prefix_tokens": 0,
    "concurrency": 8,
    "prompts": 32,
    "repeats": 3,
    "timeout": 60,
}
# What vLLM 0.32.0 wrote for a run, with the figures that are used.
RESULT = {
    "duration": 4.20004,
    "total_input_tokens": 2880,
    "total_output_tokens": 320,
    "request_throughput": 7.61897,
    "output_throughput": 76.1897,
    "total_token_throughput": 761.897,
    "mean_ttft_ms": 210.12345,
    "median_ttft_ms": 200.0,
    "p90_ttft_ms": 300.0,
    "p95_ttft_ms": 310.0,
    "p99_ttft_ms": 320.0,
}


class Docker:
    """Answers as `docker exec` does."""

    def __init__(self, status=0, output="", result="whole"):
        self.commands, self._status, self._output = [], status, output
        self._result = RESULT if result == "whole" else result

    def __call__(self, command, **_options):
        self.commands.append(command)
        if "cat" in command:
            sent = int(self.runs[-1][self.runs[-1].index("--num-prompts") + 1])
            result = {"completed": sent, **self._result} if self._result else None
            return SimpleNamespace(returncode=0, stdout=json.dumps(result) if result else "", stderr="")
        if "rm" in command:
            return SimpleNamespace(returncode=0, stdout="", stderr="")
        return SimpleNamespace(returncode=self._status, stdout=self._output, stderr="")

    @property
    def runs(self):
        return [command for command in self.commands if "/bin/sh" in command]


def run(docker, metrics="", **params):
    return bench.bench(bench.Container("chat", docker), {**PARAMS, **params}, lambda: metrics)


def test_a_short_run_comes_first_and_is_not_counted():
    docker = Docker()
    assert len(run(docker)) == 3
    prompts = [command[command.index("--num-prompts") + 1] for command in docker.runs]
    assert prompts == ["4", "32", "32", "32"]


def test_the_figures_of_a_run():
    figures = run(Docker())[0]
    assert (figures["output_throughput"], figures["p99_ttft_ms"], figures["mean_ttft_ms"]) == (76.19, 320.0, 210.123)
    assert figures["p99_tpot_ms"] is None


def test_an_engine_that_embeds_is_sent_prompts_alone():
    docker = Docker()
    run(docker, task="embed")
    command = docker.runs[-1]
    assert command[command.index("--backend") + 1] == "openai-embeddings"
    assert command[command.index("--endpoint") + 1] == "/v1/embeddings"
    assert command[command.index("--percentile-metrics") + 1] == "e2el"
    assert "--ignore-eos" not in command


def test_the_key_is_in_no_argument():
    docker = Docker()
    run(docker)
    command = docker.runs[0]
    assert command[:5] == ["docker", "exec", "vllm-chat", "/bin/sh", "-c"]
    assert 'OPENAI_API_KEY="${VLLM_API_KEY:-}"' in command[5]
    assert "--api-key" not in command and not any("Bearer" in word for word in command)


def test_preemptions_are_those_of_the_run():
    counts = iter([3, 3, 3, 5, 5, 5])
    runs = bench.bench(
        bench.Container("chat", Docker()),
        PARAMS,
        lambda: f'vllm:num_preemptions_total{{engine="0",model_name="chat"}} {next(counts)}.0\n',
    )
    assert [figures["preemptions"] for figures in runs] == [0, 2, 0]
    assert run(Docker(), metrics="")[0]["preemptions"] is None


@pytest.mark.parametrize(
    ("docker", "said"),
    [
        (Docker(status=2, output="usage\nvllm: error: invalid choice: 'bench'"), "invalid choice: 'bench'"),
        (Docker(status=124), "longer than 60 s"),
        (Docker(result=None), "wrote no result"),
        (Docker(result={**RESULT, "completed": 0}), "of 4 requests none were answered"),
        (Docker(result={**RESULT, "completed": 3}), "of 4 requests 3 were answered"),
    ],
)
def test_a_run_that_measured_nothing_is_told(docker, said):
    with pytest.raises(bench.BenchError, match=said):
        run(docker)

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measures a running engine with vLLM's own benchmark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench
short_description: Measures a running engine with vLLM's own benchmark
description:
  - Runs C(vllm bench serve) inside of the engine's container several times, each time with the same number of requests
    of the same random tokens, and returns what it measured.
  - A short run before warms the engine up and is not counted.
  - The API key stays in the container. It is taken from the engine's environment and is in no argument.
  - The load is real. Whoever uses the engine at the same time waits longer, and disturbs what is measured.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
options:
  name:
    description:
      - Name of the instance. Its container is C(vllm-NAME).
    type: str
    required: true
  task:
    description:
      - What the engine is for. One that embeds is sent the prompts alone, and O(output_tokens) is of no account.
    type: str
    choices: [generate, embed]
    default: generate
  served_model_name:
    description:
      - Model name that clients use.
    type: str
    required: true
  model:
    description:
      - Folder of the checkpoint in the container, for its tokenizer.
    type: str
    required: true
  address:
    description:
      - Address on which the instance is published, for its C(/metrics).
    type: str
    default: 127.0.0.1
  port:
    description:
      - Port of the engine, in the container and where it is published.
    type: int
    default: 8000
  input_tokens:
    description:
      - Random tokens of each prompt, beside O(prefix_tokens).
    type: int
    default: 512
  output_tokens:
    description:
      - Tokens of each answer. None ends before.
    type: int
    default: 128
  prefix_tokens:
    description:
      - Tokens at the beginning of each prompt that all prompts share.
    type: int
    default: 0
  concurrency:
    description:
      - How many requests are sent at once at most.
    type: int
    default: 32
  prompts:
    description:
      - How many requests a run sends.
    type: int
    default: 128
  repeats:
    description:
      - How many runs are counted.
    type: int
    default: 3
  timeout:
    description:
      - Seconds that one run may take. Then it is ended.
    type: int
    default: 900
notes:
  - Needs vLLM v0.9.0 or later, whose images have C(vllm bench). For engines that embed its benchmark must have the
    backend C(openai-embeddings).
  - A run in which a request was not answered counts as none. What is slow to answer would be missing in its figures.
seealso:
  - plugin: gpufleet.vllm.tune_step
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Measure the engine
  gpufleet.vllm.bench:
    name: chat
    served_model_name: chat
    model: /models/Qwen3-8B
    input_tokens: 900
    output_tokens: 100
    concurrency: 32
  register: bench

- name: Show how fast it is
  ansible.builtin.debug:
    msg: "{{ bench.runs | map(attribute='output_throughput') | list }}"
"""

RETURN = r"""
runs:
  description: What each run measured.
  returned: success
  type: list
  elements: dict
  sample:
    - output_throughput: 812.4
      total_token_throughput: 8100.2
      request_throughput: 8.1
      mean_ttft_ms: 210.4
      p99_ttft_ms: 480.9
      duration: 15.8
      completed: 128
      preemptions: 0
  contains:
    output_throughput:
      description: Tokens of answers in each second. None of an engine that embeds.
      type: float
    total_token_throughput:
      description: Tokens of prompts and answers in each second.
      type: float
    request_throughput:
      description: Requests in each second.
      type: float
    mean_ttft_ms:
      description:
        - Milliseconds to the first token. The same is there for C(tpot) (for each further token), C(itl) (between two
          of them) and C(e2el) (to the end), and for each with C(median), C(p90), C(p95) and C(p99).
      type: float
    duration:
      description: Seconds that the run took.
      type: float
    completed:
      description: How many requests were answered.
      type: int
    preemptions:
      description: How often the engine had to put a request aside for lack of KV cache, where it tells.
      type: int
"""

import json
import re
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ..module_utils._engine_unit import health_url

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
FIGURES = (
    "output_throughput",
    "total_token_throughput",
    "request_throughput",
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
)
RESULT = "/tmp/gpufleet-bench.json"
# The engine has its key in this variable, the benchmark wants it in that one: it never leaves the container's
# environment, where `ps` of nobody else sees it.
SCRIPT = 'export OPENAI_API_KEY="${VLLM_API_KEY:-}"; exec timeout --kill-after 10 "$0" vllm bench serve "$@"'
WARM_UP_PROMPTS = 4
TIMED_OUT = 124
PREEMPTIONS = re.compile(r"^vllm:num_preemptions(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
LAST_LINES = 15

ARGUMENT_SPEC = {
    "name": {"type": "str", "required": True},
    "task": {"type": "str", "choices": ["generate", "embed"], "default": "generate"},
    "served_model_name": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "address": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 8000},
    "input_tokens": {"type": "int", "default": 512, "no_log": False},
    "output_tokens": {"type": "int", "default": 128, "no_log": False},
    "prefix_tokens": {"type": "int", "default": 0, "no_log": False},
    "concurrency": {"type": "int", "default": 32},
    "prompts": {"type": "int", "default": 128},
    "repeats": {"type": "int", "default": 3},
    "timeout": {"type": "int", "default": 900},
}


class BenchError(Exception):
    """A run that measured nothing."""


class Container:
    """Runs commands in the container of the engine."""

    def __init__(self, name, run=subprocess.run):
        self.name = f"vllm-{name}"
        self._run = run

    def run(self, *command):
        """(exit status, standard output, standard error) of a command."""
        done = self._run(
            ["docker", "exec", self.name, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            errors="replace",
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


def bench(container, params, metrics):
    """Returns the runs. metrics: a function that returns the text of /metrics. Raises BenchError."""
    run_once(container, dict(params, prompts=min(WARM_UP_PROMPTS, params["prompts"])))
    runs = []
    for _number in range(params["repeats"]):
        before = preemptions(metrics())
        figures = run_once(container, params)
        after = preemptions(metrics())
        figures["preemptions"] = None if None in (before, after) else int(after - before)
        runs.append(figures)
    return runs


def run_once(container, params):
    """Returns the figures of one run."""
    container.run("rm", "-f", RESULT)
    status, output, errors = container.run("/bin/sh", "-c", SCRIPT, str(params["timeout"]), *arguments(params))
    if status == TIMED_OUT:
        raise BenchError(f"it took longer than {params['timeout']} s; send fewer prompts, or raise timeout")
    if status:
        lines = (output + errors).strip().splitlines()[-LAST_LINES:]
        raise BenchError(f"it ended with {status}:\n" + "\n".join(lines))
    _status, text, _errors = container.run("cat", RESULT)
    try:
        figures = figures_of(json.loads(text))
    except (ValueError, AttributeError) as error:
        raise BenchError(f"it wrote no result: {error}") from error
    if not figures["completed"] or figures["completed"] < params["prompts"]:
        answered = figures["completed"] or "none"
        raise BenchError(f"of {params['prompts']} requests {answered} were answered; look at the log of the engine")
    return figures


def arguments(params):
    """What follows `vllm bench serve`."""
    embeds = params["task"] == "embed"
    given = {
        "base-url": f"http://127.0.0.1:{params['port']}",
        "model": params["model"],
        "served-model-name": params["served_model_name"],
        "dataset-name": "random",
        "random-input-len": params["input_tokens"],
        "random-output-len": 1 if embeds else params["output_tokens"],
        "random-prefix-len": params["prefix_tokens"],
        "num-prompts": params["prompts"],
        "max-concurrency": params["concurrency"],
        "seed": 0,
        "percentile-metrics": LATENCIES[-1] if embeds else ",".join(LATENCIES),
        "metric-percentiles": "90,95,99",
        "result-dir": RESULT.rpartition("/")[0],
        "result-filename": RESULT.rpartition("/")[2],
    }
    words = [word for name, value in given.items() for word in ("--" + name, str(value))]
    kind = ["--backend", "openai-embeddings", "--endpoint", "/v1/embeddings"] if embeds else ["--ignore-eos"]
    return [*words, *kind, "--disable-tqdm", "--save-result"]


def figures_of(result):
    """What counts of the benchmark's result."""
    found = {name: result.get(name) for name in FIGURES}
    for latency in LATENCIES:
        for statistic in STATISTICS:
            key = f"{statistic}_{latency}_ms"
            found[key] = result.get(key)
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def preemptions(text):
    """The sum over all engines behind the port, or None where it does not tell."""
    found = PREEMPTIONS.findall(text)
    return sum(map(float, found)) if found else None


def read_metrics(address):
    """The text of /metrics; nothing where it is not published."""
    try:
        return open_url(address, timeout=5, use_proxy=False).read().decode("utf-8", "replace")
    except OSError:
        return ""


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC)
    params = module.params
    metrics = health_url(params["address"], params["port"]).replace("/health", "/metrics")
    try:
        runs = bench(Container(params["name"]), params, lambda: read_metrics(metrics))
    except BenchError as error:
        module.fail_json(
            msg=f"vllm bench serve in the container vllm-{params['name']} measured nothing: {error}\n"
            f"Next, on this host: docker exec vllm-{params['name']} vllm bench serve --help"
        )
    except OSError as error:
        module.fail_json(msg=f"Docker cannot be called: {error}. Next, on this host: docker ps")
    module.exit_json(changed=False, runs=runs)


if __name__ == "__main__":
    main()

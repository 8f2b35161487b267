# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.receipt import FilterModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._boot_log import parse_boot_log

receipt = FilterModule().filters()["receipt"]

LOG = """\
(EngineCore pid=9) INFO Initializing a V1 LLM engine (v0.32.0) with config: model='/model', max_seq_len=8192
(Worker_TP0 pid=10) INFO Model loading took 14.4 GiB memory and 13.38 seconds
(Worker_TP1 pid=11) INFO Model loading took 14.5 GiB memory and 13.38 seconds
(Worker_TP0 pid=10) INFO Available KV cache memory: 12.0 GiB
(Worker_TP1 pid=11) INFO Available KV cache memory: 11.4 GiB
(EngineCore pid=9) INFO GPU KV cache size: 213,440 tokens, Maximum concurrency for 8,192 tokens per request: 26.05x
"""


def gpu(weights, pool):
    terms = {"weights_gib": weights, "activation_gib": 1.0, "non_torch_gib": 0.3, "cuda_graph_gib": 0.6}
    terms["kv_pool_gib"] = pool
    return {
        "name": "NVIDIA L40S",
        "gpu": 0,
        **{name: {"value": value, "low": value, "high": value, "source": "exact"} for name, value in terms.items()},
    }


def plan():
    return {
        "name": "chat",
        "image": "vllm/vllm-openai:v0.32.0",
        "release": {"version": "0.32.0"},
        "parallel": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1},
        "budget": [gpu(14.4, 11.8), gpu(14.4, 12.0)],
        "kv": {"tokens": 220000, "max_concurrency": 26.86, "max_model_len": 8192},
        "arguments": [{"name": "max_model_len", "value": 8192, "why": "", "step": 2, "cost": ""}],
    }


def boot(log=LOG):
    return {"phase": "serving", "measured": parse_boot_log(log)}


def test_the_start_is_named():
    told = receipt(plan(), boot())
    named = ("release", "engine_version", "image", "card", "tensor_parallel_size", "pipeline_parallel_size")
    assert [told[name] for name in named] == ["0.32.0", "0.32.0", "vllm/vllm-openai:v0.32.0", "NVIDIA L40S", 2, 1]
    assert told["arguments"] == {"max_model_len": 8192}


def test_planned_and_measured_stand_side_by_side():
    told = receipt(plan(), boot())
    assert (told["planned"]["kv_tokens"], told["measured"]["kv_tokens"]) == (220000, 213440)
    assert told["difference"]["kv_tokens"] == {"value": -6560, "percent": -2.98}


def test_of_several_gpus_the_heaviest_and_the_smallest_pool_count():
    told = receipt(plan(), boot())
    assert (told["planned"]["kv_pool_gib"], told["measured"]["kv_pool_gib"]) == (11.8, 11.4)
    assert told["difference"]["kv_pool_gib"] == {"value": -0.4, "percent": -3.39}
    assert told["difference"]["weights_gib"] == {"value": 0.1, "percent": 0.69}


def test_what_vllm_did_not_log_has_no_difference():
    told = receipt(plan(), boot())
    assert told["measured"]["activation_gib"] is None
    assert "activation_gib" not in told["difference"]


def test_a_second_run_writes_the_same_bytes():
    assert json.dumps(receipt(plan(), boot())) == json.dumps(receipt(plan(), boot()))


def test_a_plan_that_is_far_off_is_remarked():
    assert receipt(plan(), boot(LOG.replace("11.4 GiB", "9.0 GiB")))["warnings"] == [
        "The KV cache differs from the plan by -23.73 %."
    ]
    assert receipt(plan(), boot())["warnings"] == []


def test_a_negative_estimate_of_the_graphs_is_remarked():
    told = receipt(plan(), boot(LOG + "INFO Estimated CUDA graph memory: -0.17 GiB total\n"))
    assert "estimated -0.17 GiB" in told["warnings"][0]


def test_an_embedding_model_without_kv_cache():
    told = receipt({**plan(), "kv": {"tokens": 0, "max_concurrency": 0.0}}, boot(""))
    assert told["difference"] == {}


@pytest.mark.parametrize(
    ("not_plan", "not_boot", "message"),
    [(plan(), {}, "boot has no key 'measured'"), ({}, boot(), "not a plan"), (plan(), "text", "boot has no key")],
)
def test_wrong_input_is_named(not_plan, not_boot, message):
    with pytest.raises(AnsibleFilterError, match=message):
        receipt(not_plan, not_boot)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On plans of the planner: what changes a digest and what does not."""

from __future__ import annotations

import copy
import json
import random
import re

import pytest

from ansible_collections.gpufleet.vllm.plugins.filter.plan import FilterModule as PlanModule
from ansible_collections.gpufleet.vllm.plugins.filter.plan_digest import FilterModule as DigestModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config

plan = PlanModule().filters()["plan"]
plan_digest = DigestModule().filters()["plan_digest"]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
CHECKPOINTS = {"/models/qwen3-8b": describe_config(CONFIG), "/models/other": describe_config(CONFIG)}
TOTAL_MIB = 81559
INSTANCE = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.32.0",
    "checkpoint": "/models/qwen3-8b",
    "workload": {"context": 16384, "sequences": 16},
}


def host(*free_mib: int, name: str = "gpu") -> dict:
    cards = [
        {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_total_mib": TOTAL_MIB,
            "memory_free_mib": free,
            "memory_used_by_others_mib": max(0, 81008 - free),
            "processes": [],
        }
        for index, free in enumerate(free_mib)
    ]
    return {"driver_version": "580.95.05", "cuda_driver_version": "13.0", "links": [], "errors": [], "gpus": cards}


def planned(facts: dict, name: str = "gpu1", current: dict | None = None, **variables) -> list[dict]:
    return plan([{**INSTANCE, **variables}], [facts], CHECKPOINTS, [name], current)


def digest(facts: dict, **variables) -> str:
    return plan_digest(planned(facts, **variables))["fleet"]


DIGEST = digest(host(81008))


def test_a_digest_is_a_sha256_for_the_fleet_and_for_each_host():
    result = plan_digest([*planned(host(81008)), *planned(host(81008, name="b"), "gpu2")])
    assert sorted(result["hosts"]) == ["gpu1", "gpu2"]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in [result["fleet"], *result["hosts"].values()])
    assert len({result["fleet"], *result["hosts"].values()}) == 3


@pytest.mark.parametrize(("level", "sequences"), [(81008, 16), (60000, 16), (45000, 4)])
def test_memory_that_comes_and_goes_does_not_change_it(level, sequences):
    noise = random.Random(level)
    frees = [level + noise.randint(-200, 0) for _round in range(40)]
    plans = [planned(host(free), workload={"context": 16384, "sequences": sequences}) for free in frees]
    assert {item["verdict"] for (item,) in plans} == {"fits"}
    assert len({plan_digest(each)["fleet"] for each in plans}) == 1
    if level < 81008:  # the test would be none if the plans were equal
        assert len({json.dumps(each) for each in plans}) > 1


def test_equal_cards_with_a_little_more_or_less_free_do_not_change_it():
    noise = random.Random(1)
    assert len({digest(host(*(81008 - noise.randint(0, 30) for _round in range(4)))) for _round in range(40)}) == 1


def test_a_deployment_does_not_change_it():
    (before,) = planned(host(60000))
    (after,) = planned(host(59000), current={"chat": json.loads(json.dumps(before))})
    assert plan_digest([after]) == plan_digest([before])


def test_neither_order_nor_repetition_nor_words_change_it():
    one, two = planned(host(81008)), planned(host(81008, name="b"), "gpu2")
    told = copy.deepcopy(one)
    told[0].update(decisions=[], warnings=["anything"], budget=[], endpoint="https://llm.example", description="chat")
    told[0]["arguments"][0]["why"] = "said in other words"
    assert plan_digest([*one, *two]) == plan_digest([*two, *told, *two])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "chat2"},
        {"image": "vllm/vllm-openai:v0.31.0"},
        {"checkpoint": "/models/other"},
        {"served_model_name": "other"},
        {"address": "0.0.0.0"},
        {"port": 8001},
        {"exposure": "strict"},
        {"workload": {"context": 16384, "sequences": 17}},
        {"workload": {"context": 8192, "sequences": 16}},
        {"engine_args": {"gpu_memory_utilization": 0.5}},
        {"engine_args": {"max_num_seqs": 64}},
        {"extra_args": ["--enable-prompt-tokens-details"]},
        {"environment": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
        {"trust_remote_code": True},
    ],
    ids=str,
)
def test_whatever_else_is_asked_for_changes_it(change):
    assert digest(host(81008), **change) != DIGEST


def test_another_card_or_host_changes_it():
    assert digest(host(81008, name="other")) != DIGEST
    assert plan_digest(planned(host(81008), "gpu2"))["fleet"] != DIGEST


def test_a_promise_that_was_cut_changes_with_the_memory_until_it_is_pinned():
    facts = [host(24000), host(23000)]
    wanted = {"context": 16384, "sequences": 16, "prefer": "sequences"}
    plans = [planned(each, workload=wanted) for each in facts]
    assert {item["verdict"] for (item,) in plans} == {"fits_reduced"}
    assert plan_digest(plans[0]) != plan_digest(plans[1])
    held = min(value["value"] for (item,) in plans for value in item["arguments"] if value["name"] == "max_model_len")
    pinned = [planned(each, workload={**wanted, "context": held}) for each in facts]
    assert {item["verdict"] for (item,) in pinned} == {"fits"}
    assert plan_digest(pinned[0]) == plan_digest(pinned[1])

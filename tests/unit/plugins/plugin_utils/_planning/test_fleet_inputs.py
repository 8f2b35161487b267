# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the planner of a host is given beside the instances: receipts and configurations as they are published."""

from __future__ import annotations

import pytest
from planning_examples import CONFIGS, checkpoint, hosts

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan_instances
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._receipt import receipt

PATH = "/models/qwen3-8b"
INSTANCE = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.27.1",
    "checkpoint": PATH,
    "engine_args": {"gpu_memory_utilization": 0.9, "max_model_len": 8192},
}


def planned(checkpoints=None, **given):
    return plan_instances([INSTANCE], hosts(), checkpoints or {PATH: checkpoint("Qwen3-8B")}, ["gpu1"], **given)[0]


def measured(plan, pool_gib):
    """The receipt of a start whose KV pool was another than planned."""
    budget = plan["budget"][0]
    figures = {"weights_gib": budget["weights_gib"]["value"], "kv_pool_gib": pool_gib}
    return receipt(plan, {"measured": figures})


def pool(plan):
    return plan["budget"][0]["kv_pool_gib"]["value"]


def test_the_receipt_of_an_instance_corrects_its_plan():
    predicted = planned()
    corrected = planned(receipts={"chat": measured(predicted, pool(predicted) - 0.8)})
    assert pool(corrected) == pytest.approx(pool(predicted) - 0.8, abs=0.01)
    assert corrected["budget"][0]["weights_gib"]["source"] == "receipt"


def test_the_receipt_of_another_instance_says_nothing():
    predicted = planned()
    assert planned(receipts={"other": measured(predicted, 1.0)}) == predicted


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"release": "0.19.0"}, "the receipt is of vLLM 0.19.0"),
        ({"card": "NVIDIA L4"}, "the receipt is of NVIDIA L4"),
        ({"measured": None}, "lacks the figures under 'measured'"),
        ({"measured": {"kv_pool_gib": "much"}}, "measured.kv_pool_gib is 'much'"),
        ({"tensor_parallel_size": [1]}, "tensor_parallel_size is [1]"),
    ],
)
def test_a_receipt_that_does_not_fit_is_refused_with_a_line(change, line):
    predicted = planned()
    refused = planned(receipts={"chat": {**measured(predicted, 1.0), **change}})
    assert refused["budget"] == predicted["budget"]
    assert any(line in warning and "not used" in warning for warning in refused["warnings"])


@pytest.mark.parametrize("junk", ["text", ["list"], 3])
def test_what_is_no_receipt_is_refused_with_a_line(junk):
    refused = planned(receipts={"chat": junk})
    assert any("it is no receipt" in warning for warning in refused["warnings"])


def test_a_published_configuration_does_for_a_checkpoint():
    assert planned({PATH: CONFIGS["Qwen3-8B"]}) == planned()


def test_a_published_configuration_stays_as_it_is():
    config = dict(CONFIGS["Qwen3-8B"])
    planned({PATH: config})
    assert config == CONFIGS["Qwen3-8B"]

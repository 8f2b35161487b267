# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.plan import FilterModule as PlanModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config

plan = PlanModule().filters()["plan"]

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
CHECKPOINTS = {"/models/qwen3-8b": describe_config(CONFIG)}
HOST = {
    "driver_version": "580.95.05",
    "cuda_driver_version": "13.0",
    "links": [["X"]],
    "errors": [],
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-a",
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_total_mib": 81559,
            "memory_free_mib": 81008,
            "memory_used_by_others_mib": 0,
            "processes": [],
        }
    ],
}
INSTANCE = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/models/qwen3-8b"}


def planned(**variables):
    return plan([{**INSTANCE, **variables}], [HOST], CHECKPOINTS, ["gpu1"])


def test_a_plan_carries_what_the_roles_need():
    result = planned(port=8010, address="0.0.0.0", served_model_name="qwen", extra_args=["--max-logprobs", "5"])[0]
    assert result["devices"] == {"gpu1": ["GPU-a"]}
    assert (result["name"], result["image"]) == ("chat", "vllm/vllm-openai:v0.32.0")
    assert (result["port"], result["address"], result["served_model_name"]) == (8010, "0.0.0.0", "qwen")
    assert result["extra_args"] == ["--max-logprobs", "5"]
    assert result["verdict"] == "fits"


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        ({"image": "vllm/vllm-openai:latest"}, ["image", "latest", "v0."]),
        ({"image": "vllm/vllm-openai"}, ["has no tag"]),
        ({"engine_args": {"swap_space": 4}}, ["engine_args.swap_space", "4", "Known to"]),
        ({"engine_args": {"max_model_len": "long"}}, ["engine_args.max_model_len", "long"]),
        ({"extra_args": ["--max-model-length", "8192"]}, ["extra_args", "--max-model-len"]),
        (
            {"extra_args": ["--max-model-len", "8192"], "engine_args": {"max_model_len": 4096}},
            ["engine_args.max_model_len"],
        ),
        ({"workload": {"context": "long"}}, ["workload.context", "long"]),
        ({"checkpoint": "/models/other"}, ["/models/other", "checkpoint_info"]),
    ],
)
def test_a_mistake_is_named_with_instance_variable_value_and_remedy(variables, texts):
    with pytest.raises(AnsibleFilterError) as caught:
        planned(**variables)
    for text in texts:
        assert text in str(caught.value)
    assert "gpu1: vllm_instances[chat]." in str(caught.value)
    assert "Next: correct the inventory, then ansible-playbook gpufleet.vllm.plan_vllm" in str(caught.value)


def test_a_list_is_wanted():
    with pytest.raises(AnsibleFilterError, match="not a list"):
        plan(INSTANCE, [HOST], CHECKPOINTS)


def test_extra_arguments_count_in_the_prediction():
    assert planned(extra_args=["--max-model-len", "4096"])[0]["kv"]["max_model_len"] == 4096

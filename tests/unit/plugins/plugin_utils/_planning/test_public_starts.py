# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts that people published with their logs, on cards and releases that no coefficient was fitted to.

Nothing is tuned to these: a formula that is wrong for one of them is wrong. Sizes of the models are those of their
published config.json; each log names release, batch and card.
"""

from __future__ import annotations

from typing import Any

import pytest
from planning_examples import CONFIGS

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan

SMALL_QWEN = {
    **CONFIGS["Qwen3-8B"],
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
LLAMA_3_70B_AWQ = {
    **CONFIGS["Llama-3.1-70B"],
    "max_position_embeddings": 8192,
    "torch_dtype": "float16",
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}
LLAMA_3_1_8B = {
    **CONFIGS["Llama-3.1-8B"],
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}

# Model, release, card, its GiB as vLLM logs them, GPUs, utilization, length, sequences, batched tokens, further pins;
# measured: GiB of weights and KV pool of a GPU, tokens.
STARTS = [
    ("Qwen3-8B", CONFIGS["Qwen3-8B"], "0.9.2", "A100-SXM4-40GB", "8.0", 39.49, 1, (0.9, 40960, 256, 2048), {})
    + (15.2683, 18.69, 136_080),
    ("Qwen3-Next", QWEN3_NEXT, "0.10.2", "H200", "9.0", 139.81, 2, (0.9, 262144, 1024, 8192), {})
    + (74.2812, 44.59, 973_760),
    ("Qwen3-0.6B", SMALL_QWEN, "0.11.2", "L40S", "8.9", 44.39, 1, (0.9, 16000, 256, 2048), {}) + (None, 37.42, 350_304),
    ("Qwen3-8B", CONFIGS["Qwen3-8B"], "0.13.0", "RTX A6000", "8.6", 47.37, 1, (0.9, 16384, 256, 2048), {})
    + (15.27, 25.94, 188_864),
    ("Llama-3.1-8B", LLAMA_3_1_8B, "0.15.1", "A100-SXM4-40GB", "8.0", 39.49, 1, (0.9, 131072, 256, 8192))
    + ({"enforce_eager": True}, 14.99, 19.28, 157_936),
    ("Llama-3-70B-AWQ", LLAMA_3_70B_AWQ, "0.16.0", "L40S", "8.9", 44.39, 2, (0.9, 8192, 256, 2048), {})
    + (18.55, 20.16, 132_128),
    ("Llama-3.1-8B", LLAMA_3_1_8B, "0.31.0", "H100 80GB HBM3", "9.0", 79.25, 1, (0.92, 131072, 1024, 8192), {})
    + (15.0, 56.21, 460_496),
]


def predicted(config: dict[str, Any], release: str, card: str, capability: str, total: float, start: Any, size: int):
    utilization, length, sequences, tokens, further = start
    mib = round(total * 1024)
    facts = {"name": f"NVIDIA {card}", "compute_capability": capability, "memory_total_mib": mib, "processes": []}
    facts |= {"memory_free_mib": mib, "memory_used_mib": 0, "memory_used_by_others_mib": 0}
    pins = {"tensor_parallel_size": size, "gpu_memory_utilization": utilization, "max_model_len": length}
    pins |= {"max_num_seqs": sequences, "max_num_batched_tokens": tokens, **further}
    wanted = {"name": "public", "release": release, "checkpoint": describe_config(config), "engine_args": pins}
    gpus = [{**facts, "index": index, "uuid": f"GPU-{index}"} for index in range(size)]
    return plan(wanted, [{"gpus": gpus, "links": [], "errors": []}])


@pytest.mark.parametrize("start", STARTS, ids=lambda start: f"{start[0]} on {start[3]} with {start[2]}")
def test_what_was_logged_is_in_the_interval_and_not_promised_beyond(start):
    _name, config, release, card, capability, total, size, settings, further, weights, pool, tokens = start
    found = predicted(config, release, card, capability, total, (*settings, further), size)
    budget = found["budget"][0]
    assert budget["kv_pool_gib"]["low"] - 0.005 <= pool <= budget["kv_pool_gib"]["high"] + 0.005
    assert budget["kv_pool_gib"]["value"] < 1.02 * pool
    assert found["kv"]["tokens"] / budget["kv_pool_gib"]["value"] == pytest.approx(tokens / pool, rel=0.003)
    if weights:
        assert budget["weights_gib"]["value"] == pytest.approx(weights, rel=0.005)

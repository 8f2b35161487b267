# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast plans are made: 1,000 hosts with 8 GPUs each in one process, and single plans.

    python tests/bench/bench_plan.py

Processor time is measured, so that other work on the machine does not count. Fails above the limits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".collections")]

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config  # noqa: E402
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan  # noqa: E402

HOSTS, GPUS = 1000, 8
LIMIT_FLEET_SECONDS, LIMIT_PLAN_SECONDS = 5.0, 0.005
LIMIT_FIRST_SECONDS = 0.02
"""The first plan of a model counts its tensors, in every division that is tried; later ones find that done."""

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "num_key_value_heads": 8,
}
SMALL = {**CONFIG, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 14336}
LARGE = {**CONFIG, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672}


EXPERTS = {
    **CONFIG,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
LATENT = {
    **CONFIG,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def host(number: int) -> dict[str, Any]:
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{number}-{index}",
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_total_mib": 81559,
            "memory_free_mib": 81008 - number % 7,
            "memory_used_by_others_mib": 0,
            "processes": [],
            "numa_node": index // 4,
        }
        for index in range(GPUS)
    ]
    links = [["X" if row == column else "NV18" for column in range(GPUS)] for row in range(GPUS)]
    return {
        "name": f"gpu{number}",
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.0",
        "gpus": gpus,
        "links": links,
        "errors": [],
    }


def instance(config: dict[str, Any], sequences: int) -> dict[str, Any]:
    return {
        "name": "chat",
        "image": "vllm/vllm-openai:v0.32.0",
        "checkpoint": describe_config(config),
        "workload": {"context": 16384, "sequences": sequences},
    }


def seconds(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before


def main() -> int:
    fleet = [host(number) for number in range(HOSTS)]
    slow = 0
    plan(instance({**SMALL, "num_hidden_layers": 1}, 1), fleet[:1])  # reads the data files
    for title, wanted in (
        ("8B on one card", instance(SMALL, 8)),
        ("70B over four cards", instance(LARGE, 16)),
        ("235B of experts over eight cards", instance(EXPERTS, 64)),
        ("671B of experts, which does not fit", instance(LATENT, 64)),
    ):
        first = seconds(lambda: plan(wanted, fleet[:1]))  # noqa: B023
        # The lesser of two: what else runs on the machine takes caches and clock from this.
        taken = min(seconds(lambda: [plan(wanted, [there]) for there in fleet]) for _run in range(2))  # noqa: B023
        single = min(seconds(lambda: plan(wanted, fleet[:1])) for _run in range(20))  # noqa: B023
        print(
            f"bench_plan: {title}: {HOSTS} hosts x {GPUS} GPUs in {taken:.2f} s, one plan in {single * 1000:.2f} ms, "
            f"the first in {first * 1000:.2f} ms"
        )
        slow += first > LIMIT_FIRST_SECONDS
        slow += taken > LIMIT_FLEET_SECONDS or single > LIMIT_PLAN_SECONDS
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())

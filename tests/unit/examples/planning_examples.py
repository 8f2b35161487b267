# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts and models for the planner's tests. Model sizes are those of the models' published config.json."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config

CARDS = {
    "H100": ("NVIDIA H100 80GB HBM3", 81559, 81008, "9.0"),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, 81050, "8.0"),
    "L40S": ("NVIDIA L40S", 46068, 45400, "8.9"),
    "RTX 4090": ("NVIDIA GeForce RTX 4090", 24564, 24110, "8.9"),
    "V100": ("Tesla V100-SXM2-32GB", 32768, 32493, "7.0"),
    "T4": ("Tesla T4", 15360, 14910, "7.5"),
}


def gpu(index: int, card: str = "H100", others_mib: int = 0, **facts: Any) -> dict[str, Any]:
    name, total, free, capability = CARDS[card]
    return {
        "index": index,
        "uuid": f"GPU-{card}-{index}",
        "name": name,
        "compute_capability": capability,
        "memory_total_mib": total,
        "memory_free_mib": free - others_mib,
        "memory_used_by_others_mib": others_mib,
        "processes": [],
        "numa_node": 0,
        "state": "ok",
        **facts,
    }


def host(*gpus: dict[str, Any], name: str = "gpu1", links: list[list[str]] | None = None) -> dict[str, Any]:
    count = len(gpus)
    if links is None:
        links = [["X" if row == column else "NV18" for column in range(count)] for row in range(count)]
    return {
        "name": name,
        "driver_version": "580.95.05",
        "cuda_driver_version": "13.0",
        "gpus": list(gpus),
        "links": links,
        "errors": [],
    }


def hosts(count: int = 1, card: str = "H100") -> list[dict[str, Any]]:
    return [host(*(gpu(index, card) for index in range(count)))]


def _decoder(
    architecture: str,
    model_type: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocabulary: int,
    positions: int,
    **extra: Any,
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "torch_dtype": "bfloat16",
        **extra,
    }


CONFIGS = {
    "tiny": _decoder("Qwen3ForCausalLM", "qwen3", 128, 4, 4, 2, 32, 384, 512, 4096, tie_word_embeddings=True),
    "Qwen3-8B": _decoder("Qwen3ForCausalLM", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960),
    "Qwen3-14B": _decoder("Qwen3ForCausalLM", "qwen3", 5120, 40, 40, 8, 128, 17408, 151936, 40960),
    "Qwen2.5-7B": _decoder("Qwen2ForCausalLM", "qwen2", 3584, 28, 28, 4, 128, 18944, 152064, 32768),
    "R1-Distill-Qwen-14B": _decoder("Qwen2ForCausalLM", "qwen2", 5120, 48, 40, 8, 128, 13824, 152064, 131072),
    "Llama-3.1-8B": _decoder("LlamaForCausalLM", "llama", 4096, 32, 32, 8, 128, 14336, 128256, 131072),
    "Llama-3.1-70B": _decoder("LlamaForCausalLM", "llama", 8192, 80, 64, 8, 128, 28672, 128256, 131072),
    "Mixtral-8x7B": _decoder(
        "MixtralForCausalLM",
        "mixtral",
        4096,
        32,
        32,
        8,
        128,
        14336,
        32000,
        32768,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "Qwen3-235B-A22B": _decoder(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        4096,
        94,
        64,
        4,
        128,
        12288,
        151936,
        40960,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1536,
    ),
}


def checkpoint(name: str) -> dict[str, Any]:
    return describe_config(CONFIGS[name])


def instance(model: str = "Qwen3-8B", release: str = "0.27.1", **variables: Any) -> dict[str, Any]:
    return {"name": "chat", "image": f"vllm/vllm-openai:v{release}", "checkpoint": checkpoint(model), **variables}


def argument(planned: dict[str, Any], name: str) -> Any:
    """The value of an argument of a plan; None where the plan does not give it."""
    return next((item["value"] for item in planned["arguments"] if item["name"] == name), None)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments with what vLLM fills in, and the checks that vLLM makes of them before it starts an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import wording
from .arguments import as_list
from .cards import Card
from .checkpoint import Checkpoint
from .faults import Failure

# EngineArgs.get_batch_defaults: GiB of the card, batched tokens, sequences; the last release column is that of 160 GiB.
_BATCHES = ((0, 2048, 256, "0.9.0"), (70, 8192, 1024, "0.9.0"), (160, 16384, 1024, "0.28.0"))
_POOLING_TASKS = ("embed", "embedding", "classify", "score", "reward")


def layout(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what follows from the arguments alone: where the engine listens, and over what it is divided."""
    model = given.get("model", "Qwen/Qwen3-0.6B")
    config: dict[str, Any] = {
        "model": model,
        "served_model_name": as_list(given.get("served_model_name")) or [model],
        "host": given.get("host") or "0.0.0.0",
        "port": given.get("port", 8000),
        "tensor_parallel_size": given.get("tensor_parallel_size", 1),
        "pipeline_parallel_size": given.get("pipeline_parallel_size", 1),
        "nnodes": given.get("nnodes", 1),
        "node_rank": given.get("node_rank", 0),
        "master_addr": given.get("master_addr", "127.0.0.1"),
        "master_port": given.get("master_port", 29501),
        "headless": bool(given.get("headless")),
        "ray": given.get("distributed_executor_backend") == "ray",
        "enforce_eager": bool(given.get("enforce_eager")),
        "trust_remote_code": bool(given.get("trust_remote_code")),
        "disable_custom_all_reduce": bool(given.get("disable_custom_all_reduce")),
        "quantization": given.get("quantization"),
        "kv_cache_dtype": given.get("kv_cache_dtype", "auto"),
        "kv_cache_memory_bytes": given.get("kv_cache_memory_bytes"),
    }
    config["world_size"] = config["tensor_parallel_size"] * config["pipeline_parallel_size"]
    config["local_world_size"] = max(config["world_size"] // config["nnodes"], 1)
    return config


def complete(
    config: dict[str, Any],
    given: Mapping[str, Any],
    checkpoint: Checkpoint,
    cards: list[Card],
    release: str,
    environment: Mapping[str, str],
) -> None:
    """Adds what depends on the checkpoint and the GPUs. Raises Failure for what vLLM refuses."""
    tokens, sequences = _batch_defaults(cards[0], release)
    utilization = 0.92 if wording.since(release, "0.20.0") else 0.9
    config.update(
        max_num_seqs=given.get("max_num_seqs", sequences),
        max_num_batched_tokens=given.get("max_num_batched_tokens", tokens),
        gpu_memory_utilization=float(given.get("gpu_memory_utilization", utilization)),
        max_model_len=given.get("max_model_len", checkpoint.max_position_embeddings),
        task="embed" if _pools(given, checkpoint) else "generate",
        dtype=_dtype(given.get("dtype", "auto"), checkpoint, cards[0]),
        profiles_graphs=wording.since(release, "0.20.0")
        and environment.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1") != "0",
    )
    _check(config, checkpoint, len(cards), environment)


def _check(config: Mapping[str, Any], checkpoint: Checkpoint, gpus: int, environment: Mapping[str, str]) -> None:
    """Raises Failure for what vLLM refuses, in its order."""
    longest = checkpoint.max_position_embeddings
    if config["max_model_len"] > longest and environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") != "1":
        raise Failure("max_model_len_too_large", derived_length=longest)
    if checkpoint.heads % config["tensor_parallel_size"]:
        raise Failure("tp_divisibility")
    if config["local_world_size"] > gpus and not config["ray"]:
        raise Failure("too_few_gpus")


def _batch_defaults(card: Card, release: str) -> tuple[int, int]:
    rows = [row for row in _BATCHES if wording.since(release, row[3])]
    if "a100" in card.name.lower():
        rows = [row for row in rows if row[0] != 70]
    _memory, tokens, sequences, _since = [row for row in rows if row[0] <= card.total_gib][-1]
    return tokens, sequences


def _pools(given: Mapping[str, Any], checkpoint: Checkpoint) -> bool:
    if given.get("task") or given.get("runner"):
        return given.get("task") in _POOLING_TASKS or given.get("runner") == "pooling"
    return checkpoint.embeds or bool(given.get("convert"))


def _dtype(asked: str, checkpoint: Checkpoint, card: Card) -> str:
    """The dtype of the computation. ``auto`` falls back where the card has no bfloat16."""
    if asked != "auto":
        return {"half": "float16", "float": "float32"}.get(asked, asked)
    stored = "float16" if checkpoint.dtype == "float16" else "bfloat16"
    return "float16" if card.capability < 8.0 else stored

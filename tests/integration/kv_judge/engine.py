#!/usr/bin/env python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Starts real vLLM (its CPU build) on a configuration with made-up weights and prints how it laid out the KV cache.

Runs under the Python of an environment that has vLLM: ``python engine.py CONFIG.json CONTEXT [CONTEXT ...]``. The last
line of its output is JSON: ``{"release", "block_size", "pool_bytes", "num_blocks", "max_num_batched_tokens",
"in_flight_tokens", "prefix_caching", "mamba_ssm_cache_dtype", "concurrency": {context: number}, "groups": [{"kind",
"layers", "block_size", "page_bytes"}]}``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile

POOL_GIB = 4

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE=str(POOL_GIB), HF_HUB_OFFLINE="1")


def start(config: str, context: int):
    """An engine in this process on ``config`` with dummy weights."""
    from vllm import LLM

    folder = tempfile.mkdtemp(prefix="kv-judge-")
    shutil.copy(config, os.path.join(folder, "config.json"))
    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=context,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        disable_log_stats=True,
    )


def layer_specs(spec) -> list:
    """The specifications of a group's layers: one for all, or one each."""
    return list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]


def main() -> None:
    config, contexts = sys.argv[1], [int(argument) for argument in sys.argv[2:]]
    llm = start(config, contexts[0])
    import vllm
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    core = llm.llm_engine.engine_core.engine_core
    settings, layout = core.vllm_config, core.scheduler.kv_cache_config
    groups = []
    for group in layout.kv_cache_groups:
        spec = layer_specs(group.kv_cache_spec)[0]
        groups.append(
            {
                "kind": type(spec).__name__,
                "layers": len(group.layer_names),
                "block_size": spec.block_size,
                "page_bytes": spec.page_size_bytes,
            }
        )
    concurrency = {}
    for context in contexts:
        settings.model_config.max_model_len = context
        concurrency[context] = get_max_concurrency_for_kv_cache_config(settings, layout)
    print(
        json.dumps(
            {
                "release": vllm.__version__,
                "pool_bytes": POOL_GIB * 2**30,
                "num_blocks": layout.num_blocks,
                "max_num_batched_tokens": settings.scheduler_config.max_num_batched_tokens,
                "in_flight_tokens": getattr(settings, "max_in_flight_tokens", None),
                "prefix_caching": settings.cache_config.enable_prefix_caching,
                "block_size": settings.cache_config.block_size,
                "mamba_ssm_cache_dtype": settings.cache_config.mamba_ssm_cache_dtype,
                "groups": groups,
                "concurrency": concurrency,
            }
        )
    )


if __name__ == "__main__":
    main()

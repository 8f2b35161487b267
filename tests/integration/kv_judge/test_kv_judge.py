# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real vLLM judges the layout of the KV cache.

For each configuration in ``configs`` (real layer counts, KV heads, head dimensions and windows; small everything else)
vLLM's CPU build is started with made-up weights, and its groups, pages, blocks and concurrency at two context lengths
are held against ours. Takes about 30 s a configuration. ``GPUFLEET_VLLM_PYTHON`` is the Python of an environment with
vLLM; without it the tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.kv_cache import kv_cache_layout

HERE = Path(__file__).parent
PYTHON = os.environ.get("GPUFLEET_VLLM_PYTHON", "")
CONTEXTS = (4096, 8192)
CPU_BLOCK_SIZE = 128
KINDS = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "state",
}


@pytest.fixture(scope="module")
def vllm_python() -> str:
    if not PYTHON or not os.access(PYTHON, os.X_OK):
        print("skipped: GPUFLEET_VLLM_PYTHON does not name the Python of an environment with vLLM")
        pytest.skip("GPUFLEET_VLLM_PYTHON does not name the Python of an environment with vLLM")
    return PYTHON


def judged(python: str, config: Path) -> dict:
    command = ["nice", "-n", "10", python, str(HERE / "engine.py"), str(config), *map(str, CONTEXTS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, f"vLLM did not start on {config.name}:\n{result.stderr[-3000:]}"
    return json.loads(result.stdout.splitlines()[-1])


def ours(config: Path, verdict: dict, context: int):
    return kv_cache_layout(
        describe_config(json.loads(config.read_text())),
        verdict["release"],
        block_size=CPU_BLOCK_SIZE,
        max_model_len=context,
        max_num_batched_tokens=verdict["max_num_batched_tokens"],
        enable_prefix_caching=verdict["prefix_caching"],
        mamba_ssm_cache_dtype=verdict["mamba_ssm_cache_dtype"],
        async_scheduling=verdict["in_flight_tokens"] > verdict["max_num_batched_tokens"],
    )


@pytest.mark.parametrize("config", sorted((HERE / "configs").glob("*.json")), ids=lambda path: path.stem)
def test_the_layout_is_that_of_real_vllm(config: Path, vllm_python: str) -> None:
    verdict = judged(vllm_python, config)
    layout = ours(config, verdict, CONTEXTS[0])
    expected = sorted(
        (KINDS[group["kind"]], group["layers"], group["block_size"], group["page_bytes"]) for group in verdict["groups"]
    )
    found = sorted((g.cache.kind, sum(g.layers), g.cache.block_size, g.cache.page_bytes) for g in layout.groups)
    assert found == expected
    assert layout.blocks(verdict["pool_bytes"]) == verdict["num_blocks"]
    for context in CONTEXTS:
        concurrency = ours(config, verdict, context).max_concurrency(verdict["pool_bytes"])
        assert concurrency == pytest.approx(verdict["concurrency"][str(context)], rel=1e-9)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Figures are those that vLLM logged in public starts, or follow from its source."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from checkpoint_examples import (
    DEEPSEEK_V3,
    GEMMA3_27B_TEXT,
    LLAMA_8B,
    QWEN3_30B_A3B,
    QWEN3_NEXT,
)

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.kv_cache import kv_cache_layout

CASES = Path(__file__).resolve().parents[6] / "shared" / "data" / "accuracy_cases.jsonl"
GIB = 2**30
HALF_STEP = 0.00501
"""Logs round the pool to 0.01 GiB."""

LLAMA = describe_config(LLAMA_8B)
GEMMA3 = describe_config(GEMMA3_27B_TEXT)
DEEPSEEK = describe_config(DEEPSEEK_V3)
NEXT = describe_config(QWEN3_NEXT)
GEMMA4_31B = describe_config(
    dict(
        GEMMA3_27B_TEXT,
        model_type="gemma4_text",
        num_hidden_layers=60,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=4,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10,
    )
)


def test_dense_attention_is_one_group():
    layout = kv_cache_layout(LLAMA, "v0.19.0", max_model_len=8192)
    assert [(group.cache.kind, group.layers) for group in layout.groups] == [("full", (32,))]
    assert layout.bytes_per_token == 131072
    assert layout.block_bytes == (131072 * 16,)


def test_tokens_and_concurrency_of_a_public_start():
    """Llama-3.1-8B, 0.19.0, one H100: 58.11 GiB, 476,016 tokens, 58.11x at 8192."""
    layout = kv_cache_layout(LLAMA, "0.19.0", max_model_len=8192)
    assert layout.tokens(int(58.108 * GIB)) == pytest.approx(476_016, abs=16)
    assert layout.max_concurrency(int(58.108 * GIB)) == pytest.approx(58.11, abs=0.005)


@pytest.mark.parametrize(("size", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1)])
def test_kv_heads_are_divided_and_then_repeated(size, heads):
    layout = kv_cache_layout(describe_config(QWEN3_30B_A3B), "0.30.0", size)
    assert layout.bytes_per_token == 48 * heads * 2 * 128 * 2


def test_an_eight_bit_cache_is_half_as_large():
    sixteen = kv_cache_layout(LLAMA, "0.30.0").bytes_per_token
    assert kv_cache_layout(LLAMA, "0.30.0", kv_cache_dtype="fp8").bytes_per_token * 2 == sixteen
    assert kv_cache_layout(LLAMA, "0.30.0", dtype="float32").bytes_per_token == 2 * sixteen


def test_an_unknown_cache_dtype_is_refused():
    with pytest.raises(ValueError, match="'fp7' is not described"):
        kv_cache_layout(LLAMA, "0.30.0", kv_cache_dtype="fp7")


def test_the_checkpoints_own_cache_dtype_counts_from_0_14_on():
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    checkpoint = describe_config(dict(LLAMA_8B, quantization_config=quantization))
    assert kv_cache_layout(checkpoint, "0.13.0").bytes_per_token == 131072
    assert kv_cache_layout(checkpoint, "0.14.0").bytes_per_token == 65536
    assert kv_cache_layout(checkpoint, "0.14.0", kv_cache_dtype="bfloat16").bytes_per_token == 131072


def test_latent_attention_is_not_divided():
    one, eight = (kv_cache_layout(DEEPSEEK, "0.30.0", size) for size in (1, 8))
    assert one.bytes_per_token == eight.bytes_per_token == 61 * 576 * 2
    assert one.block_size == 64


def test_an_indexer_keeps_keys_of_its_own():
    sparse = describe_config(dict(DEEPSEEK_V3, index_topk=2048, index_head_dim=128, index_n_heads=64))
    layout = kv_cache_layout(sparse, "0.30.0")
    assert len(layout.groups) == 1
    assert layout.bytes_per_token == 61 * (576 * 2 + 132)
    assert kv_cache_layout(sparse, "0.30.0", kv_cache_dtype="fp8").bytes_per_token == 61 * (656 + 132)


def test_windows_make_groups_with_equal_layers_and_padding():
    """Gemma 3 27B: 52 layers with a window, 10 without: six groups and one, 70 slots for 62 layers."""
    layout = kv_cache_layout(GEMMA3, "0.19.0", max_model_len=8192)
    assert [group.cache.kind for group in layout.groups] == ["sliding"] * 6 + ["full"]
    assert sum(group.layers[0] for group in layout.groups) == 62
    assert layout.block_bytes == (10 * 16 * 16 * 2 * 128 * 2,)


def test_a_window_holds_what_is_under_way_and_one_block_more():
    layout = kv_cache_layout(GEMMA3, "0.19.0", max_model_len=131072, max_num_batched_tokens=2048)
    windowed, full = -(-(1023 + 2048) // 16) + 1, 131072 // 16
    assert layout.blocks_per_request() == 6 * windowed + full


def test_from_0_26_on_every_batch_under_way_counts():
    before, after = (kv_cache_layout(GEMMA3, release, max_num_batched_tokens=8192) for release in ("0.25.1", "0.26.0"))
    assert (before.tokens_in_flight, after.tokens_in_flight) == (8192, 16384)
    assert (
        kv_cache_layout(GEMMA3, "0.26.0", max_num_batched_tokens=8192, async_scheduling=False).tokens_in_flight == 8192
    )


def test_layers_with_smaller_pages_get_larger_blocks():
    """Gemma 4 31B, 0.23.0: 28.41 GiB, 97,541 tokens, 2.98x at 32,768; 0.26.0: 182.37 GiB, 13.25x at 16,384."""
    layout = kv_cache_layout(GEMMA4_31B, "0.23.0", max_model_len=32768, max_num_batched_tokens=8192)
    assert {(group.cache.kind, group.cache.block_size) for group in layout.groups} == {("sliding", 16), ("full", 32)}
    assert layout.max_concurrency(int(28.41 * GIB)) == pytest.approx(2.98, abs=0.005)
    assert layout.tokens(int(28.408 * GIB)) == pytest.approx(97_541, abs=40)
    later = kv_cache_layout(GEMMA4_31B, "0.26.0", max_model_len=16384, max_num_batched_tokens=8192)
    assert later.max_concurrency(int(182.37 * GIB)) == pytest.approx(13.25, abs=0.005)


def test_tokens_of_hybrid_models_mean_something_else_from_0_20_2_on():
    pool = 20 * GIB
    old, new = (kv_cache_layout(GEMMA3, release, max_model_len=131072) for release in ("0.20.1", "0.20.2"))
    assert old.max_concurrency(pool) == new.max_concurrency(pool)
    assert old.tokens(pool) == old.blocks(pool) // 7 * 16
    assert new.tokens(pool) == int(new.max_concurrency(pool) * 131072)


def test_without_the_hybrid_manager_windows_are_kept_whole():
    layout = kv_cache_layout(GEMMA3, "0.19.0", disable_hybrid_kv_cache_manager=True)
    assert [(group.cache.kind, group.layers) for group in layout.groups] == [("full", (62,))]
    assert kv_cache_layout(GEMMA3, "0.8.5").groups == layout.groups


def test_chunks_are_freed_from_0_14_on():
    config = dict(LLAMA_8B, model_type="llama4_text", attention_chunk_size=8192, no_rope_layers=[])
    checkpoint = describe_config(config)
    assert [group.cache.kind for group in kv_cache_layout(checkpoint, "0.13.0").groups] == ["full"]
    layout = kv_cache_layout(checkpoint, "0.19.0", max_model_len=131072, max_num_batched_tokens=8192)
    assert sorted(group.cache.kind for group in layout.groups) == ["chunked"] * 3 + ["full"]
    assert layout.blocks_per_request() == 3 * (16384 // 16) + 131072 // 16


def test_the_attention_block_grows_to_hold_a_state():
    """Qwen3-Next: a state of 1.1 MB a layer against 2048 B a token: blocks of 544 tokens."""
    layout = kv_cache_layout(NEXT, "0.19.0", max_model_len=32768)
    assert layout.block_size == 544
    assert [group.cache.kind for group in layout.groups] == ["state"] * 3 + ["full"]
    assert {group.cache.page_bytes for group in layout.groups} == {544 * 2048}


@pytest.mark.parametrize(
    ("release", "caching", "states"),
    [("0.25.1", None, 1), ("0.25.1", True, 2), ("0.26.0", None, 2), ("0.26.0", False, 1), ("0.33.0", None, 3)],
)
def test_states_of_a_request(release, caching, states):
    layout = kv_cache_layout(NEXT, release, enable_prefix_caching=caching)
    assert layout.groups[0].cache.states == states


def test_mamba_kept_a_state_per_block_in_0_26_and_0_27():
    config = dict(
        LLAMA_8B,
        model_type="bamba",
        attn_layer_indices=[9],
        mamba_n_heads=128,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
    )
    checkpoint = describe_config(config)
    per_block = kv_cache_layout(checkpoint, "0.27.1", max_model_len=65536)
    assert per_block.block_size % 256 == 0
    assert per_block.blocks_per_request() == len(per_block.groups) * -(-65536 // per_block.block_size)
    aligned = kv_cache_layout(checkpoint, "0.28.0", max_model_len=65536)
    assert aligned.groups[0].cache.states == 2


def test_the_least_of_the_pipeline_stages_counts():
    layout = kv_cache_layout(LLAMA, "0.19.0", 1, 2, max_model_len=8192)
    assert layout.block_bytes == (16 * 16 * 4096, 16 * 16 * 4096)
    assert layout.blocks([10 * GIB, 5 * GIB]) == 5 * GIB // (16 * 16 * 4096)
    with pytest.raises(ValueError, match="argument"):
        layout.blocks([1, 2, 3])


def test_context_parallel_ranks_divide_the_context():
    layout = kv_cache_layout(DEEPSEEK, "0.19.0", 8, decode_context_parallel_size=8, max_model_len=131072)
    assert layout.tokens(10 * GIB) == layout.blocks(10 * GIB) * 64 * 8
    assert layout.blocks_per_request() == 131072 // 8 // 64


def test_layers_that_share_a_cache_keep_none():
    checkpoint = describe_config(dict(GEMMA3_27B_TEXT, model_type="gemma4_text", num_kv_shared_layers=20))
    layout = kv_cache_layout(checkpoint, "0.30.0")
    assert sum(group.layers[0] for group in layout.groups) == 42


def test_layers_with_other_heads_are_one_group_all_the_same():
    blocks = [{"attention": {"n_heads_in_group": size}, "ffn": {"ffn_mult": 1.0}} for size in (8, 16)]
    checkpoint = describe_config(dict(LLAMA_8B, model_type="nemotron-nas", block_configs=blocks, num_hidden_layers=2))
    layout = kv_cache_layout(checkpoint, "0.30.0")
    assert [group.layers for group in layout.groups] == [(2,)]
    assert layout.bytes_per_token == (4 + 2) * 2 * 128 * 2


def test_required_bytes_include_the_block_that_is_never_given_out():
    layout = kv_cache_layout(LLAMA, "0.30.0", max_model_len=8192)
    assert layout.required_bytes(4, 1000) == (4 * 63 + 1) * layout.block_bytes[0]
    assert layout.max_concurrency(layout.required_bytes(4)) >= 4
    assert layout.required_bytes_by_stage(4, 1000) == [layout.required_bytes(4, 1000)]


def test_a_model_that_keeps_nothing_needs_nothing():
    model = describe_config(dict(LLAMA_8B, model_type="nemotron_h", num_hidden_layers=2, hybrid_override_pattern="--"))
    layout = kv_cache_layout(model, "0.30.0")
    assert (layout.required_bytes(10), layout.tokens(GIB), layout.bytes_per_token) == (0, 0, 0.0)
    assert layout.max_concurrency(GIB) == float("inf")


def recorded():
    """Public starts whose pool, tokens or concurrency are known, of one pipeline stage and of a known release."""
    if not CASES.exists():
        print(f"skipped: {CASES} is not there")
        return []
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    return [
        case
        for case in cases
        if case["pp"] == 1
        and case["measured"]["kv_pool_gib"]
        and (case["scorable"].get("kv_per_token") or case["scorable"].get("max_concurrency"))
        and re.match(r"\d", str(case["vllm_version"]))
    ]


@pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there")
@pytest.mark.parametrize("case", recorded(), ids=lambda case: case["id"])
def test_recorded_starts_are_met_exactly(case):
    checkpoint = describe_config(json.loads((CASES.parent / case["config"]).read_text()))
    layout = kv_cache_layout(
        checkpoint,
        re.match(r"\d+\.\d+(\.\d+)?", case["vllm_version"]).group(0),
        case["tp"],
        kv_cache_dtype=case["kv_cache_dtype"],
        dtype=case["dtype"],
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
    )
    measured = case["measured"]
    low, high = (int((measured["kv_pool_gib"] + step) * GIB) for step in (-HALF_STEP, HALF_STEP))
    if measured["kv_tokens"]:
        assert layout.tokens(low) <= measured["kv_tokens"] <= layout.tokens(high)
    if measured["max_concurrency"]:
        assert layout.max_concurrency(low) - 0.006 <= measured["max_concurrency"]
        assert measured["max_concurrency"] <= layout.max_concurrency(high) + 0.006

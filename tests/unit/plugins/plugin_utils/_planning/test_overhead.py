# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_examples import checkpoint

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import overhead
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.dimensions import Experts, dimensions
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.estimate import GIB, Estimate, remainder, total

H100 = overhead.Start(
    version=(0, 19, 0),
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    max_num_seqs=1024,
    max_num_batched_tokens=8192,
    dtype="bfloat16",
    quantization=None,
    enforce_eager=False,
    generates=True,
    compute_capability="9.0",
)
QWEN = dimensions(checkpoint("Qwen3-14B"))
LLAMA = dimensions(checkpoint("Llama-3.1-8B"))


def gib(estimate: Estimate) -> float:
    return estimate.value / GIB


def test_the_sampler_needs_less_from_0_17_on():
    old, new = (overhead.activation(QWEN, replace(H100, version=version), 0) for version in ((0, 16, 0), (0, 17, 0)))
    # Measured on one card with one model: 5.64 and 2.23 GiB.
    assert gib(old) == pytest.approx(5.64, abs=0.05)
    assert gib(new) == pytest.approx(2.23, abs=0.05)


def test_the_sampler_follows_the_sequences_and_the_forward_pass_the_tokens():
    few = overhead.activation(LLAMA, replace(H100, max_num_seqs=16), 0)
    many = overhead.activation(LLAMA, H100, 0)
    assert gib(few) < gib(many)
    short, long = (
        overhead.activation(LLAMA, replace(H100, max_num_seqs=16, max_num_batched_tokens=tokens), 0)
        for tokens in (2048, 16384)
    )
    assert gib(long) > 4 * gib(short)


def test_only_the_last_stage_samples_and_pooling_never_does():
    two_stages = replace(H100, pipeline_parallel_size=2)
    assert gib(overhead.activation(LLAMA, two_stages, 0)) < gib(overhead.activation(LLAMA, two_stages, 1))
    assert gib(overhead.activation(LLAMA, replace(H100, generates=False), 0)) < gib(overhead.activation(LLAMA, H100, 0))


def test_experts_add_a_workspace_for_the_whole_batch():
    # Mixtral-8x7B over two cards: 8192 tokens x 2 experts x 2 B x (7168 + 14336) elements = 0.656 GiB.
    mixtral = dimensions(checkpoint("Mixtral-8x7B"))
    assert overhead.moe_workspace(mixtral, replace(H100, tensor_parallel_size=2)) / GIB == pytest.approx(
        0.656, abs=0.001
    )
    narrow = replace(mixtral, experts=Experts(count=8, per_token=2, intermediate_size=1024))
    # Experts that are narrower than the model still need the width of the model, twice.
    assert overhead.moe_workspace(narrow, H100) == 8192 * 2 * 2 * (4096 + 4096)


def test_flashinfers_all_reduce_is_counted_where_it_is_on_by_default():
    two = replace(H100, tensor_parallel_size=2)
    assert overhead.fuses_all_reduce(two)
    for other in (
        replace(two, version=(0, 16, 0)),
        replace(two, compute_capability="8.0"),
        replace(two, pipeline_parallel_size=2),
        replace(two, data_parallel_size=2),
        H100,
    ):
        assert not overhead.fuses_all_reduce(other)
    assert gib(overhead.non_torch(LLAMA, two, 0)) == pytest.approx(2.07, abs=0.05)


@pytest.mark.parametrize(
    ("version", "architecture", "expected"),
    [
        ((0, 21, 0), "Qwen3ForCausalLM", False),
        ((0, 22, 1), "Qwen3ForCausalLM", True),
        ((0, 22, 1), "LlamaForCausalLM", False),
        ((0, 23, 0), "LlamaForCausalLM", True),
        ((0, 24, 0), "Qwen2ForCausalLM", False),
        ((0, 25, 0), "Qwen2ForCausalLM", True),
        ((0, 29, 0), "AnythingForCausalLM", True),
    ],
)
def test_the_runner_is_that_of_release_and_architecture(version, architecture, expected):
    shape = replace(QWEN, architecture=architecture)
    assert overhead.uses_v2_runner(shape, replace(H100, version=version)) is expected


def test_quantised_and_expert_models_keep_the_old_runner_longer():
    start = replace(H100, version=(0, 23, 0))
    assert not overhead.uses_v2_runner(QWEN, replace(start, quantization="fp8"))
    mixtral = dimensions(checkpoint("Mixtral-8x7B"))
    assert not overhead.uses_v2_runner(mixtral, replace(H100, version=(0, 26, 0)))


def test_graphs_are_counted_as_vllm_captures_them():
    # "PIECEWISE=51 (largest=512), FULL=35 (largest=256)" for 256 sequences, from a log of 0.19.
    assert overhead.captured_graphs(replace(H100, max_num_seqs=256)) == 51 + 35
    assert overhead.captured_graphs(H100) == 51 + 51
    # From 0.28 on data centre Blackwell captures to 1,024; no graph is larger than a batch.
    blackwell = replace(H100, version=(0, 31, 0), compute_capability="10.0")
    assert overhead.captured_graphs(blackwell) == 83 + 83
    assert overhead.captured_graphs(replace(blackwell, version=(0, 27, 1))) == 51 + 51
    assert overhead.captured_graphs(replace(H100, max_num_batched_tokens=256)) == 35 + 35
    assert overhead.cuda_graphs(LLAMA, replace(H100, enforce_eager=True)) == Estimate.exact(0.0)


def test_what_was_not_measured_is_extrapolated_and_wider():
    measured, guessed = (
        overhead.non_torch(LLAMA, H100, 0),
        overhead.non_torch(LLAMA, replace(H100, version=(0, 33, 0)), 0),
    )
    assert (measured.source, guessed.source) == ("calibrated", "extrapolated")
    assert guessed.high - guessed.low > measured.high - measured.low
    assert overhead.source_of(LLAMA, replace(H100, compute_capability="12.0")) == "extrapolated"


def test_every_release_of_the_catalogue_has_one_band_of_each_kind():
    data = overhead.coefficients()
    for version in ((0, 9, 0), (0, 11, 2), (0, 12, 0), (0, 16, 0), (0, 17, 0), (0, 19, 1), (0, 26, 0), (0, 33, 0)):
        for bands in (data["non_torch"], [band for band in data["sampler"] if band["runner"] == "v1"]):
            assert sum(overhead.in_band(band, version) for band in bands) == 1


def test_versions_compare_as_numbers():
    assert overhead.parse_version("v0.10.1.1") == (0, 10, 1, 1) > overhead.parse_version("0.9.2")


def test_a_sum_is_as_sure_as_its_least_sure_term_and_deviations_add_as_squares():
    terms = (Estimate.around(10, 3, 3), Estimate.around(20, 4, 4, "unverified"))
    assert total(terms) == Estimate(30, 25, 35, "unverified")
    assert remainder(100, terms) == Estimate(70, 65, 75, "unverified")


def test_latent_attention_up_projects_a_chunk_of_context():
    latent = {"kind": "mla", "num_heads": 128, "qk_nope_head_dim": 128, "v_head_dim": 128}
    shape = replace(LLAMA, layers=({"count": 61, "attention": latent, "mlp": {}},))
    few = replace(H100, max_num_seqs=8, max_model_len=163840)
    more = overhead.activation(shape, few, 0).value - overhead.activation(LLAMA, few, 0).value
    assert more == pytest.approx(64 * 1024 * 128 * (128 + 128) * 2)


def test_the_experts_kernel_is_that_of_precision_and_card():
    mixtral = dimensions(checkpoint("Mixtral-8x7B"))
    narrow = replace(mixtral, experts=Experts(count=8, per_token=8, intermediate_size=384))
    four_bits = replace(narrow, quantization={"method": "awq", "weight_bits": 4})
    assert overhead.moe_workspace(four_bits, H100) == 8192 * 8 * 2 * (4096 + 384)
    eight_bits = replace(narrow, quantization={"method": "fp8", "weight_bits": 8})
    assert overhead.moe_workspace(eight_bits, H100) > overhead.moe_workspace(
        eight_bits, replace(H100, compute_capability="8.0")
    )
    oss = replace(narrow, quantization={"method": "mxfp4", "weight_bits": 4})
    assert overhead.moe_workspace(oss, H100) == 0
    assert overhead.moe_workspace(oss, replace(H100, compute_capability="8.0")) > 0


IMAGES = replace(QWEN, model_type="qwen3_5", vision={"hidden_size": 1152, "num_hidden_layers": 27})


def test_the_vision_tower_is_divided_among_the_gpus_but_for_its_residual_stream():
    start = replace(H100, max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192)
    one, two, eight = (
        gib(overhead.activation(IMAGES, replace(start, tensor_parallel_size=size), 0)) for size in (1, 2, 8)
    )
    # One tower's hidden states of the largest image: 65,536 patches of 1,152 elements in bfloat16.
    stream = 65536 * 1152 * 2 / GIB
    assert one - two == pytest.approx(2 * (two - eight) / 1.5, rel=0.01)
    assert one > two > eight > 4 * stream


def test_up_to_0_11_the_tower_turns_queries_and_keys_in_float32():
    start = replace(H100, max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192)
    old, new = (overhead.activation(IMAGES, replace(start, version=version), 0) for version in ((0, 11, 2), (0, 12, 0)))
    assert gib(old) > gib(new) + 0.3


def test_an_eager_start_on_a_card_that_was_not_measured_takes_less_beside_torch():
    other = replace(H100, compute_capability="8.6")
    eager = overhead.non_torch(LLAMA, replace(other, enforce_eager=True), 0)
    assert gib(eager) < gib(overhead.non_torch(LLAMA, other, 0))
    # Measured on an H100, so that no start without torch.compile needs to stand for it.
    assert overhead.non_torch(LLAMA, replace(H100, enforce_eager=True), 0) == overhead.non_torch(LLAMA, H100, 0)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_several_gpus_without_fused_all_reduce_take_more_from_0_17_on(size):
    before, after = (
        replace(H100, compute_capability="8.9", tensor_parallel_size=size, version=version)
        for version in ((0, 16, 0), (0, 17, 1))
    )
    old, new = overhead.non_torch(LLAMA, before, 0), overhead.non_torch(LLAMA, after, 0)
    assert gib(new) > gib(old) + 0.2
    # Eight L40S took 0.21 GiB in all (0.10.2).
    assert gib(overhead.non_torch(LLAMA, replace(before, version=(0, 10, 2)), 0)) < 0.3


def test_from_0_20_on_a_first_start_compiles_within_the_profile():
    start = replace(H100, compute_capability="8.9", max_num_seqs=64, max_num_batched_tokens=2048)
    old, new, eager = (
        overhead.activation(LLAMA, replace(start, version=version, enforce_eager=eager), 0)
        for version, eager in (((0, 19, 1), False), ((0, 26, 0), False), ((0, 26, 0), True))
    )
    assert gib(new) > gib(old) + 0.2
    assert gib(eager) < 0.4
    # Later starts find the cache filled: the low end is theirs. A larger peak of the sampler hides the difference.
    assert new.low < eager.high
    assert gib(overhead.activation(QWEN, replace(H100, version=(0, 20, 0)), 0)) == pytest.approx(
        gib(overhead.activation(QWEN, H100, 0)), abs=0.01
    )


def test_from_0_17_to_0_19_a_first_start_may_compile_within_the_profile_on_cards_that_were_not_measured():
    small = replace(H100, version=(0, 19, 0), max_num_seqs=64, max_num_batched_tokens=2048)
    measured, other = (
        overhead.activation(LLAMA, replace(small, compute_capability=capability), 0) for capability in ("9.0", "8.6")
    )
    assert gib(other) == pytest.approx(gib(measured), abs=0.05)
    assert other.high > 1.15 * 2**30 > measured.high

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace

from planning_examples import checkpoint, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.dimensions import dimensions
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.hosts import read_hosts
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.parallelism import (
    distance,
    division_faults,
    layouts,
    nearest,
)

LLAMA = dimensions(checkpoint("Llama-3.1-70B"))


def sizes(shape, there, tensor=None, pipeline=None):
    return [
        (item.tensor_parallel_size, item.pipeline_parallel_size) for item in layouts(shape, there, tensor, pipeline)
    ]


def test_heads_vocabulary_and_widths_must_divide():
    assert division_faults(LLAMA, 4) == []
    assert any("attention heads" in fault for fault in division_faults(LLAMA, 6))
    odd = replace(LLAMA, vocab_size=128256 + 64)
    assert any("vocabulary, padded to 128320," in fault for fault in division_faults(odd, 128))


def test_key_value_heads_are_divided_or_repeated():
    assert not any("key-value" in fault for fault in division_faults(LLAMA, 16))
    five = [{**layer, "attention": {**layer["attention"], "num_kv_heads": 5}} for layer in LLAMA.layers]
    assert any(
        "5 key-value heads and 4 GPUs" in fault for fault in division_faults(replace(LLAMA, layers=tuple(five)), 4)
    )


def test_block_wise_fp8_needs_whole_blocks_on_every_card():
    blocks = {"method": "fp8", "schemes": {"fp8_block": {"granularity": "block", "block": [128, 128]}}}
    narrow = [{**layer, "mlp": {**layer["mlp"], "intermediate_size": 1536}} for layer in LLAMA.layers]
    quantised = replace(LLAMA, quantization=blocks, layers=tuple(narrow))
    assert division_faults(quantised, 4) == []
    assert any("no whole blocks of 128" in fault for fault in division_faults(quantised, 8))


def test_one_card_first_then_the_fewest_then_stages_then_hosts():
    one_host = sizes(LLAMA, read_hosts(hosts(8), {}))
    assert one_host[:4] == [(1, 1), (2, 1), (4, 1), (8, 1)]
    assert all(pipeline > 1 for _tensor, pipeline in one_host[4:])
    two = read_hosts([host(gpu(0), gpu(1), name="a"), host(gpu(0), gpu(1), name="b")], {})
    assert sizes(LLAMA, two) == [(1, 1), (2, 1), (1, 2), (1, 2), (2, 2), (1, 4)]


def test_six_cards_are_used_in_stages_where_they_cannot_be_divided():
    assert (2, 3) in sizes(LLAMA, read_hosts(hosts(6), {}))
    assert (6, 1) not in sizes(LLAMA, read_hosts(hosts(6), {}))


def test_pins_are_the_only_layouts():
    assert sizes(LLAMA, read_hosts(hosts(8), {}), tensor=2, pipeline=2) == [(2, 2)]


def test_three_cards_that_cannot_be_divided_become_three_stages():
    planned = plan(instance("Llama-3.1-70B", workload={"context": 16384, "sequences": 8}), hosts(3))
    # 64 heads are not divisible by 3; two cards hold the weights, but not the 40 GiB of the promise beside them.
    assert planned["verdict"] == "fits"
    assert planned["parallel"]["tensor_parallel_size"] == 1
    assert planned["parallel"]["pipeline_parallel_size"] == 3


def test_neighbours_by_nvlink_are_taken_together():
    links = [
        ["X", "SYS", "NV12", "SYS"],
        ["SYS", "X", "SYS", "NV12"],
        ["NV12", "SYS", "X", "SYS"],
        ["SYS", "NV12", "SYS", "X"],
    ]
    there = read_hosts([host(*(gpu(index) for index in range(4)), links=links)], {})[0]
    assert [item.index for item in nearest(there, 2)] == [0, 2]
    assert distance("NV18") < distance("NV4") < distance("PIX") < distance("SYS") < distance("")


def test_a_full_neighbour_is_not_taken():
    links = [["X", "NV12", "SYS"], ["NV12", "X", "SYS"], ["SYS", "SYS", "X"]]
    there = read_hosts([host(gpu(0), gpu(1, others_mib=60_000), gpu(2), links=links)], {})[0]
    assert [item.index for item in nearest(there, 2)] == [0, 2]


def test_cards_of_one_kind_are_preferred_over_a_mixture():
    there = read_hosts([host(gpu(0, "RTX 4090"), gpu(1), gpu(2))], {})[0]
    assert {item.name for item in nearest(there, 2)} == {"NVIDIA H100 80GB HBM3"}


def test_many_cards_are_chosen_among_quickly_and_near():
    links = [
        ["X" if row == column else ("NV4" if row // 8 == column // 8 else "SYS") for column in range(16)]
        for row in range(16)
    ]
    there = read_hosts([host(*(gpu(index, others_mib=2048 * (index == 0)) for index in range(16)), links=links)], {})[0]
    assert [item.index for item in nearest(there, 8)] == list(range(8, 16))


def test_mig_devices_are_cards_of_their_own_and_never_joined():
    parts = [
        {
            "index": number,
            "uuid": f"MIG-{number}",
            "profile": "3g.40gb",
            "memory_total_mib": 40448,
            "memory_free_mib": 40400,
            "memory_used_mib": 48,
        }
        for number in range(2)
    ]
    divided = [host(gpu(0, mig={"mode": "Enabled", "instances": parts}))]
    planned = plan(instance(workload={"context": 8192, "sequences": 4}), divided)
    assert planned["devices"] == {"gpu1": ["MIG-0"]}
    too_large = plan(instance("Llama-3.1-70B"), divided)
    assert too_large["verdict"] == "does_not_fit"


def test_a_card_that_the_driver_lost_is_not_planned_with():
    assert plan(instance(), [host(gpu(0, state="lost"), gpu(1))])["devices"] == {"gpu1": ["GPU-H100-1"]}
    assert plan(instance(), [host(gpu(0, state="lost"))])["verdict"] == "unsupported"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose, ladder
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.change import _PROPOSALS
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.ladder import _ladders

NO_BLOCKS = "ValueError: No available memory for the cache blocks."
TOO_LONG = (
    "ValueError: To serve at least one request with the model's max seq len (32768), 4.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.50 GiB). Based on the available memory, the estimated "
    "maximum model length is 12290."
)


def gpus(count, free=80000):
    return [{"gpus": [{"memory_total_mib": 81559, "memory_free_mib": free} for _index in range(count)]}]


def climb(line, pins, hosts=None, steps=20, **instance):
    """The changes that the ladder proposes when every start fails alike."""
    pins, ledger = dict(pins), []
    while True:
        context = {"instance": {"engine_args": pins, **instance}, "hosts": hosts or []}
        told = ladder(diagnose(line, context), context, ledger, max_steps=steps)
        if told["verdict"] != "try":
            return ledger, told
        change = told["change"]
        ledger.append(change)
        pins[change["variable"].partition(".")[2]] = change["to"]


def test_every_proposal_of_the_ladder_is_known():
    for rungs in _ladders().values():
        for rung in rungs:
            assert ("propose" in rung) != ("to" in rung)
            assert rung.get("propose", "halve") in _PROPOSALS
            assert rung["why"].endswith(".")


def test_memory_follows_the_official_order():
    pins = {"gpu_memory_utilization": 0.85, "max_num_seqs": 4, "max_num_batched_tokens": 4096, "max_model_len": 8192}
    ledger, told = climb(NO_BLOCKS, pins, gpus(2))
    assert [(row["variable"].partition(".")[2], row["to"]) for row in ledger] == [
        ("gpu_memory_utilization", 0.9),
        ("gpu_memory_utilization", 0.95),
        ("max_num_seqs", 2),
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 2048),
        ("max_num_batched_tokens", 1024),
        ("max_model_len", 4096),
        ("max_model_len", 2048),
        ("tensor_parallel_size", 2),
    ]
    assert (told["verdict"], told["change"]) == ("exhausted", None)


def test_the_utilization_is_raised_only_into_free_memory():
    ledger, _told = climb(NO_BLOCKS, {"gpu_memory_utilization": 0.85, "max_num_seqs": 2}, gpus(1, free=71000))
    assert ledger[0] == {"variable": "engine_args.max_num_seqs", "from": 2, "to": 1}


@pytest.mark.parametrize(("prefer", "first"), [("sequences", "max_model_len"), ("context", "gpu_memory_utilization")])
def test_the_workload_decides_whether_the_length_is_given_up_first(prefer, first):
    ledger, _told = climb(TOO_LONG, {"gpu_memory_utilization": 0.8}, gpus(1), workload={"prefer": prefer})
    assert ledger[0]["variable"] == f"engine_args.{first}"
    assert {"variable": "engine_args.max_model_len", "from": 32768, "to": 12288} in ledger


def test_weights_are_divided_only_over_gpus_that_are_there():
    line = "Failed to load model - not enough GPU memory"
    ledger, told = climb(line, {}, gpus(4), checkpoint={"num_attention_heads": 32})
    assert [row["to"] for row in ledger] == [2, 4]
    assert told["verdict"] == "exhausted"
    ledger, _told = climb(line, {}, gpus(4), checkpoint={"num_attention_heads": 14})
    assert [(row["variable"], row["to"]) for row in ledger] == [
        ("engine_args.tensor_parallel_size", 2),
        ("engine_args.pipeline_parallel_size", 2),
    ]


def test_which_allocation_failed_decides_the_direction():
    oom = "torch.OutOfMemoryError: CUDA out of memory."
    pins = {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}
    graphs, _told = climb(f"Capturing CUDA graphs (decode, FULL):  40%|##| 14/35 [00:01]\n{oom}", pins)
    sampler, _told = climb("CUDA out of memory occurred when warming up sampler with 256 dummy requests", pins)
    assert graphs[0] == {"variable": "engine_args.gpu_memory_utilization", "from": 0.9, "to": 0.85}
    assert sampler[0] == {"variable": "engine_args.max_num_seqs", "from": 256, "to": 128}


def test_eager_is_a_probe():
    told = ladder(diagnose("RuntimeError: CUDA error: an illegal memory access was encountered"))
    assert told["change"] == {"variable": "engine_args.enforce_eager", "from": None, "to": True}
    assert told["probe"]


def test_multi_gpu_trouble_turns_off_the_custom_all_reduce():
    ledger, _told = climb("Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'", {})
    assert [row["variable"] for row in ledger] == [
        "engine_args.disable_custom_all_reduce",
        "environment.NCCL_P2P_DISABLE",
    ]


def test_the_ladder_is_bounded():
    ledger, told = climb(NO_BLOCKS, {"gpu_memory_utilization": 0.5, "max_num_seqs": 256}, steps=3)
    assert len(ledger) == 3
    assert (told["verdict"], told["steps_left"]) == ("exhausted", 0)


def test_a_class_without_a_ladder_uses_the_change_of_its_finding():
    told = ladder(diagnose("[Errno 98] address already in use", {"instance": {"port": 8000}}))
    assert (told["verdict"], told["change"]) == ("try", {"variable": "port", "from": 8000, "to": 8001})


@pytest.mark.parametrize("line", ["Failed to initialize NVML: Driver/library version mismatch", "hello"])
def test_where_no_change_helps_it_says_look(line):
    told = ladder(diagnose(line))
    assert (told["verdict"], told["change"]) == ("look", None)
    assert told["why"]


def test_the_plan_says_what_hardware_is_needed():
    findings = diagnose("Failed to load model - not enough GPU memory")
    told = ladder(findings, {"plan": {"needs": ["2 GPUs of 80 GiB"]}, "hosts": gpus(1)})
    assert told["why"] == "No change helps. Needed: 2 GPUs of 80 GiB."

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from planning_examples import argument, gpu, host, hosts, instance

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan


def test_a_card_without_bfloat16_gets_float16_and_is_told():
    planned = plan(instance("tiny"), hosts(1, "T4"))
    assert argument(planned, "dtype") == "float16"
    assert any("float16 in place of" in item["decision"] for item in planned["decisions"])


def test_precision_is_never_changed_where_the_card_can_do_it():
    planned = plan(instance(), hosts())
    assert not {"dtype", "quantization", "kv_cache_dtype"} & {item["name"] for item in planned["arguments"]}


def test_bfloat16_pinned_on_a_card_without_it_is_refused():
    planned = plan(instance("tiny", engine_args={"dtype": "bfloat16"}), hosts(1, "T4"))
    assert planned["verdict"] == "unsupported"
    assert any("bfloat16" in need for need in planned["needs"])


def test_fp8_below_8_9_is_said_to_save_memory_only():
    planned = plan(instance(engine_args={"quantization": "fp8"}), hosts(1, "A100"))
    assert planned["verdict"] == "fits"
    assert any("quantization" in item["decision"] for item in planned["decisions"])
    assert planned["budget"][0]["weights_gib"]["value"] < 10


def test_an_8_bit_kv_cache_holds_twice_the_tokens():
    pinned = {"kv_cache_memory_bytes": 2**30, "max_model_len": 4096}
    plain = plan(instance(engine_args=pinned), hosts())
    small = plan(instance(engine_args={**pinned, "kv_cache_dtype": "fp8"}), hosts())
    assert small["kv"]["tokens"] == 2 * plain["kv"]["tokens"]


def test_a_driver_that_is_too_old_is_a_rule():
    old = hosts()
    old[0].update(driver_version="470.82.01", cuda_driver_version="11.4")
    planned = plan(instance(release="0.32.0"), old)
    assert planned["verdict"] == "unsupported"
    assert any(need.startswith("driver on gpu1") for need in planned["needs"])


def test_where_driver_or_card_forbids_it_a_pinned_division_is_predicted_all_the_same():
    """A public start of vLLM 0.18.0 on a V100, for which the image has no kernels: 13.1 GiB of KV pool."""
    volta = gpu(0, "V100", memory_free_mib=32493)
    pins = {"tensor_parallel_size": 1, "max_model_len": 32768, "max_num_batched_tokens": 8192, "enforce_eager": True}
    pins |= {"gpu_memory_utilization": 0.9, "max_num_seqs": 256, "dtype": "float16"}
    planned = plan(instance("Qwen2.5-7B", "0.18.0", engine_args=pins), [host(volta)])
    assert planned["verdict"] == "unsupported"
    assert any(need.startswith("compute_capability") for need in planned["needs"])
    pool = planned["budget"][0]["kv_pool_gib"]
    assert pool["low"] < 13.1 < pool["high"]
    assert planned["kv"]["tokens"] == pytest.approx(245_360, rel=0.03)
    assert plan(instance("Qwen2.5-7B", "0.18.0"), [host(volta)])["budget"] == []


@pytest.mark.parametrize(("name", "value"), [("dtype", "bfloat16"), ("quantization", "fp8"), ("kv_cache_dtype", "fp8")])
def test_the_same_words_in_extra_args_are_judged_alike(name, value):
    pinned = plan(instance("tiny", engine_args={name: value}), hosts(1, "T4"))
    in_words = plan(instance("tiny", extra_args=[f"--{name.replace('_', '-')}", value]), hosts(1, "T4"))
    said = ("verdict", "needs", "decisions", "warnings", "budget")
    assert [in_words[key] for key in said] == [pinned[key] for key in said]

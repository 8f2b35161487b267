# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose_serving
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.metrics import parse_metrics

STANDSTILL = {"running": 4, "waiting": 2, "usage": 0.3, "preemptions": 0, "tokens": 900}
LINEAR = "(EngineCore pid=9) INFO 05-30 07:43:37 [__init__.py:779] Selected {} for Fp8LinearMethod"
MOE = "(EngineCore pid=9) INFO 05-30 07:43:37 [fp8.py:266] Using {} Fp8 MoE backend out of potential backends: ['X']."


def exposition(running, waiting, usage, preemptions, tokens, cache="vllm:kv_cache_usage_perc"):
    return f"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="chat"}} {running}.0
vllm:num_requests_waiting{{engine="0",model_name="chat"}} {waiting}.0
{cache}{{engine="0",model_name="chat"}} {usage}
vllm:num_preemptions_total{{engine="0",model_name="chat"}} {preemptions}.0
vllm:prompt_tokens_total{{engine="0",model_name="chat"}} 1.2e+03
vllm:generation_tokens_total{{engine="0",model_name="chat"}} {tokens}.0
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="chat"}} 7.0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000",engine="0"}} 1.0
"""


def looks(first, last=None, seconds=5.0):
    second = last or first
    return [
        {"seconds": 0.0, "metrics": exposition(**first), "healthy": True},
        {"seconds": seconds, "metrics": exposition(**second), "healthy": True},
    ]


def with_pins(**pins):
    return {"instance": {"engine_args": pins, "image": "vllm/vllm-openai:v0.32.0"}}


def test_the_figures_of_metrics():
    metrics = parse_metrics(exposition(3, 2, 0.25, 1, 900))
    assert (metrics.running, metrics.waiting, metrics.kv_cache_usage, metrics.preemptions) == (3, 2, 0.25, 1)
    assert (metrics.generation_tokens, metrics.finished, metrics.num_gpu_blocks, metrics.block_size) == (
        900,
        7,
        1000,
        16,
    )


def test_the_older_name_of_the_cache_and_several_engines():
    first = exposition(3, 0, 0.25, 0, 10, cache="vllm:gpu_cache_usage_perc")
    metrics = parse_metrics(first + first.replace('engine="0"', 'engine="1"').replace("0.25", "0.75"))
    assert (metrics.running, metrics.kv_cache_usage) == (6, 0.75)


@pytest.mark.parametrize("text", ["", "<html>502</html>", 'python_info{version="3.12"} 1.0'])
def test_what_is_no_engine_has_no_figures(text):
    assert parse_metrics(text) is None


def test_an_engine_that_works_has_no_finding():
    first = {"running": 4, "waiting": 0, "usage": 0.3, "preemptions": 2, "tokens": 900}
    assert diagnose_serving(looks(first, {**first, "tokens": 1300}), "", with_pins(max_num_seqs=256)) == []


def test_an_idle_engine_has_no_finding():
    assert diagnose_serving(looks({"running": 0, "waiting": 0, "usage": 0.0, "preemptions": 0, "tokens": 9})) == []


def test_requests_wait_for_the_limit_of_sequences():
    first = {"running": 8, "waiting": 12, "usage": 0.2, "preemptions": 0, "tokens": 900}
    (finding,) = diagnose_serving(looks(first, {**first, "tokens": 1300}), "", with_pins(max_num_seqs=8))
    assert finding["title"] == "Requests wait for max_num_seqs"
    assert finding["change"] == {"variable": "engine_args.max_num_seqs", "from": 8, "to": 16}


def test_each_of_several_engines_has_its_own_limit():
    first = {"running": 9, "waiting": 2, "usage": 0.2, "preemptions": 0, "tokens": 900}
    samples = looks(first, {**first, "tokens": 1300})
    assert diagnose_serving(samples, "", with_pins(max_num_seqs=8, data_parallel_size=2)) == []
    assert diagnose_serving(samples, "", with_pins(max_num_seqs=8)) != []


def test_requests_that_are_deferred_do_not_wait_for_the_limit():
    first = {"running": 8, "waiting": 3, "usage": 0.2, "preemptions": 0, "tokens": 900}
    deferred = 'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 3.0\n'
    samples = looks(first, {**first, "tokens": 1300})
    samples = [{**sample, "metrics": sample["metrics"] + deferred} for sample in samples]
    assert diagnose_serving(samples, "", with_pins(max_num_seqs=8)) == []


def test_preemptions_ask_for_fewer_sequences():
    first = {"running": 40, "waiting": 9, "usage": 0.99, "preemptions": 5, "tokens": 900}
    (finding,) = diagnose_serving(
        looks(first, {**first, "tokens": 1300, "preemptions": 11}), "", with_pins(max_num_seqs=64)
    )
    assert finding["title"] == "The KV cache is full"
    assert finding["change"] == {"variable": "engine_args.max_num_seqs", "from": 64, "to": 30}
    assert "6 preemptions" in finding["evidence"]["line"]


def test_a_full_cache_without_preemptions_is_a_queue():
    first = {"running": 40, "waiting": 9, "usage": 0.99, "preemptions": 5, "tokens": 900}
    (finding,) = diagnose_serving(looks(first, {**first, "tokens": 1300}), "", with_pins(max_num_seqs=64))
    assert (finding["title"], finding["change"]) == ("The KV cache is full", None)


def test_several_gpus_that_make_no_token_wait_for_each_other():
    findings = diagnose_serving(looks(STANDSTILL), "", with_pins(tensor_parallel_size=2))
    assert findings[0]["class"] == "nccl_hang"
    assert findings[0]["change"] == {"variable": "engine_args.disable_custom_all_reduce", "from": False, "to": True}


def test_without_the_custom_all_reduce_p2p_is_next():
    log = (
        "WARNING 05-30 07:43:37 [custom_all_reduce.py:143] Custom allreduce is disabled because your platform lacks P2P"
    )
    findings = diagnose_serving(looks(STANDSTILL), log, with_pins(tensor_parallel_size=2))
    assert findings[0]["change"]["variable"] == "environment.NCCL_P2P_DISABLE"


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (LINEAR.format("DeepGemmFp8BlockScaledMMKernel"), ("environment.VLLM_USE_DEEP_GEMM", None, "0")),
        (LINEAR.format("CutlassFp8BlockScaledMMKernel"), ("engine_args.linear_backend", "auto", "triton")),
        (MOE.format("FLASHINFER_CUTLASS"), ("engine_args.moe_backend", "auto", "triton")),
        (MOE.format("DEEPGEMM"), ("environment.VLLM_USE_DEEP_GEMM", None, "0")),
        ("INFO 05-30 [fp8.py:190] Using DeepGEMM backend for FP8 MoE", ("environment.VLLM_USE_DEEP_GEMM", None, "0")),
    ],
)
def test_on_one_gpu_it_is_the_kernel_that_the_log_names(line, change):
    (finding,) = diagnose_serving(looks(STANDSTILL), line, with_pins())
    assert finding["class"] == "kernel_backend"
    assert finding["evidence"] == {"line": line, "line_number": 1}
    assert tuple(finding["change"].values()) == change


def test_a_release_without_the_argument_gets_no_change():
    context = {"instance": {"engine_args": {}, "image": "vllm/vllm-openai:v0.16.0"}}
    (finding,) = diagnose_serving(looks(STANDSTILL), LINEAR.format("CutlassFp8BlockScaledMMKernel"), context)
    assert finding["change"] is None


def test_on_one_gpu_without_a_named_kernel_eager_is_a_probe():
    (finding,) = diagnose_serving(looks(STANDSTILL), "", with_pins())
    assert finding["change"] == {"variable": "engine_args.enforce_eager", "from": False, "to": True}


def test_a_first_request_that_hangs_shows_in_no_figure():
    idle = {"running": 0, "waiting": 0, "usage": 0.0, "preemptions": 0, "tokens": 0}
    context = {**with_pins(tensor_parallel_size=2), "request": {"rc": 124, "seconds": 30.0}}
    findings = diagnose_serving(looks(idle, seconds=30.0), "", context)
    assert findings[0]["class"] == "nccl_hang"
    assert "no answer" in findings[0]["evidence"]["line"]
    assert diagnose_serving(looks(idle), "", {**context, "request": {"rc": 0, "seconds": 0.3}}) == []


def test_two_looks_too_close_prove_no_standstill():
    assert diagnose_serving(looks(STANDSTILL, seconds=1.0), "", with_pins()) == []


def test_a_slow_disk_is_seen_in_the_progress():
    log = """\
INFO 05-30 07:40:00 [weight_utils.py:922] Filesystem type for checkpoints: NFS4. Checkpoint size: 60.00 GiB.
Loading safetensors checkpoint shards:  50% Completed | 15/30 [10:00<10:00, 40.1s/it]
"""
    (finding,) = diagnose_serving([], log, {"phase": "loading weights"})
    assert (finding["class"], finding["change"]) == ("disk_full", None)
    assert "51 MiB/s" in finding["explanation"]
    assert "NFS4, a network file system" in finding["explanation"]
    assert finding["evidence"]["line_number"] == 2


def test_a_fast_disk_is_no_finding():
    log = "Checkpoint size: 60.00 GiB\nLoading safetensors checkpoint shards:  50% Completed | 15/30 [00:10<00:10]"
    assert diagnose_serving([], log, {"phase": "loading weights"}) == []


def test_attempts_to_download():
    line = (
        "WARNING 05-30 07:43:37 [x.py:1] '(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): "
        "exceeded\"))' thrown while requesting HEAD https://huggingface.co/x/resolve/main/processor_config.json"
    )
    (finding,) = diagnose_serving([], f"{line}\nINFO:     Application startup complete.\n{line}")
    assert finding["class"] == "model_not_found_offline"
    assert finding["change"] == {"variable": "environment.HF_HUB_OFFLINE", "from": None, "to": "1"}
    assert diagnose_serving([], line) == []

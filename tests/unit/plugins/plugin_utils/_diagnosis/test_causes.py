# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.change import _PROPOSALS
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.signatures import signatures

HERE = Path(__file__).parent
REAL_FAILURES = Path(__file__).resolve().parents[6] / "shared" / "data" / "failures.jsonl"
FAILURES = [
    (failure_class, line)
    for failure_class, lines in yaml.safe_load((HERE / "failures.yml").read_text()).items()
    for line in lines
]
HEALTHY = sorted((HERE / "healthy").glob("*.log"))
BOOT_LOGS = sorted((HERE.parents[1] / "module_utils" / "boot_logs").glob("*.log"))
CLASSES = [
    "oom_weights",
    "oom_kv_cache",
    "oom_runtime",
    "oom_cudagraph",
    "gpu_shared_free_memory",
    "max_model_len_exceeds_kv",
    "driver_cuda_mismatch",
    "compute_capability_too_low",
    "bf16_unsupported",
    "fp8_unsupported",
    "arch_not_supported",
    "trust_remote_code",
    "tokenizer_transformers_version",
    "tp_divisibility",
    "nccl_init",
    "nccl_hang",
    "custom_all_reduce",
    "ray_cluster",
    "shm_ipc",
    "model_not_found_offline",
    "gated_auth",
    "corrupted_weights",
    "port_in_use",
    "flag_unknown",
    "quantization_mismatch",
    "kernel_backend",
    "embedding_task",
    "chat_template_missing",
    "mount_permissions",
    "disk_full",
    "container_runtime",
    "other",
]
# How the public collection of failures names some classes.
OTHER_NAMES = {
    "hf_offline/model_not_found": "model_not_found_offline",
    "tokenizer/transformers_version": "tokenizer_transformers_version",
    "gated/auth_401": "gated_auth",
    "container_runtime (nvidia runtime missing)": "container_runtime",
    "kernel_backend(deepgemm/flashinfer/marlin)": "kernel_backend",
    "flag_unknown/removed": "flag_unknown",
    "permissions/mount": "mount_permissions",
    "disk_full/slow": "disk_full",
    "engine_core_died_generic": "other",
}
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU 0 has a total capacity of"


def first(log, context=None):
    return diagnose(log, context)[0]


def test_every_class_has_signatures_and_no_other():
    assert sorted({signature.failure_class for signature in signatures()}) == sorted(CLASSES)


def test_every_proposed_change_is_known():
    for signature in signatures():
        if signature.change is not None:
            assert "variable" in signature.change
            assert signature.change.get("propose", "captured") in _PROPOSALS
            assert ("propose" in signature.change) != ("to" in signature.change)


@pytest.mark.parametrize(("failure_class", "line"), FAILURES)
def test_the_class_of_an_error_line(failure_class, line):
    assert first(line)["class"] == failure_class


def test_every_class_has_a_line():
    assert sorted({failure_class for failure_class, _line in FAILURES}) == sorted(CLASSES)


def test_real_failures_are_told_right_in_nine_of_ten():
    if not REAL_FAILURES.exists():
        print(f"skipped: {REAL_FAILURES} is absent")
        pytest.skip(f"{REAL_FAILURES} is absent")
    records = [json.loads(line) for line in REAL_FAILURES.read_text().splitlines()]
    wrong = []
    for record in records:
        findings = diagnose(record["error"])
        told = findings[0]["class"] if findings else None
        if told != OTHER_NAMES.get(record["class"], record["class"]):
            wrong.append((record["class"], told, record["error"]))
    assert len(records) >= 90
    assert len(wrong) <= len(records) * 0.1, wrong


@pytest.mark.parametrize("path", HEALTHY + BOOT_LOGS, ids=lambda path: path.stem)
def test_a_healthy_log_has_no_finding_at_any_moment(path):
    lines = path.read_text().splitlines()
    assert len(lines) > 5
    for count in range(1 + len(lines) % 3, len(lines) + 1, 1 if len(lines) < 60 else 3):
        assert diagnose("\n".join(lines[:count])) == [], lines[count - 1]


@pytest.mark.parametrize("log", ["", "\n\n", "hello", "INFO 05-30 07:40:19 [x.py:1] non-default args: {}"])
def test_nothing_is_found_in_nothing(log):
    assert diagnose(log) == []


def test_a_line_that_a_slow_start_has_too_counts_only_when_it_does_not_end():
    line = "INFO 05-30 07:40:19 [shm.py:466] No available shared memory broadcast block found in 60 seconds.\n"
    assert diagnose(3 * line) == []
    assert [finding["class"] for finding in diagnose(15 * line)] == ["nccl_hang"]


def test_the_finding_is_whole():
    finding = first("\n\nValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.")
    assert set(finding) == {"class", "title", "evidence", "explanation", "change", "confidence", "reference"}
    assert finding["evidence"]["line_number"] == 3
    assert finding["change"] == {"variable": "engine_args.dtype", "from": "bfloat16", "to": "float16"}
    assert 0.9 <= finding["confidence"] <= 1
    assert finding["reference"].startswith("https://")


@pytest.mark.parametrize(
    ("before", "failure_class"),
    [
        ("Loading safetensors checkpoint shards:  23% Completed | 7/30 [00:10<00:33]", "oom_weights"),
        ("INFO 05-30 07:44:00 [x.py:5132] Model loading took 70.1 GiB memory and 17 seconds", "oom_runtime"),
        ("Capturing CUDA graphs (decode, FULL):  40%|####      | 14/35 [00:01<00:01]", "oom_cudagraph"),
        ("(APIServer pid=1) INFO:     Application startup complete.", "oom_runtime"),
        ('  File "x.py", line 5, in load_model', "oom_weights"),
        ('  File "x.py", line 5, in _dummy_sampler_run', "oom_runtime"),
        ('  File "x.py", line 5, in capture_model', "oom_cudagraph"),
        ('  File "x.py", line 5, in _allocate_kv_cache_tensors', "oom_kv_cache"),
    ],
)
def test_which_allocation_failed(before, failure_class):
    assert first(f"{before}\n{OOM}")["class"] == failure_class


def test_the_consequence_is_never_the_cause():
    log = f"""\
(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] EngineCore failed to start.
(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] Traceback (most recent call last):
(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700]   File "gpu_worker.py", line 330, in load_model
(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] {OOM}
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "core_client.py", line 448, in __init__
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""
    findings = diagnose(log)
    assert findings[0]["class"] == "oom_weights"
    assert findings[0]["evidence"]["line_number"] == 4
    assert all("Engine core initialization" not in finding["evidence"]["line"] for finding in findings)


def test_of_an_unknown_failure_the_first_exception_is_shown():
    log = """\
(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] Traceback (most recent call last):
(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ZeroDivisionError: integer modulo by zero
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
    finding = first(log)
    assert (finding["class"], finding["change"], finding["evidence"]["line_number"]) == ("other", None, 2)


def test_the_rank_that_failed_first_counts():
    log = """\
(Worker_TP1 pid=11) ERROR 05-30 18:55:07 [x.py:1] Traceback (most recent call last):
(Worker_TP1 pid=11) ERROR 05-30 18:55:07 [x.py:1] RuntimeError: CUDA error: no kernel image is available for execution
(Worker_TP0 pid=10) ERROR 05-30 18:55:09 [x.py:1] Traceback (most recent call last):
(Worker_TP0 pid=10) ERROR 05-30 18:55:09 [x.py:1] torch.distributed.DistBackendError: NCCL error: remote process exited
"""
    assert [finding["class"] for finding in diagnose(log)] == ["compute_capability_too_low", "nccl_init"]


def test_an_error_that_the_engine_survived_is_behind_the_one_that_ended_it():
    log = """\
(APIServer pid=1) ERROR 05-30 18:55:01 [repo_utils.py:47] Error retrieving file list: LocalEntryNotFoundError
(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] Traceback (most recent call last):
(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache blocks.
"""
    assert first(log)["class"] == "oom_kv_cache"


def test_a_message_of_several_lines_belongs_to_its_traceback():
    log = """\
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
(APIServer pid=1)   Value error, Model architectures ['KimiK3ForCausalLM'] are not supported for now.
"""
    finding = first(log)
    assert (finding["class"], finding["evidence"]["line_number"]) == ("arch_not_supported", 3)
    assert finding["confidence"] >= 0.9


def test_an_engine_that_died_after_it_served():
    log = f"""\
INFO Available KV cache memory: -1.0 GiB
INFO:     Application startup complete.
ERROR [core.py:700] EngineCore encountered a fatal error.
{OOM}
"""
    assert [finding["class"] for finding in diagnose(log)] == ["oom_runtime"]


def test_an_engine_that_serves_but_cannot_chat():
    log = "INFO:     Application startup complete.\nValueError: As of transformers v4.44, default chat template is no "
    assert first(log + "longer allowed, so you must provide a chat template\n")["class"] == "chat_template_missing"


@pytest.mark.parametrize(
    ("line", "context", "change"),
    [
        (
            "ValueError: Free memory on device cuda:1 (60.87/79.19 GiB) on startup is less than desired GPU memory "
            "utilization (0.95, 75.23 GiB).",
            None,
            {"variable": "engine_args.gpu_memory_utilization", "from": 0.95, "to": 0.74},
        ),
        (
            "The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache "
            "(4515).",
            None,
            {"variable": "engine_args.max_model_len", "from": 8192, "to": 4512},
        ),
        (
            "CUDA out of memory occurred when warming up sampler with 1024 dummy requests.",
            None,
            {"variable": "engine_args.max_num_seqs", "from": 1024, "to": 512},
        ),
        (
            "Total number of attention heads (40) must be divisible by tensor parallel size (6)",
            None,
            {"variable": "engine_args.tensor_parallel_size", "from": 6, "to": 5},
        ),
        (
            "error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
            {"instance": {"port": 8001}},
            {"variable": "port", "from": 8001, "to": 8002},
        ),
        (
            "vllm: error: unrecognized arguments: --swap-space 4",
            {"instance": {"engine_args": {"swap_space": 4}}},
            {"variable": "engine_args.swap_space", "from": 4, "to": None},
        ),
        (
            "No available memory for the cache blocks.",
            {"plan": {"arguments": [{"name": "gpu_memory_utilization", "value": 0.8}]}},
            {"variable": "engine_args.gpu_memory_utilization", "from": 0.8, "to": 0.85},
        ),
        ("No available memory for the cache blocks.", None, None),
        (
            "INFO Initializing a V1 LLM engine (v0.19.0) with config:\nERROR No available memory for the cache blocks.",
            None,
            {"variable": "engine_args.gpu_memory_utilization", "from": 0.9, "to": 0.95},
        ),
        (
            "Model architectures ['Qwen3NextForCausalLM'] are not supported for now.",
            {"instance": {"image": "registry:5000/vllm/vllm-openai:v0.10.1"}},
            {
                "variable": "image",
                "from": "registry:5000/vllm/vllm-openai:v0.10.1",
                "to": "registry:5000/vllm/vllm-openai:v0.10.2",
            },
        ),
        ("Model architectures ['NobodyKnows'] are not supported", {"instance": {"image": "x:v0.10.1"}}, None),
        ("Model architectures ['LlamaForCausalLM'] are not supported", {"instance": {"image": "x:v0.10.1"}}, None),
        (
            "Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'",
            None,
            {"variable": "engine_args.disable_custom_all_reduce", "from": False, "to": True},
        ),
        (
            "User-specified max_model_len (65536) is greater than the derived max_model_len (max_position_embeddings="
            "32768)",
            None,
            {"variable": "engine_args.max_model_len", "from": 65536, "to": 32768},
        ),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", None, None),
    ],
)
def test_the_one_change(line, context, change):
    assert first(line, context)["change"] == change


def test_who_holds_the_memory_is_named_but_not_the_instance_itself():
    processes = [
        {"pid": 7, "name": "python3", "container": "trainer", "used_memory_mib": 18000},
        {"pid": 8, "name": "VLLM::Worker", "container": "vllm-chat", "used_memory_mib": 100},
    ]
    context = {"plan": {"name": "chat"}, "hosts": [{"name": "gpu1", "gpus": [{"index": 1, "processes": processes}]}]}
    explanation = first(
        "ValueError: Free memory on device (5.02/23.64 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 21.28 GiB).",
        context,
    )["explanation"]
    assert explanation.endswith("On gpu1, GPU 1: python3 (pid 7) holds 18000 MiB.")


SHARED = (
    "ValueError: Free memory on device cuda:0 (36.50/79.35 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 73.00 GiB)."
)


@pytest.mark.parametrize(
    ("free", "processes", "change"),
    [
        (81000, [], None),
        (37000, [], 0.43),
        (81000, [{"pid": 7, "name": "python3", "container": "trainer", "used_memory_mib": 40000}], 0.43),
    ],
)
def test_memory_that_is_free_again_needs_no_change(free, processes, change):
    gpu = {"index": 0, "memory_total_mib": 81250, "memory_free_mib": free, "processes": processes}
    finding = first(SHARED, {"hosts": [{"name": "gpu1", "gpus": [gpu]}]})
    assert (finding["change"] or {}).get("to") == change
    assert ("start the engine again" in finding["explanation"]) is (change is None)


def test_the_plan_is_compared_with_what_was_measured():
    log = "INFO Model loading took 40.0 GiB and 9 seconds\nERROR No available memory for the cache blocks."
    budget = [{"weights_gib": {"value": 37.5, "low": 37.0, "high": 38.0}, "free_gib": {"value": 78.0}}]
    explanation = first(log, {"plan": {"budget": budget}})["explanation"]
    assert "Planned with 37.5 GiB of weights, measured 40.0: 2.5 GiB off." in explanation
    assert "of free memory" not in explanation


def test_an_old_driver_is_named_where_the_log_does_not_say_why():
    log = "(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ZeroDivisionError: integer modulo by zero"
    context = {
        "instance": {"image": "vllm/vllm-openai:v0.32.0"},
        "hosts": [{"name": "gpu1", "driver_version": "470.1"}],
    }
    assert first(log, context)["class"] == "driver_cuda_mismatch"
    assert diagnose("INFO:     Application startup complete.", context) == []


@pytest.mark.parametrize(("driver", "named"), [("550.54.14", True), ("580.95.05", False), ("unknown", False)])
def test_the_driver_of_the_host_is_compared_with_the_image(driver, named):
    context = {"instance": {"image": "vllm/vllm-openai:v0.32.0"}, "hosts": [{"name": "gpu1", "driver_version": driver}]}
    explanation = first("RuntimeError: The NVIDIA driver on your system is too old", context)["explanation"]
    assert (f"gpu1 has driver {driver}" in explanation) is named


@pytest.mark.parametrize(
    "unit", [{"result": "oom-kill"}, {"result": "signal", "exec_code": "killed", "exec_status": 9}]
)
def test_the_kernel_that_killed_the_engine_is_seen_in_the_unit(unit):
    log = "INFO 05-30 07:40:19 [x.py:1] Starting to load model"
    finding = first(log, {"unit": {"name": "vllm-chat.service", **unit}})
    assert (finding["class"], finding["change"]) == ("other", None)
    assert "host ran out of memory" in finding["title"]


def test_a_unit_that_was_not_killed_adds_nothing():
    assert diagnose("hello", {"unit": {"result": "exit-code", "exec_code": "exited", "exec_status": 9}}) == []


WORKERS = (
    "(Worker_TP{} pid=1{}) ",
    "(VllmWorker rank={} pid=1{}) ",
    "(VllmWorker TP{} pid=1{}) ",
    "(RayWorkerWrapper pid=1{}{}) ",
)
CAPTURE = [
    "Traceback (most recent call last):",
    '  File "/vllm/v1/worker/gpu_worker.py", line 588, in compile_or_warm_up_model',
    "    cuda_graph_memory_bytes = self.model_runner.capture_model()",
    *(f'  File "/vllm/v1/worker/x{number}.py", line {number}, in f{number}' for number in range(50)),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 2 has a total capacity of 178.35 GiB.",
]


def ranks(label, frames, count=8):
    """A traceback that all ranks write at once, line by line, as they do in a journal."""
    head = "ERROR 04-09 20:31:10 [multiproc_executor.py:949] "
    return [label.format(rank, rank) + head + frame for frame in frames for rank in range(count)]


@pytest.mark.parametrize("label", WORKERS)
def test_tracebacks_of_eight_ranks_mixed(label):
    findings = diagnose("\n".join([*ranks(label, CAPTURE), "(APIServer pid=1) RuntimeError: Engine core failed"]))
    assert findings[0]["class"] == "oom_cudagraph"


def test_the_frames_of_another_process_do_not_count():
    log = [
        '(Worker_TP0 pid=1) ERROR 04-09 20:31:10 [x.py:1]   File "/vllm/v1/worker/x.py", line 8, in capture_model',
        "(Worker_TP1 pid=2) ERROR 04-09 20:31:10 [x.py:1] Traceback (most recent call last):",
        '(Worker_TP1 pid=2) ERROR 04-09 20:31:10 [x.py:1]   File "/vllm/v1/worker/x.py", line 5, in load_model',
        "(Worker_TP1 pid=2) ERROR 04-09 20:31:10 [x.py:1] torch.OutOfMemoryError: CUDA out of memory.",
    ]
    assert first("\n".join(log))["class"] == "oom_weights"


FORMS = {
    "as it is": lambda line: line,
    "journal": lambda line: f"May 30 18:55:07 gpu1 docker[1234]: {line}",
    "journal with ISO time": lambda line: f"2026-05-30T18:55:07+0200 gpu1 docker[1234]: {line}",
    "docker logs -t": lambda line: f"2026-05-30T18:55:07.123456789Z {line}",
    "json file": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-05-30T18:55:07Z"}),
    "compose": lambda line: f"vllm-1  | {line}",
    "kubernetes": lambda line: f"2026-05-30T18:55:07.123456789Z stderr F {line}",
    "colours": lambda line: f"\x1b[0;36m{line}\x1b[0;0m",
    "pasted colours": lambda line: f"[0;36m{line}[0;0m",
    "windows": lambda line: f"{line}\r",
    "quoted": lambda line: f"> {line}",
    "ray serve": lambda line: f"(vllm-test, pid=2150) {line}",
}
ONE_RANK = [
    "(EngineCore_DP0 pid=9) INFO 05-30 18:55:01 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: x",
    "(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] EngineCore failed to start.",
    "(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] Traceback (most recent call last):",
    "(EngineCore_DP0 pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache blocks.",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("head", [0, 1, 3])
def test_every_form_of_a_log_and_one_whose_head_is_cut_off(form, head):
    findings = diagnose("\n".join(form(line) for line in ONE_RANK[head:]))
    assert [finding["class"] for finding in findings] == ["oom_kv_cache"]
    assert findings[0]["evidence"]["line_number"] == 4 - head


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_a_healthy_log(form):
    for path in HEALTHY:
        if not path.read_text().startswith("{"):
            assert diagnose("\n".join(form(line) for line in path.read_text().splitlines())) == [], path


def test_a_message_that_a_terminal_broke():
    log = """\
(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache
blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
"""
    assert first(log)["class"] == "oom_kv_cache"


# Titles of threads of vllm-project/vllm and others, in other words: what people write where a log would help more.
STORIES = {
    "startup of the engine is stuck in a loop when two GPUs share a model with tensor parallelism": "nccl_hang",
    "why does the system disk keep filling up when the model is served from a network mount?": "disk_full",
    "loading a model of 7B from a local disk takes forever": "disk_full",
    "the cluster of ray does not see all nodes": "ray_cluster",
    "a checkpoint written by transformers 5 cannot be loaded": "tokenizer_transformers_version",
    "a reranker is not accepted at /v1/rerank": "embedding_task",
    "tensor_parallel_size=32 fails with DeepSeek V3": "tp_divisibility",
    "NVRTC build of a kernel fails": "kernel_backend",
    "out of memory when many long prompts arrive": "oom_runtime",
    "how do I serve a GGUF file, it needs a template": "chat_template_missing",
    "two engines on one GPU: the second fails": "gpu_shared_free_memory",
    "the server runs on a host without internet and cannot find the model": "model_not_found_offline",
}


@pytest.mark.parametrize(("story", "failure_class"), STORIES.items())
def test_what_people_tell(story, failure_class):
    assert first(story)["class"] == failure_class


@pytest.mark.parametrize("story", ["hello", "how is vLLM doing", "Qwen3-8B on one H100, 32k tokens", "thanks!"])
def test_what_tells_of_no_trouble(story):
    assert diagnose(story) == []


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 80.00 MiB."


def test_engine_v0_names_the_method_that_failed():
    log = f"""\
(VllmWorkerProcess pid=7) ERROR 05-30 19:49:43 [x.py:242] Exception in worker while processing method load_model.
(VllmWorkerProcess pid=7) ERROR 05-30 19:49:43 [x.py:242] {OUT_OF_MEMORY}
"""
    assert first(log)["class"] == "oom_weights"


def test_of_a_paste_that_was_cut_the_frames_of_another_rank_count():
    log = f"""\
(VllmWorkerProcess pid=7) ERROR 05-30 19:49:43 [x.py:242] {OUT_OF_MEMORY}
(VllmWorkerProcess pid=8) ERROR 05-30 19:49:43 [x.py:242]   File "/x/worker.py", line 9, in capture_model
"""
    assert first(log)["class"] == "oom_cudagraph"


def test_what_pytorch_says_of_private_pools_tells_no_capture():
    text = (
        f"{OUT_OF_MEMORY} Of the allocated memory 70 GiB is allocated by PyTorch, with 46.00 MiB allocated in private "
    )
    assert first(text + "pools (e.g., CUDA Graphs)")["class"] == "oom_runtime"


@pytest.mark.parametrize(
    "collector",
    [
        "INFO 2026-05-30T20:16:36.096638074Z [resource.labels.containerName: vllm] ",
        "2026-05-30 09:22:35 | INFO | stderr | ",
    ],
)
def test_the_level_of_a_collector_is_not_that_of_the_line(collector):
    ready = "(EngineCore_DP0 pid=2) INFO 05-30 12:16:30 [core.py:1] ready"
    failed = (
        "(EngineCore_DP0 pid=2) ERROR 05-30 12:16:36 [core.py:842] ValueError: No available memory for the cache blocks"
    )
    assert first(f"{collector}{ready}\n{collector}{failed}")["class"] == "oom_kv_cache"


def test_one_line_that_is_pasted_alone_is_meant():
    line = "WARNING 05-30 10:00:00 [x.py:1] Found GPU1 Tesla P100 which is of compute capability (CC) 6.0."
    assert first(line)["class"] == "compute_capability_too_low"
    assert (
        diagnose("INFO 05-30 10:00:00 [x.py:1] CUDA graphs can take memory. If you are running out of memory, wait")
        == []
    )


ANSWERS = "INFO 05-30 10:00:09 [loggers.py:9] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs"
REQUEST = "ERROR 05-30 10:00:01 [serving_chat.py:1] jinja2.exceptions.TemplateError: Conversation roles must alternate"


@pytest.mark.parametrize(
    ("frame", "variable", "to"),
    [
        ("load_model", "tensor_parallel_size", 2),
        ("profile_run", "max_num_batched_tokens", 4096),
        ("_dummy_sampler_run", "max_num_seqs", 128),
        ("_allocate_kv_cache_tensors", "gpu_memory_utilization", 0.85),
        ("capture_model", "gpu_memory_utilization", 0.85),
        ("run_busy_loop", "gpu_memory_utilization", 0.85),
    ],
)
def test_the_allocation_that_failed_decides_what_to_change(frame, variable, to):
    pins = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    change = first(f'  File "x.py", line 5, in {frame}\n{OUT_OF_MEMORY}', {"instance": {"engine_args": pins}})["change"]
    assert (change["variable"], change["to"]) == (f"engine_args.{variable}", to)


def test_the_end_of_a_log_that_still_answers_is_healthy():
    assert diagnose(f"{ANSWERS}\n{REQUEST}\n{ANSWERS}") == []
    assert first(f"{ANSWERS}\n{REQUEST}")["class"] == "chat_template_missing"
    ended = f"{ANSWERS}\nERROR [core.py:1] EngineCore encountered a fatal error.\n{OUT_OF_MEMORY}\n{ANSWERS}"
    assert first(ended)["class"] == "oom_runtime"


def test_a_guess_by_words_proposes_no_change():
    finding = first("VRAM trouble: the weights are broken somehow?")
    assert finding["change"] is None
    assert finding["confidence"] <= 0.3


def test_a_long_log_of_many_ranks_takes_seconds():
    ranks = range(8)
    noise = [
        f"(Worker_TP{rank} pid={rank}) INFO 05-30 10:00:00 [x.py:1] step {step}"
        for step in range(500)
        for rank in ranks
    ]
    errors = [f"(Worker_TP{rank} pid={rank}) ERROR 05-30 10:00:00 [x.py:1] {OUT_OF_MEMORY}" for rank in ranks] * 250
    start = time.process_time()
    assert first("\n".join([*noise, *errors, *noise]))["class"].startswith("oom_")
    assert time.process_time() - start < 10

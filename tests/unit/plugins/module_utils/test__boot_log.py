# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logs in boot_logs are put together by us: wordings of the release named, figures of public logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._boot_log import parse_boot_log, redact

LOGS = Path(__file__).parent / "boot_logs"
HEALTHY = Path(__file__).parents[1] / "plugin_utils" / "_diagnosis" / "healthy"
V0_6_4 = (LOGS / "v0_6_4.log").read_text()
V0_7 = (LOGS / "v0_7.log").read_text()
V1_19_DEBUG = (LOGS / "v1_19_debug.log").read_text()
V1_24 = (LOGS / "v1_24.log").read_text()
V1_28_TWO_RANKS = (LOGS / "v1_28_two_ranks.log").read_text()
CPU_32 = (LOGS / "cpu_32.log").read_text()


def figures(log, *names):
    parsed = parse_boot_log(log)
    return tuple(parsed[name] for name in names)


def test_engine_v0_prints_the_peak_with_the_weights_in_it():
    assert figures(
        V0_6_4,
        "version",
        "weights_gib",
        "activation_gib",
        "non_torch_gib",
        "kv_pool_gib",
        "gpu_total_gib",
        "gpu_free_gib",
        "cuda_graph_gib",
    ) == ("0.6.4.post1", 0.2389, 0.47, 0.15, 6.27, 7.92, 7.55, 0.39)
    assert figures(V0_6_4, "kv_blocks", "block_size", "kv_tokens", "max_concurrency") == (11422, 16, 182752, 89.23)


def test_engine_v0_of_the_later_wording():
    assert figures(
        V0_7,
        "version",
        "engine",
        "weights_gib",
        "activation_gib",
        "non_torch_gib",
        "kv_pool_gib",
        "requested_gib",
        "gpu_memory_utilization",
    ) == ("0.7.3", "V0", 2.8875, 2.02, 0.01, 2.36, 7.28, 0.5)
    assert figures(V0_7, "kv_tokens", "max_model_len", "init_seconds") == (88304, 32768, 56.26)


def test_engine_v1_with_debug_lines_gives_every_term():
    assert figures(
        V1_19_DEBUG, "weights_gib", "load_seconds", "activation_gib", "non_torch_gib", "kv_pool_gib", "gpu_free_gib"
    ) == (12.56, 14.42968, 0.77, 0.25, 61.66, 78.68)
    assert figures(V1_19_DEBUG, "cuda_graph_estimate_gib", "cuda_graph_gib") == (0.84, 0.89)
    assert figures(V1_19_DEBUG, "kv_tokens", "max_concurrency", "max_model_len") == (126256, 15.41, 8192)
    assert parse_boot_log(V1_19_DEBUG)["phase"] == "serving"


def test_the_equivalent_utilization_and_the_disk_are_read():
    assert figures(
        V1_24,
        "gpu_memory_utilization",
        "equivalent_utilization",
        "checkpoint_gib",
        "checkpoint_filesystem",
        "read_seconds",
    ) == (0.9, 0.8799, 14.19, "OVERLAY", 12.26)


def test_ranks_are_kept_apart_and_the_tightest_binds():
    parsed = parse_boot_log(V1_28_TWO_RANKS)
    assert sorted(parsed["ranks"]) == ["Worker_TP0", "Worker_TP1"]
    assert parsed["binding_rank"] == "Worker_TP1"
    assert (parsed["kv_pool_gib"], parsed["weights_gib"], parsed["gpu_free_gib"]) == (27.76, 55.25, 93.9)
    assert parsed["ranks"]["Worker_TP0"]["kv_pool_gib"] == 27.85
    assert parsed["kv_tokens"] == 621392


def test_consumed_memory_and_peak_activation_are_taken_apart():
    rank = parse_boot_log(V1_28_TWO_RANKS)["ranks"]["Worker_TP0"]
    assert (rank["non_torch_gib"], rank["activation_gib"]) == (1.7, 0.46)


def test_the_cpu_build():
    assert figures(CPU_32, "version", "device", "kv_tokens", "max_concurrency") == ("0.32.0+cpu", "cpu", 1048576, 512.0)


@pytest.mark.parametrize(
    "prefix",
    [
        "Aug 24 01:02:28 dgx docker[959645]: ",
        "2026-08-24T01:02:28+0000 dgx docker[959645]: ",
        "2026-08-24T01:02:28.123456789Z ",
        "vllm-1  | ",
        "[pod/vllm-5b4c/vllm] ",
    ],
)
@pytest.mark.parametrize("log", [V0_6_4, V0_7, V1_19_DEBUG, V1_24, V1_28_TWO_RANKS, CPU_32])
def test_prefixes_and_colours_change_nothing(log, prefix):
    dressed = "\n".join(prefix + "\x1b[0;36m" + line + "\x1b[0;0m\r" for line in log.splitlines())
    assert parse_boot_log(dressed) == parse_boot_log(log)


def test_only_the_last_start_counts():
    parsed = parse_boot_log(V1_19_DEBUG + "(APIServer pid=1) ERROR something\n" + V1_28_TWO_RANKS)
    assert (parsed["version"], parsed["starts"], parsed["equivalent_utilization"]) == ("0.28.0", 2, 0.8968)
    assert parsed["non_torch_gib"] == 1.74


def test_ray_workers_are_told_apart_by_process_and_address():
    log = (
        "(RayWorkerWrapper pid=11, ip=10.0.0.2) INFO x Model loading took 40.0 GiB and 9.1 seconds\n"
        "(RayWorkerWrapper pid=12, ip=10.0.0.2) INFO x Model loading took 41.0 GiB and 9.1 seconds [repeated 2x]\n"
        "INFO x Model loading took 39.0 GiB and 9.1 seconds\n"
        "(VllmWorker rank=3 pid=9) INFO x Available KV cache memory: -1.25 GiB\n"
    )
    parsed = parse_boot_log(log)
    assert len(parsed["ranks"]) == 4
    assert (parsed["weights_gib"], parsed["kv_pool_gib"], parsed["binding_rank"]) == (41.0, -1.25, "rank 3")


PHASES = [
    ("(APIServer pid=1) INFO vLLM API server version 0.32.0", "starting", None),
    (
        "Loading safetensors checkpoint shards:  23% Completed | 7/30 [00:10<00:33,  1.44s/it]",
        "loading weights",
        (7, 30, 23),
    ),
    ("Multi-thread loading shards:  50% Completed | 2/4 [00:10<00:10,  5.0s/it]", "loading weights", (2, 4, 50)),
    ("INFO [gpu_model_runner.py:5150] Model loading took 14.37 GiB memory and 13.4 seconds", "profiling", None),
    ("INFO [backends.py:1105] Using cache directory: /c for vLLM's torch.compile", "compiling", None),
    ("INFO [backends.py:1167] Dynamo bytecode transform time: 3.45 s", "compiling", None),
    ("INFO [monitor.py:34] torch.compile takes 9.85 s in total", "profiling", None),
    ("INFO [gpu_worker.py:508] Available KV cache memory: 11.92 GiB", "profiling", None),
    ("INFO [kv_cache_utils.py:2146] GPU KV cache size: 223,152 tokens", "warming up", None),
    (
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  43%|####3     | 22/51 [00:01<00:01, 50.16it/s]",
        "capturing graphs",
        (22, 51, 43),
    ),
    ("INFO [gpu_model_runner.py:6582] Graph capturing finished in 22 secs, took 0.65 GiB", "warming up", None),
    ("INFO [core.py:386] init engine (profile, create kv cache, warmup model) took 84.9 s", "warming up", None),
    ("(APIServer pid=1) INFO:     Application startup complete.", "serving", None),
    ("INFO [backends.py:1167] Dynamo bytecode transform time: 3.45 s", "serving", None),
    ("(EngineCore pid=5) ERROR [core.py:700] EngineCore encountered a fatal error.", "failed", None),
    ("(APIServer pid=1) INFO:     Application shutdown complete.", "failed", None),
]


@pytest.mark.parametrize("count", range(1, len(PHASES) + 1))
def test_the_phase_after_each_line(count):
    parsed = parse_boot_log("\n".join(line for line, _phase, _progress in PHASES[:count]))
    _line, phase, progress = PHASES[count - 1]
    assert parsed["phase"] == phase
    assert parsed["progress"] == (dict(zip(("done", "total", "percent"), progress, strict=True)) if progress else None)


def test_progress_bars_that_rewrite_their_line():
    label = "Capturing CUDA graphs (decode, FULL):"
    log = f"\r{label}   0%|          | 0/35 [00:00<?, ?it/s]\r{label}  40%|####      | 14/35 [00:01<00:01]"
    parsed = parse_boot_log(log)
    assert (parsed["phase"], parsed["progress"]) == ("capturing graphs", {"done": 14, "total": 35, "percent": 40})


@pytest.mark.parametrize("log", ["", "\n\n"])
def test_an_empty_log_has_measured_nothing(log):
    parsed = parse_boot_log(log)
    assert parsed["phase"] is None
    assert parsed["kv_tokens"] is None
    assert (parsed["ranks"], parsed["starts"]) == ({}, 0)


def test_warnings_are_listed_once_without_secrets():
    line = "(Worker_TP0 pid=5) WARNING 04-20 20:13:51 [x.py:1] Falling back, --api-key sk-12345 ignored\n"
    assert parse_boot_log(line + line)["warnings"] == [{"line": "Falling back, --api-key ***", "line_number": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "non-default args: {'api_key': ['s3cr3t'], 'port': 8000}",
        "non-default args: {'hf_token': 's3cr3t', 'port': 8000}",
        "vllm serve m --api-key s3cr3t --port 8000",
        "VLLM_API_KEY=s3cr3t",
        "Authorization: Bearer s3cr3t",
        '{"token": "s3cr3t"}',
    ],
)
def test_secrets_are_redacted(text):
    assert "s3cr3t" not in redact(text)
    assert "***" in redact(text)


def test_of_warnings_that_differ_in_a_name_one_is_listed():
    line = "(Worker pid=3) WARNING 11-30 17:36:15 [utils.py:333] Attempted to load weight layers.{}.mlp.weight\n"
    assert len(parse_boot_log(line.format(0) + line.format(1))["warnings"]) == 1


def test_the_lab_s_own_log():
    """Recorded in the lab: 0.32.0, CPU build, a tiny checkpoint of 4 layers, 2 KV heads of 32, 1 GiB of KV cache."""
    lines = (HEALTHY / "lab_cpu_build_0_32.log").read_text().split("\n")
    # tqdm returns the carriage before each step of a bar.
    parsed = parse_boot_log("\n".join("\r" * line.startswith("Loading safetensors") + line for line in lines))
    assert (parsed["version"], parsed["engine"], parsed["device"]) == ("0.32.0", "V1", "cpu")
    assert parsed["phase"] == "serving"
    assert parsed["kv_tokens"] == (1 << 30) // (2 * 4 * 2 * 32 * 2)
    assert (parsed["kv_pool_gib"], parsed["max_concurrency"], parsed["starts"]) == (1.0, 512.0, 1)


def test_token_counts_are_not_taken_for_secrets():
    line = "INFO Maximum concurrency for 8,192 tokens per request: 27.24x; GPU KV cache size: 12 tokens; max_tokens: 5"
    assert redact(line) == line

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The replay engine of the lab: what it logs is read as vLLM's log, and each of its faults is found for what it is."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._boot_log import parse_boot_log
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import known_releases, release
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis import diagnose
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.signatures import signatures

REPLAY = Path(__file__).resolve().parents[3] / "roles" / "lab" / "files" / "replay"

H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "compute_capability": "9.0"}
T4 = {"name": "Tesla T4", "memory_total_mib": 15360, "compute_capability": "7.5"}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_total_mib": 81920, "compute_capability": "8.0"}
H200 = {"name": "NVIDIA H200", "memory_total_mib": 143771, "compute_capability": "9.0"}
B300 = {"name": "NVIDIA B300", "memory_total_mib": 275040, "compute_capability": "10.3"}

#: A model of the size of Qwen3-8B in four shards.
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "max_position_embeddings": 40960,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
SHARDS, SHARD_BYTES = 4, 4 << 30
#: One for each generation of the log's wording.
RELEASES = ("0.9.0", "0.9.2", "0.10.1", "0.11.2", "0.14.1", "0.19.1", "0.22.1", "0.27.1", "0.33.0")


@pytest.fixture(scope="module", autouse=True)
def replay_package() -> Iterator[None]:
    sys.path.insert(0, str(REPLAY))
    yield
    sys.path.remove(str(REPLAY))
    for name in [name for name in sys.modules if name.startswith("gpufleet_replay")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 GiB of shards that take no place on the disk."""
    path = tmp_path_factory.mktemp("qwen3")
    (path / "config.json").write_text(json.dumps(CONFIG))
    for number in range(1, SHARDS + 1):
        write_shard(path / f"model-{number:05}-of-{SHARDS:05}.safetensors", SHARD_BYTES)
    return path


def write_shard(path: Path, size: int) -> None:
    header = json.dumps({"weight": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + size)


def run(path: Path, *arguments: str, gpus: Any = None, **settings: Any) -> tuple[int, str]:
    """Starts an engine in this process; returns its exit code and its log. It ends at the latest when it serves."""
    from gpufleet_replay import arguments as command_line
    from gpufleet_replay.run import Run
    from gpufleet_replay.settings import Settings

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"gpus": [H100] * 4 if gpus is None else gpus, "startup_seconds": 0, **settings}
    settings["faults"] = [*settings.get("faults", []), {"fault": "oom_serving", "after_seconds": 0}]
    environment = {f"REPLAY_{name.upper()}": json.dumps(value) for name, value in settings.items()}
    given = command_line.parse([str(path), "--host=127.0.0.1", f"--port={port}", *arguments])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = Run(given, Settings({**environment, "REPLAY_FILE": "/nonexistent"}, "demo")).run()
    return code, output.getvalue()


def start(path: Path, *arguments: str, **settings: Any) -> str:
    """The log of a start up to the moment in which the engine serves."""
    code, log = run(path, *arguments, **settings)
    assert code == 0, log
    end = "Application startup complete."
    assert end in log, log
    return log[: log.index(end) + len(end)]


def first_class(log: str) -> str | None:
    findings = diagnose(log)
    return findings[0]["class"] if findings else None


def known_faults() -> dict[str, dict[str, Any]]:
    return json.loads((REPLAY / "gpufleet_replay" / "faults.json").read_text())["faults"]


ENDING_FAULTS = sorted(name for name, fault in known_faults().items() if "raised_by" in fault)


# -- the log ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", known_releases())
def test_the_log_of_a_start_is_read_as_that_of_the_release(version: str, checkpoint: Path) -> None:
    boot = parse_boot_log(start(checkpoint, "--max-model-len=8192", release=version))
    assert (boot["version"], boot["phase"], boot["starts"]) == (version, "serving", 1)
    assert boot["model"] == str(checkpoint)
    assert boot["weights_gib"] == pytest.approx(16.0, abs=0.01)
    assert boot["max_model_len"] == 8192
    assert boot["max_num_batched_tokens"] == 8192
    assert boot["max_concurrency"] == pytest.approx(boot["kv_tokens"] / 8192, abs=0.01)
    for figure in ("load_seconds", "compile_seconds", "cuda_graph_gib", "init_seconds"):
        assert boot[figure] is not None, figure


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("parallel", [(), ("-tp=2",), ("-tp=2", "-pp=2")], ids=" ".join)
def test_nothing_is_found_in_the_log_of_a_start(version: str, parallel: tuple[str, ...], checkpoint: Path) -> None:
    assert diagnose(start(checkpoint, *parallel, release=version)) == []


def test_the_terms_add_up_as_those_of_vllm_do(checkpoint: Path) -> None:
    boot = parse_boot_log(start(checkpoint, release="0.27.1"))
    terms = ("weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_estimate_gib", "kv_pool_gib")
    assert sum(boot[term] for term in terms) == pytest.approx(boot["requested_gib"], abs=0.05)
    assert boot["requested_gib"] == pytest.approx(0.92 * boot["gpu_total_gib"], abs=0.01)
    bytes_per_token = 2 * 36 * 8 * 128 * 2
    assert boot["kv_tokens"] * bytes_per_token / 2**30 == pytest.approx(boot["kv_pool_gib"], abs=0.01)


def test_each_argument_pulls_in_the_direction_in_which_it_pulls_in_vllm(checkpoint: Path) -> None:
    def pool(*arguments: str, **settings: Any) -> float:
        return parse_boot_log(start(checkpoint, *arguments, release="0.27.1", **settings))["kv_pool_gib"]

    usual = pool()
    assert pool("--gpu-memory-utilization=0.8") < usual
    assert pool("--max-num-seqs=64") > usual
    assert pool("--tensor-parallel-size=2") > usual
    assert pool("--enforce-eager") > usual
    assert pool("--kv-cache-memory-bytes=8589934592") == 8.0
    assert pool(model={"weights_gib": 40}) == pytest.approx(usual - 24, abs=0.02)


def test_the_cache_in_fp8_holds_twice_the_tokens(checkpoint: Path) -> None:
    tokens = [
        parse_boot_log(start(checkpoint, f"--kv-cache-dtype={dtype}", release="0.27.1"))["kv_tokens"]
        for dtype in ("auto", "fp8")
    ]
    assert tokens[1] == pytest.approx(2 * tokens[0], abs=32)


@pytest.mark.parametrize("version", ["0.9.0", "0.27.1", "0.28.0", "0.32.0"])
@pytest.mark.parametrize("gpu", [H100, A100, T4, H200, B300], ids=lambda gpu: gpu["name"])
def test_the_batch_defaults_are_those_of_the_catalogue(version: str, gpu: dict[str, Any], checkpoint: Path) -> None:
    log = start(checkpoint, "--max-model-len=2048", gpus=[gpu], release=version, model={"weights_gib": 1})
    tokens = release(version).default("max_num_batched_tokens", gpu)
    assert f"Chunked prefill is enabled with max_num_batched_tokens={tokens}." in log


def test_both_entrypoints_are_understood(checkpoint: Path) -> None:
    from gpufleet_replay.arguments import parse

    words = [
        "--served-model-name",
        "a",
        "b",
        "--max-model-len",
        "32k",
        "--enforce-eager",
        "-tp",
        "2",
        "-O3",
        "-cc.mode=2",
    ]
    serve, api_server = parse([str(checkpoint), *words]), parse(["--model", str(checkpoint), *words])
    assert serve == api_server
    assert serve["served_model_name"] == ["a", "b"]
    assert (serve["max_model_len"], serve["tensor_parallel_size"], serve["enforce_eager"]) == (32000, 2, True)


@pytest.mark.parametrize("redacted_from", [("0.28.0", True), ("0.29.0", False)])
def test_a_key_among_the_arguments_is_logged_as_the_release_does(
    redacted_from: tuple[str, bool], checkpoint: Path
) -> None:
    version, shown = redacted_from
    assert ("sk-secret" in start(checkpoint, "--api-key=sk-secret", release=version)) is shown


# -- faults -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", ["0.9.2", "0.11.2", "0.27.1", "0.33.0"])
@pytest.mark.parametrize("name", ENDING_FAULTS)
def test_each_fault_is_found_for_what_it_is(name: str, version: str, checkpoint: Path) -> None:
    fault = known_faults()[name]
    for parallel in ("-tp=1", "-tp=2"):
        code, log = run(checkpoint, parallel, release=version, faults=[name])
        assert first_class(log) == fault["diagnosed_as"], log
        assert code == {"parser": 2}.get(fault["raised_by"], 0 if fault["phase"] == "serving" else 1)


def test_there_is_a_fault_of_each_class() -> None:
    classes = {signature.failure_class for signature in signatures()}
    assert {fault["diagnosed_as"] for fault in known_faults().values()} - {None} == classes


def test_the_readme_names_every_fault_and_setting() -> None:
    from gpufleet_replay.settings import DEFAULTS

    named = set(re.findall(r"`(\w+)`", (REPLAY / "README.md").read_text(encoding="utf-8")))
    assert {*known_faults(), *DEFAULTS} - named == set()


@pytest.mark.parametrize("phase", ["loading", "profiling", "capturing", "warming"])
def test_the_phase_in_which_it_ends_is_read_from_the_log(phase: str, checkpoint: Path) -> None:
    read = {"loading": "loading weights", "capturing": "capturing graphs", "warming": "warming up"}
    _code, log = run(checkpoint, release="0.27.1", faults=[{"fault": "illegal_memory_access", "phase": phase}])
    before = log[: log.index("EngineCore failed to start")].rsplit("\n", 1)[0]
    assert parse_boot_log(before)["phase"] == read.get(phase, phase)
    assert parse_boot_log(log)["phase"] == "failed"


@pytest.mark.parametrize(
    ("condition", "above", "below"),
    [
        ("max_num_seqs > 64", "--max-num-seqs=128", "--max-num-seqs=64"),
        ("max_model_len >= 32768", "--max-model-len=32768", "--max-model-len=32767"),
        ("gpu_memory_utilization > 0.9", "--gpu-memory-utilization=0.95", "--gpu-memory-utilization=0.9"),
        ("max_num_seqs > 8 and tensor_parallel_size < 2", "-tp=1", "-tp=2"),
    ],
)
def test_a_fault_goes_away_with_its_condition(condition: str, above: str, below: str, checkpoint: Path) -> None:
    fault = f"oom_sampler when {condition}"
    assert first_class(run(checkpoint, above, release="0.27.1", faults=[fault])[1]) == "oom_runtime"
    assert diagnose(start(checkpoint, below, release="0.27.1", faults=[fault])) == []


def test_a_fault_of_the_first_starts_goes_away(checkpoint: Path, tmp_path: Path) -> None:
    settings = {"faults": [{"fault": "nccl_init", "starts": 2}], "state_directory": str(tmp_path), "release": "0.27.1"}
    assert [run(checkpoint, **settings)[0] for _start in range(3)] == [1, 1, 0]


def test_a_fault_of_one_release_leaves_the_others_alone(checkpoint: Path) -> None:
    faults = [{"fault": "nccl_init", "release": "v0.30.0"}]
    assert [run(checkpoint, release=version, faults=faults)[0] for version in ("0.30.0", "0.27.1")] == [1, 0]


def test_one_rank_meets_the_failure(checkpoint: Path) -> None:
    _code, log = run(checkpoint, "-tp=4", release="0.27.1", faults=[{"fault": "oom_weights", "rank": 2}])
    assert {line.split(" ")[0] for line in log.splitlines() if "WorkerProc failed" in line} == {"(Worker_TP2"}
    assert "GPU 2 has a total capacity" in log


@pytest.mark.parametrize(
    ("arguments", "settings", "failure_class"),
    [
        (("--gpu-memory-utilization=0.95",), {"gpus": [{**H100, "memory_free_mib": 20000}]}, "gpu_shared_free_memory"),
        ((), {"model": {"weights_gib": 140}}, "oom_weights"),
        ((), {"model": {"weights_gib": 72}}, "oom_kv_cache"),
        ((), {"model": {"weights_gib": 66}}, "max_model_len_exceeds_kv"),
        (("--kv-cache-memory-bytes=70000000000",), {}, "oom_kv_cache"),
        (("--kv-cache-memory-bytes=66571993088",), {}, "oom_cudagraph"),
        (("--dtype=bfloat16",), {"gpus": [T4], "model": {"weights_gib": 1}}, "bf16_unsupported"),
        (("-tp=3",), {}, "tp_divisibility"),
        (("-tp=8",), {}, "other"),
        (("--max-model-len=65536",), {}, "other"),
        ((), {"gpus": []}, "container_runtime"),
    ],
)
def test_what_does_not_fit_fails_by_itself(
    arguments: tuple[str, ...], settings: dict[str, Any], failure_class: str, checkpoint: Path
) -> None:
    code, log = run(checkpoint, *arguments, **{"release": "0.27.1", **settings})
    assert (code, first_class(log)) == (1, failure_class), log


def test_the_length_that_vllm_proposes_fits(checkpoint: Path) -> None:
    settings = {"release": "0.27.1", "model": {"weights_gib": 66}}
    (finding,) = diagnose(run(checkpoint, **settings)[1])
    assert finding["change"]["variable"] == "engine_args.max_model_len"
    start(checkpoint, f"--max-model-len={finding['change']['to']}", **settings)


def test_a_length_that_vllm_chooses_fits(checkpoint: Path) -> None:
    boot = parse_boot_log(start(checkpoint, "--max-model-len=auto", release="0.27.1", model={"weights_gib": 66}))
    assert 0 < boot["max_model_len"] == boot["kv_tokens"] < CONFIG["max_position_embeddings"]


def test_a_gpu_without_bfloat16_computes_in_float16(checkpoint: Path) -> None:
    log = start(checkpoint, "--max-model-len=2048", gpus=[T4], release="0.27.1", model={"weights_gib": 1})
    assert "Falling back to torch.float16 for compatibility" in log


@pytest.mark.parametrize(
    ("damage", "failure_class"),
    [
        (lambda shard: shard.open("r+b").truncate(1000), "corrupted_weights"),
        (lambda shard: shard.open("r+b").truncate(4), "corrupted_weights"),
        (lambda shard: shard.write_text("version https://git-lfs.github.com/spec/v1\n"), "corrupted_weights"),
        (lambda shard: shard.unlink(), "model_not_found_offline"),
        (lambda shard: (shard.parent / "config.json").unlink(), "model_not_found_offline"),
    ],
    ids=["cut off", "cut off in the header", "LFS pointer", "no shard", "no config.json"],
)
def test_a_damaged_checkpoint_fails_by_itself(damage: Any, failure_class: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_shard(tmp_path / "model.safetensors", 1 << 20)
    start(tmp_path, release="0.27.1")
    damage(tmp_path / "model.safetensors")
    code, log = run(tmp_path, release="0.27.1")
    assert (code, first_class(log)) == (1, failure_class), log


def test_a_fault_that_is_none_is_refused(checkpoint: Path) -> None:
    for wrong in ("oom_everything", {"fault": "hang", "stage": "loading"}, "hang when max_sequences > 3"):
        with pytest.raises(ValueError, match="replay: "):
            run(checkpoint, release="0.27.1", faults=[wrong])


# -- the package ------------------------------------------------------------------------------------------------------
def test_it_runs_on_python_3_8() -> None:
    for path in (REPLAY / "gpufleet_replay").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("version", known_releases())
def test_the_routes_and_the_guard_are_those_of_the_catalogue(version: str) -> None:
    from gpufleet_replay import api
    from gpufleet_replay.wording import of_release

    assert of_release(list(api._GUARDED), version)[0] == release(version).guarded_prefixes


def test_a_refusal_is_told_before_any_fault(tmp_path: Path) -> None:
    faults = ["flag_unknown when max_num_seqs > 1", "nccl_init"]
    code, log = run(tmp_path, release="0.27.1", faults=faults)
    assert (code, first_class(log)) == (1, "model_not_found_offline")

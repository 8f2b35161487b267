# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the catalogue says of releases."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import UnknownRelease, known_releases, release
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue.releases import (
    DATA,
    canonical_name,
    format_releases,
)

H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "compute_capability": "9.0"}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "memory_total_mib": 81920, "compute_capability": "8.0"}
L40S = {"name": "NVIDIA L40S", "memory_total_mib": 46068, "compute_capability": "8.9"}
B200 = {"name": "NVIDIA B200", "memory_total_mib": 183359, "compute_capability": "10.0"}
GB10 = {"name": "NVIDIA GB10", "memory_total_mib": 122572, "compute_capability": "12.1"}


def test_every_release_of_the_range_is_known() -> None:
    releases = known_releases()
    assert releases[0] == "0.9.0"
    assert releases[-1] == "0.33.0"
    assert {"0.9.0.1", "0.10.1.1", "0.11.2", "0.19.1", "0.20.2", "0.25.1", "0.27.1", "0.32.0"} <= set(releases)


@pytest.mark.parametrize(
    ("written", "version", "cuda"),
    [
        ("0.32.0", "0.32.0", "13.0"),
        ("v0.32.0", "0.32.0", "13.0"),
        ("vllm/vllm-openai:v0.32.0", "0.32.0", "13.0"),
        ("registry.example:5000/vllm/vllm-openai:v0.9.0@sha256:0123abcd", "0.9.0", "12.8"),
        ("v0.20.0-cu129", "0.20.0", "12.9"),
        ("v0.19.0-cu130", "0.19.0", "13.0"),
        ("v0.22.0-cu129-ubuntu2404", "0.22.0", "12.9"),
        ("v0.27.1-aarch64", "0.27.1", "13.0"),
        ("v0.17.1", "0.17.1", "12.9"),
    ],
)
def test_a_release_is_found_by_version_tag_or_image(written: str, version: str, cuda: str) -> None:
    found = release(written)
    assert (found.version, found.cuda) == (version, cuda)


@pytest.mark.parametrize(
    ("written", "needed"),
    [
        ("latest", "names no vLLM release"),
        ("vllm/vllm-openai:latest", "write its tag"),
        ("0.34.0", "take one of those (near it: v0.3"),
        ("0.8.5", "from v0.9.0 to v0.33.0"),
        ("v0.32.0-musl", "known tags: v0.32.0, v0.32.0-cu129"),
    ],
)
def test_an_unknown_release_is_refused_with_the_next_step(written: str, needed: str) -> None:
    with pytest.raises(UnknownRelease, match=re.escape(needed)):
        release(written)


@pytest.mark.parametrize("spelling", ["max_model_len", "max-model-len", "--max-model-len"])
def test_an_argument_is_found_in_every_spelling(spelling: str) -> None:
    argument = release("0.32.0").argument(spelling)
    assert argument is not None
    assert argument.flag == "--max-model-len"


def test_aliases_and_negations_are_found() -> None:
    known = release("0.32.0")
    names = {
        spelled: getattr(known.argument(spelled), "name", None)
        for spelled in (
            "-tp",
            "--no-enable-prefix-caching",
            "no_enable_prefix_caching",
            "--device-memory-utilization",
            "-q",
            "--no-max-model-len",
        )
    }
    assert names == {
        "-tp": "tensor_parallel_size",
        "--no-enable-prefix-caching": "enable_prefix_caching",
        "no_enable_prefix_caching": None,
        "--device-memory-utilization": "gpu_memory_utilization",
        "-q": "quantization",
        "--no-max-model-len": None,
    }


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("task", "0.9.0", "0.12.0"),
        ("runner", "0.10.1", "0.33.0"),
        ("swap_space", "0.9.0", "0.17.1"),
        ("disable_log_requests", "0.9.0", "0.16.0"),
        ("enable_reasoning", "0.9.0", "0.9.2"),
        ("device", "0.9.0", "0.9.2"),
        ("kv_cache_memory_bytes", "0.10.2", "0.33.0"),
        ("max_seq_len_to_capture", "0.9.0", "0.10.2"),
        ("cuda_graph_sizes", "0.9.0", "0.12.0"),
        ("guided_decoding_backend", "0.9.0", "0.11.2"),
        ("structured_outputs_config", "0.11.0", "0.33.0"),
        ("rope_scaling", "0.9.0", "0.11.0"),
        ("headless", "0.9.0", "0.33.0"),
        ("nnodes", "0.11.1", "0.33.0"),
        ("attention_backend", "0.13.0", "0.33.0"),
        ("calculate_kv_scales", "0.9.0", "0.27.1"),
    ],
)
def test_arguments_come_and_go_with_the_releases(name: str, first: str, last: str) -> None:
    knowing = [version for version in known_releases() if release(version).argument(name) is not None]
    assert (knowing[0], knowing[-1]) == (first, last)


def test_defaults_follow_the_release() -> None:
    assert release("0.19.1").default("gpu_memory_utilization") == 0.9
    assert release("0.20.0").default("gpu_memory_utilization") == 0.92
    with pytest.raises(KeyError, match="no argument swap_space"):
        release("0.32.0").default("swap_space")


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "sequences"),
    [
        ("0.9.0", H100, 8192, 1024),
        ("0.32.0", H100, 8192, 1024),
        ("0.32.0", A100, 2048, 256),
        ("0.32.0", L40S, 2048, 256),
        ("0.27.1", B200, 8192, 1024),
        ("0.32.0", B200, 16384, 1024),
        ("0.32.0", GB10, 8192, 1024),
        ("0.33.0", GB10, 2048, 256),
    ],
)
def test_batch_defaults_follow_the_card(version: str, gpu: dict[str, object], tokens: int, sequences: int) -> None:
    known = release(version)
    assert (known.default("max_num_batched_tokens", gpu), known.default("max_num_seqs", gpu)) == (tokens, sequences)


@pytest.mark.parametrize(
    ("architecture", "first"),
    [
        ("Qwen3ForCausalLM", "0.9.0"),
        ("Glm4MoeForCausalLM", "0.10.0"),
        ("GptOssForCausalLM", "0.10.1"),
        ("Qwen3NextForCausalLM", "0.10.2"),
        ("DeepseekV32ForCausalLM", "0.11.0"),
        ("GlmMoeDsaForCausalLM", "0.16.0"),
    ],
)
def test_architectures_have_a_first_release(architecture: str, first: str) -> None:
    knowing = [version for version in known_releases() if release(version).supports_architecture(architecture)]
    assert knowing[0] == first


def test_the_image_of_a_release() -> None:
    assert (release("0.9.0").entrypoint, release("0.32.0").entrypoint) == ("api_server", "serve")
    assert (release("0.17.1").has_ray, release("0.18.0").has_ray) == (True, False)
    assert (release("0.9.0").min_driver, release("0.32.0").min_driver) == ("570.26", "580.65.06")
    assert (release("0.16.0").torch, release("0.33.0").torch) == ("2.9.1", "2.14.0")


def test_routes_and_their_guard() -> None:
    old, new = release("0.9.0"), release("0.32.0")
    assert "/v1/chat/completions" in old.guarded_routes
    assert "/v1/chat/completions" in new.guarded_routes
    assert {"/invocations", "/tokenize", "/metrics", "/health", "/scale_elastic_ep"} <= set(new.unguarded_routes)
    assert "/v2/rerank" in old.unguarded_routes
    assert "/v2/rerank" in new.guarded_routes
    assert "/sleep" in new.routes
    assert "/sleep" not in new.unguarded_routes
    assert new.guarded_prefixes == ["/v1", "/v2", "/inference", "/cohere"]


def test_environment_variables() -> None:
    known = release("0.32.0")
    assert known.knows_environment("VLLM_API_KEY")
    assert not release("0.9.0").knows_environment("VLLM_ENABLE_CUDA_COMPATIBILITY")
    assert known.environment_default("VLLM_SERVER_DEV_MODE") is False
    with pytest.raises(KeyError, match="VLLM_NONSENSE"):
        known.environment_default("VLLM_NONSENSE")


def test_quantisation_methods_and_their_cards() -> None:
    assert release("0.9.0").quantization_capability("fp8") == 8.0
    assert release("0.32.0").quantization_capability("fp8") == 7.5
    assert "bitsandbytes" not in release("0.33.0").quantization_methods


def test_a_span_is_written_for_people() -> None:
    assert (
        format_releases(["0.9.0", "0.9.0.1", "0.12.0", "0.32.0", "0.33.0"])
        == "v0.9.0 - v0.9.0.1, v0.12.0, v0.32.0 and newer"
    )
    assert canonical_name("--max-model-len") == "max_model_len"


def test_the_data_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.json")) < 1_500_000


def test_every_fact_that_is_not_in_a_wheel_has_a_source() -> None:
    images = json.loads((DATA / "images.json").read_text(encoding="utf-8"))
    drivers = json.loads((DATA / "drivers.json").read_text(encoding="utf-8"))
    assert all(fact["source"] for fact in images.values())
    assert drivers["source"]
    assert drivers["forward"]["source"]


def test_every_replacement_names_arguments_that_exist() -> None:
    known = {name for version in known_releases() for name in release(version).argument_names}
    entries = json.loads((DATA / "replacements.json").read_text(encoding="utf-8"))
    assert set(entries) <= known
    assert {entry["needs"] for replacements in entries.values() for entry in replacements} <= {*known, ""}


@pytest.mark.parametrize("image", ["v0.9.0", "v0.15.0", "v0.19.0-cu130", "v0.27.1-cu129", "v0.33.0"])
def test_every_image_has_every_fact(image: str) -> None:
    known = release(image)
    facts = [known.cuda, known.min_driver, known.min_driver_minor_version, known.entrypoint, known.torch]
    assert all(isinstance(fact, str) and fact for fact in facts)
    assert known.compute_capabilities_for("x86_64")
    assert known.compute_capabilities_for("aarch64")


def test_plan_calls_do_not_read_files(monkeypatch: pytest.MonkeyPatch) -> None:
    known = release("0.32.0")
    known.default("max_num_seqs", H100)
    known.supports_architecture("Qwen3ForCausalLM")
    monkeypatch.setattr(Path, "read_text", lambda *args, **kwargs: pytest.fail("a data file was read again"))
    assert release("v0.32.0").default("max_num_seqs", H100) == 1024
    assert release("0.32.0").supports_architecture("Qwen3ForCausalLM")

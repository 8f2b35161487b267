# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rendering and checking of command lines."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import (
    ArgumentProblem,
    known_releases,
    release,
    serve_args,
)
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue.serve_args import TYPE_CHECKS

MODEL = "/models/m"


def plan(version: str, arguments: dict[str, Any] | None = None, extra: list[str] | None = None) -> dict[str, Any]:
    rows = [{"name": name, "value": value} for name, value in (arguments or {}).items()]
    return {"release": version, "arguments": rows, "extra_args": extra or []}


def problems(*given: Any, **options: Any) -> str:
    with pytest.raises(ArgumentProblem) as caught:
        serve_args(plan(*given), MODEL, **options)
    return str(caught.value)


def test_the_model_stands_where_the_entrypoint_expects_it() -> None:
    assert serve_args(plan("v0.32.0"), MODEL) == [MODEL]
    assert serve_args(plan("v0.9.0"), MODEL) == ["--model", MODEL]
    assert serve_args(plan("v0.9.0"), MODEL, entrypoint="serve") == [MODEL]
    assert serve_args(plan("v0.32.0", {"seed": 1, "model": MODEL})) == [MODEL, "--seed", "1"]


def test_the_release_may_be_the_dictionary_of_a_plan() -> None:
    given = {**plan("", {"seed": 1}), "release": {"version": "0.32.0", "cuda": "13.0"}}
    assert serve_args(given, MODEL) == [MODEL, "--seed", "1"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_model_len", 8192, ["--max-model-len", "8192"]),
        ("max-model-len", "8K", ["--max-model-len", "8K"]),
        ("max_model_len", "auto", ["--max-model-len", "auto"]),
        ("max_model_len", -1, ["--max-model-len=-1"]),
        ("enable_prefix_caching", True, ["--enable-prefix-caching"]),
        ("enable_prefix_caching", False, ["--no-enable-prefix-caching"]),
        ("enable_prefix_caching", "no", ["--no-enable-prefix-caching"]),
        ("disable_log_stats", True, ["--disable-log-stats"]),
        ("disable_log_stats", False, []),
        ("served_model_name", ["a", "b"], ["--served-model-name", "a", "b"]),
        ("served_model_name", "a", ["--served-model-name", "a"]),
        ("middleware", ["a.b", "c.d"], ["--middleware", "a.b", "--middleware", "c.d"]),
        ("compilation_config", {"mode": 3}, ["--compilation-config", '{"mode":3}']),
        ("compilation_config", '{"mode": 3}', ["--compilation-config", '{"mode": 3}']),
        ("allowed_origins", ["*"], ["--allowed-origins", '["*"]']),
        ("hf_overrides", {"a": "ü"}, ["--hf-overrides", '{"a":"ü"}']),
        ("device_ids", [0, 1], ["--device-ids", "0,1"]),
        ("chat_template", "-x", ["--chat-template=-x"]),
        ("quantization", None, []),
        ("cpu_offload_params", [], []),
        ("enable_prefix_caching", None, []),
        ("device-memory-utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        ("moe_backend", "Flashinfer-TRTLLM", ["--moe-backend", "Flashinfer-TRTLLM"]),
        ("gpu_memory_utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        ("dtype", "bfloat16", ["--dtype", "bfloat16"]),
        ("attention_backend", "flashinfer", ["--attention-backend", "flashinfer"]),
    ],
)
def test_values_are_written_as_the_parser_takes_them(name: str, value: Any, words: list[str]) -> None:
    assert serve_args(plan("v0.32.0", {name: value}), MODEL) == [MODEL, *words]


def test_a_boolean_that_takes_a_word_is_false_without_one() -> None:
    """Up to 0.11.2 the type of some is Python's bool, for which "False" is true."""
    name, flag = "guided_decoding_disable_fallback", "--guided-decoding-disable-fallback"
    assert serve_args(plan("v0.11.0", {name: True}), MODEL)[2:] == [flag, "True"]
    assert serve_args(plan("v0.11.0", {name: False}), MODEL)[2:] == [flag, ""]
    assert serve_args(plan("v0.10.0", {name: False}), MODEL)[2:] == [f"--no-{flag[2:]}"]


def test_extra_args_are_passed_on_word_by_word() -> None:
    extra = ["--max-logprobs", "5", "-O3", "--compilation-config.cudagraph_mode=NONE", "--no-enable-log-requests"]
    extra += ["--lora-modules", "a=/a", "b=/b", "-tp", "2", "--seed=7"]
    assert serve_args(plan("v0.32.0", {}, extra), MODEL) == [MODEL, *extra]


@pytest.mark.parametrize(
    ("version", "name", "value", "told"),
    [
        ("v0.32.0", "task", "embed", ["vLLM v0.32.0", "use --runner pooling --convert embed", "v0.9.0 - v0.12.0"]),
        ("v0.32.0", "task", "generate", ["use --runner generate"]),
        ("v0.32.0", "swap_space", 4, ["use --kv-offloading-size", "v0.9.0 - v0.17.1"]),
        ("v0.27.1", "disable_log_requests", True, ["leave it out", "--enable-log-requests", "v0.9.0 - v0.16.0"]),
        ("v0.9.0", "runner", "pooling", ["use --task embed", "v0.10.1 and newer"]),
        ("v0.9.0", "kv_cache_memory_bytes", 1, ["use --gpu-memory-utilization", "v0.10.2 and newer"]),
        ("v0.32.0", "max_model_length", 1, ["Did you mean --max-model-len"]),
        ("v0.32.0", "zzzzzz", 1, ["No release of the catalogue knows it", "force_args: [zzzzzz]"]),
    ],
)
def test_an_unknown_argument_says_what_to_use(version: str, name: str, value: Any, told: list[str]) -> None:
    text = problems(version, {name: value})
    assert [part for part in told if part not in text] == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_num_seqs", "many", "'many' is no whole number"),
        ("max_num_seqs", True, "'True' is no whole number"),
        ("gpu_memory_utilization", "most", "'most' is no number"),
        ("max_model_len", "8 thousand", "is no number of the kind 8192"),
        ("dtype", "bfloat15", "did you mean bfloat16"),
        ("trust_remote_code", "perhaps", "is no boolean"),
        ("compilation_config", "{", "is no JSON"),
        ("compilation_config", {"cudagraph_modes": 1}, "did you mean 'cudagraph_mode'"),
        ("tool_call_parser", "hermess", "did you mean hermes"),
        ("quantization", "bitsandbytes", "is none that it ships"),
        ("kv_cache_dtype", "fp9", "is none of its choices"),
        ("seed", None, "a value is needed"),
        ("ignore_patterns", [], "needs at least one value"),
    ],
)
def test_a_wrong_value_says_what_is_right(name: str, value: Any, told: str) -> None:
    assert told in problems("v0.32.0", {name: value})


def test_all_problems_come_at_once() -> None:
    text = problems("v0.32.0", {"task": "embed", "dtype": "int3"}, ["--swap-space", "4", "lonely"])
    assert [part for part in ("--task", "--dtype", "--swap-space") if part not in text] == []


def test_extra_args_go_through_the_same_check() -> None:
    assert "--swap-space (extra_args) is not an argument" in problems("v0.32.0", {}, ["--swap-space", "4"])
    assert "'many' is no whole number" in problems("v0.32.0", {}, ["--max-num-seqs=many"])
    assert "'word' is no argument" in problems("v0.32.0", {}, ["word"])
    assert "its JSON has no key 'nonsense'" in problems("v0.32.0", {}, ["--compilation-config.nonsense", "1"])


@pytest.mark.parametrize(
    ("arguments", "extra", "told"),
    [
        ({"max_model_len": 8192}, ["--max-model-len", "4096"], "twice, in arguments and in extra_args"),
        ({"tensor_parallel_size": 2}, ["-tp", "4"], "--tensor-parallel-size is given twice"),
        ({}, ["--seed", "1", "--seed=2"], "twice, in extra_args and in extra_args"),
        (
            {"device_memory_utilization": 0.8, "gpu_memory_utilization": 0.9},
            [],
            "--gpu-memory-utilization is given twice",
        ),
    ],
)
def test_an_argument_may_be_given_once(arguments: dict[str, Any], extra: list[str], told: str) -> None:
    assert told in problems("v0.32.0", arguments, extra)


def test_what_adds_up_may_be_given_again() -> None:
    extra = [
        "--middleware",
        "a.b",
        "--middleware",
        "c.d",
        "--compilation-config.mode=3",
        "--compilation-config.backend=x",
    ]
    assert serve_args(plan("v0.32.0", {}, extra), MODEL) == [MODEL, *extra]


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (["--enable-prefix-caching", "false"], "takes no value"),
        (["--enable-prefix-caching=false"], "write --enable-prefix-caching or --no-enable-prefix-caching"),
        (["--disable-log-stats", "true"], "write --disable-log-stats"),
        (["--served-model-name"], "needs at least one value"),
        (["--seed"], "is no whole number"),
        (["--seed", "1", "2"], "is no whole number"),
    ],
)
def test_words_that_the_parser_would_read_otherwise(extra: list[str], told: str) -> None:
    assert told in problems("v0.32.0", {}, extra)


def test_a_negation_is_a_word_and_no_name() -> None:
    """As a name it would invite 'no_enable_prefix_caching: false', which nobody reads the same way twice."""
    assert "Did you mean --enable-prefix-caching" in problems("v0.32.0", {"no_enable_prefix_caching": True})


def test_force_passes_an_argument_on() -> None:
    words = serve_args(
        plan("v0.32.0", {"my_flag": True, "my_value": 3}, ["--swap-space", "4"]),
        MODEL,
        force=["my_flag", "my-value", "swap_space"],
    )
    assert words == [MODEL, "--my-flag", "--my-value", "3", "--swap-space", "4"]


def test_secrets_do_not_go_onto_the_command_line() -> None:
    text = problems("v0.32.0", {}, ["--api-key", "s3cret"])
    assert "vllm_api_key" in text
    assert "s3cret" not in text


def test_what_only_vllm_serve_does_is_refused_under_the_old_entrypoint() -> None:
    assert "--entrypoint vllm" in problems("v0.12.0", {"headless": True})
    assert "does not know it" in problems("v0.9.0", {"headless": True})
    assert serve_args(plan("v0.12.0", {"headless": True}), MODEL, entrypoint="serve") == [MODEL, "--headless"]
    assert serve_args(plan("v0.12.0", {"headless": False}), MODEL) == ["--model", MODEL]


def test_a_plan_needs_a_model_and_a_release() -> None:
    with pytest.raises(ArgumentProblem, match="no model"):
        serve_args(plan("v0.32.0"))
    with pytest.raises(ArgumentProblem, match="names no release"):
        serve_args({"arguments": []}, MODEL)


@pytest.mark.parametrize("version", known_releases())
def test_every_default_of_a_release_passes_its_own_check(version: str) -> None:
    """The defaults come from the source and the check from the types: they must not contradict each other."""
    known = release(version)
    arguments = {
        name: argument.default
        for name in known.argument_names
        if (argument := known.argument(name)) is not None
        and argument.kind != "positional"
        and name not in ("model", "api_key", "hf_token")
        and not argument.serve_only
    }
    words = serve_args(plan(version, arguments), MODEL)
    assert MODEL in words[:2]


def test_every_type_of_the_data_has_a_check() -> None:
    types = {
        argument.type
        for version in known_releases()
        for name in release(version).argument_names
        if (argument := release(version).argument(name)) is not None
    }
    assert types == set(TYPE_CHECKS)


# The three launches of a published guide, as written there for v0.9.0 and as they must be for newer releases.
DISTILL = {
    "served_model_name": "deepseek-r1",
    "tensor_parallel_size": 2,
    "gpu_memory_utilization": 0.9,
    "max_model_len": 32768,
    "dtype": "bfloat16",
    "trust_remote_code": True,
    "enable_prefix_caching": True,
}
EMBEDDING = {
    "task": "embedding",
    "served_model_name": "qwen3-embedding",
    "port": 8001,
    "gpu_memory_utilization": 0.3,
    "max_model_len": 8192,
    "dtype": "float16",
}


@pytest.mark.parametrize("version", ["v0.9.0", "v0.27.1", "v0.32.0"])
def test_the_distilled_model_starts_on_every_release(version: str) -> None:
    words = serve_args(plan(version, DISTILL), MODEL)
    head = ["--model", MODEL] if version == "v0.9.0" else [MODEL]
    assert words == [
        *head,
        "--served-model-name",
        "deepseek-r1",
        "--tensor-parallel-size",
        "2",
        "--gpu-memory-utilization",
        "0.9",
        "--max-model-len",
        "32768",
        "--dtype",
        "bfloat16",
        "--trust-remote-code",
        "--enable-prefix-caching",
    ]


def test_the_embedding_model_starts_as_written_on_the_old_release_only() -> None:
    assert serve_args(plan("v0.9.0", EMBEDDING), MODEL)[2:4] == ["--task", "embedding"]
    for version in ("v0.27.1", "v0.32.0"):
        assert "use --runner pooling --convert embed" in problems(version, EMBEDDING)
        renamed = {"runner": "pooling", "convert": "embed", **EMBEDDING}
        del renamed["task"]
        assert serve_args(plan(version, renamed), MODEL)[1:5] == ["--runner", "pooling", "--convert", "embed"]

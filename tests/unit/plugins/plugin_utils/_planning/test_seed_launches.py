# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three launches as people publish them, planned and rendered for an old, a middle and a recent release.

A 14B distill on two cards of 80 GB, a small embedding model on a share of a card, and GLM-5.3 on two cards of 80 GB.
"""

from __future__ import annotations

from typing import Any

import pytest
from planning_examples import argument, hosts

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import ArgumentProblem, release, serve_args
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan

RELEASES = ["0.9.0", "0.27.1", "0.32.0"]
RECENT = RELEASES[1:]
MODEL = "/models/model"

DISTILL = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 13824,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
EMBEDDING = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151669,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
GLM = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "hidden_size": 6144,
    "num_hidden_layers": 78,
    "first_k_dense_replace": 3,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_topk": 2048,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "vocab_size": 154880,
    "max_position_embeddings": 1048576,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


def launch(config: dict[str, Any], version: str, pins: dict[str, Any], **variables: Any) -> dict[str, Any]:
    return {
        "name": "launch",
        "image": f"vllm/vllm-openai:v{version}",
        "checkpoint": describe_config(config),
        "engine_args": pins,
        **variables,
    }


def command(planned: dict[str, Any], served_model_name: str) -> list[str]:
    served = {"name": "served_model_name", "value": [served_model_name]}
    return serve_args({**planned, "arguments": [served, *planned["arguments"]]}, MODEL)


def model_words(version: str) -> list[str]:
    """The images up to v0.13 start the API server, the newer ones ``vllm serve``."""
    return ["--model", MODEL] if release(version).entrypoint == "api_server" else [MODEL]


def problems_of(planned: dict[str, Any]) -> dict[str, str]:
    return {error["variable"]: error["message"] for error in planned["errors"]}


# -- the 14B distill on two cards of 80 GB ---------------------
DISTILL_PINS = {
    "tensor_parallel_size": 2,
    "gpu_memory_utilization": 0.9,
    "max_model_len": 32768,
    "dtype": "bfloat16",
    "enable_prefix_caching": True,
}


@pytest.mark.parametrize("version", RELEASES)
def test_the_distill_runs_on_two_cards_in_every_release(version: str) -> None:
    planned = plan(launch(DISTILL, version, DISTILL_PINS, trust_remote_code=True), hosts(2))
    assert (planned["verdict"], planned["errors"], planned["needs"]) == ("fits", [], [])
    assert planned["kv"]["bytes_per_token"] == 2 * 48 * 8 * 128 * 2 / 2
    assert planned["kv"]["max_concurrency_low"] > 8
    for budget in planned["budget"]:
        assert budget["requested_gib"]["value"] == pytest.approx(0.9 * budget["total_gib"]["value"], abs=0.01)
        assert budget["weights_gib"]["value"] == pytest.approx(14.77e9 * 2 / 2 / 2**30, rel=0.02)
    assert command(planned, "deepseek-r1") == [
        *model_words(version),
        *["--served-model-name", "deepseek-r1"],
        *["--dtype", "bfloat16"],
        *["--tensor-parallel-size", "2"],
        *["--max-model-len", "32768"],
        *["--gpu-memory-utilization", "0.9"],
        "--enable-prefix-caching",
        "--trust-remote-code",
    ]


def test_the_entrypoints_of_the_releases_differ() -> None:
    assert [model_words(version)[0] for version in RELEASES] == ["--model", MODEL, MODEL]


@pytest.mark.parametrize("version", RELEASES)
def test_one_card_keeps_the_distills_promise_of_one_long_request(version: str) -> None:
    planned = plan(launch(DISTILL, version, {}, workload={"context": 32768, "sequences": 1}), hosts(2))
    assert (planned["verdict"], planned["parallel"]["tensor_parallel_size"]) == ("fits", 1)
    assert any("more replica" in decision["why"] for decision in planned["decisions"])


OLD_HABITS = {"swap_space": 4}


def test_old_habits_are_arguments_of_the_old_release() -> None:
    asked = launch(DISTILL, "0.9.0", {**DISTILL_PINS, **OLD_HABITS}, extra_args=["--disable-log-requests"])
    planned = plan(asked, hosts(2))
    assert (planned["verdict"], planned["errors"]) == ("fits", [])
    words = serve_args({**planned, "extra_args": asked["extra_args"]}, MODEL)
    assert words[-3:] == ["--swap-space", "4", "--disable-log-requests"]


@pytest.mark.parametrize("version", RECENT)
def test_old_habits_are_refused_with_what_replaced_them(version: str) -> None:
    asked = launch(DISTILL, version, {**DISTILL_PINS, **OLD_HABITS}, extra_args=["--disable-log-requests"])
    planned = plan(asked, hosts(2))
    problems = problems_of(planned)
    assert (planned["verdict"], planned["arguments"]) == ("unsupported", [])
    assert sorted(problems) == ["engine_args.swap_space", "extra_args"]
    assert planned["needs"] == list(problems.values())
    assert (
        f"is not an argument of vLLM v{version}. There, use --kv-offloading-size" in problems["engine_args.swap_space"]
    )
    assert "leave it out: requests are not logged unless --enable-log-requests" in problems["extra_args"]
    with pytest.raises(ArgumentProblem, match="--disable-log-requests"):
        serve_args({**planned, "extra_args": asked["extra_args"]}, MODEL)


# -- the embedding model at 0.3 of a card ----------------------
EMBEDDING_PINS = {"gpu_memory_utilization": 0.3, "max_model_len": 8192, "dtype": "float16"}
POOLING = {
    "0.9.0": ["--task", "embed"],
    "0.27.1": ["--convert", "embed", "--runner", "pooling"],
    "0.32.0": ["--convert", "embed", "--runner", "pooling"],
}


@pytest.mark.parametrize("version", RELEASES)
def test_the_embedding_model_pools_in_the_words_of_the_release(version: str) -> None:
    planned = plan(launch(EMBEDDING, version, EMBEDDING_PINS, task="embed"), hosts(1))
    assert (planned["verdict"], planned["errors"]) == ("fits", [])
    budget = planned["budget"][0]
    assert budget["requested_gib"]["value"] == pytest.approx(0.3 * budget["total_gib"]["value"], abs=0.01)
    assert budget["weights_gib"]["value"] == pytest.approx(0.596e9 * 2 / 2**30, rel=0.02)
    assert planned["kv"]["max_concurrency_low"] > 1
    assert command(planned, "qwen3-embedding") == [
        *model_words(version),
        *["--served-model-name", "qwen3-embedding"],
        *["--dtype", "float16"],
        *["--max-model-len", "8192"],
        *["--gpu-memory-utilization", "0.3"],
        *POOLING[version],
    ]


@pytest.mark.parametrize("task", ["embed", "embedding"])
def test_the_old_release_takes_the_pinned_task_and_plans_the_same_memory(task: str) -> None:
    by_task = plan(launch(EMBEDDING, "0.9.0", EMBEDDING_PINS, task="embed"), hosts(1))
    pinned = plan(launch(EMBEDDING, "0.9.0", {**EMBEDDING_PINS, "task": task}), hosts(1))
    in_words = plan(launch(EMBEDDING, "0.9.0", EMBEDDING_PINS, extra_args=["--task", task]), hosts(1))
    assert argument(pinned, "task") == task
    assert by_task["budget"] == pinned["budget"] == in_words["budget"]


@pytest.mark.parametrize("version", RECENT)
@pytest.mark.parametrize(
    "pins", [{"runner": "pooling"}, {"convert": "embed"}, {"runner": "pooling", "convert": "embed"}]
)
def test_a_pinned_runner_or_conversion_is_a_pooling_task(version: str, pins: dict[str, str]) -> None:
    by_task = plan(launch(EMBEDDING, version, EMBEDDING_PINS, task="embed"), hosts(1))
    words = [word for name, value in pins.items() for word in (f"--{name}", value)]
    pinned = plan(launch(EMBEDDING, version, {**EMBEDDING_PINS, **pins}), hosts(1))
    in_words = plan(launch(EMBEDDING, version, EMBEDDING_PINS, extra_args=words), hosts(1))
    assert by_task["budget"] == pinned["budget"] == in_words["budget"]


@pytest.mark.parametrize("version", RELEASES)
def test_the_task_is_not_rendered_beside_the_same_in_extra_args(version: str) -> None:
    asked = launch(EMBEDDING, version, EMBEDDING_PINS, task="embed", extra_args=POOLING[version])
    planned = plan(asked, hosts(1))
    assert planned["verdict"] == "fits"
    words = serve_args({**planned, "extra_args": asked["extra_args"]}, MODEL)
    assert words[-len(POOLING[version]) :] == POOLING[version]
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("version", RECENT)
@pytest.mark.parametrize("task", ["embed", "embedding"])
def test_the_task_argument_is_refused_with_runner_and_convert(version: str, task: str) -> None:
    pinned = plan(launch(EMBEDDING, version, {**EMBEDDING_PINS, "task": task}), hosts(1))
    in_words = plan(launch(EMBEDDING, version, EMBEDDING_PINS, extra_args=["--task", task]), hosts(1))
    for planned, variable in ((pinned, "engine_args.task"), (in_words, "extra_args")):
        assert planned["verdict"] == "unsupported"
        problem = problems_of(planned)[variable]
        assert f"is not an argument of vLLM v{version}. There, use --runner pooling --convert embed." in problem
        assert "Known to v0.9.0 - v0.12.0" in problem


# -- GLM-5.3 on two cards of 80 GB -----------------------------
GLM_PINS = {"tensor_parallel_size": 2, "max_model_len": 65536, "gpu_memory_utilization": 0.92, "dtype": "bfloat16"}


@pytest.mark.parametrize("pins", [GLM_PINS, {}])
def test_the_old_release_does_not_know_glm(pins: dict[str, Any]) -> None:
    planned = plan(launch(GLM, "0.9.0", pins, trust_remote_code=True), hosts(2))
    assert (planned["verdict"], planned["arguments"]) == ("unsupported", [])
    (need,) = planned["needs"]
    assert "vLLM v0.9.0 does not know GlmMoeDsaForCausalLM (known to v0.16.0 and newer)" in need
    knowing = [version for version in RELEASES if release(version).supports_architecture("GlmMoeDsaForCausalLM")]
    assert knowing == RECENT


@pytest.mark.parametrize("version", RECENT)
@pytest.mark.parametrize("pins", [GLM_PINS, {}])
def test_two_cards_cannot_hold_glm(version: str, pins: dict[str, Any]) -> None:
    planned = plan(launch(GLM, version, pins, trust_remote_code=True), hosts(2))
    assert (planned["verdict"], planned["errors"]) == ("does_not_fit", [])
    weights = [budget["weights_gib"]["low"] for budget in planned["budget"]]
    assert len(weights) == 2
    assert min(weights) > 600
    assert planned["kv"]["tokens"] == 0
    reason = next(item for item in planned["decisions"] if item["decision"].startswith("does not fit on 2 GPUs"))
    assert "GiB free; weights take 69" in reason["why"]


@pytest.mark.parametrize("version", RECENT)
@pytest.mark.parametrize("pins", [GLM_PINS, {}])
def test_what_glm_needs_is_hosts_that_exist_and_is_enough(version: str, pins: dict[str, Any]) -> None:
    planned = plan(launch(GLM, version, pins), hosts(2))
    need = next(need for need in planned["needs"] if "GPUs like" in need)
    count = int(need.split()[0])
    assert f"{count} hosts with 8 GPUs like NVIDIA H100 80GB HBM3 each" in need
    assert f"(tensor_parallel_size 8, pipeline_parallel_size {count})" in need
    assert ("in place of the pinned sizes" in need) is bool(pins)
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": count}
    fleet = [{**hosts(8)[0], "name": f"gpu{number}"} for number in range(count)]
    assert plan(launch(GLM, version, {**pins, **sizes}), fleet)["verdict"] == "fits"
    fewer = {**pins, **sizes, "pipeline_parallel_size": count - 1}
    assert plan(launch(GLM, version, fewer), fleet[1:])["verdict"] != "fits"

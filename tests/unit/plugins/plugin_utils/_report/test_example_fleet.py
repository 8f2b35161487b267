# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The example fleet shows what its comments and docs/planning.md say, with the figures of the worked examples."""

from __future__ import annotations

import re

import pytest
from example_fleet import EXAMPLE, FACTS, facts, fleet, instances, planned

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import release, serve_args
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue.releases import known_releases

GUIDE = EXAMPLE.parents[1] / "docs/planning.md"
DISTILL = "/data/models/DeepSeek-R1-Distill-Qwen-14B"
GB, GIB = 10**9, 2**30


def arguments(plan):
    return {argument["name"]: argument["value"] for argument in plan["arguments"]}


def test_every_host_has_facts_and_every_verdict_is_shown():
    plans, hosts = fleet()
    assert {path.stem for path in (FACTS).glob("*.json")} == set(hosts)
    assert {plan["verdict"] for plan in plans} == {"fits", "fits_reduced", "does_not_fit", "unsupported"}


def test_replicas_get_equal_plans():
    first, second = planned("gpu01")[0], planned("gpu02")[0]
    assert arguments(first) == arguments(second)
    assert first["devices"] != second["devices"]


def test_the_pair_is_divided_because_one_card_does_not_keep_the_promise():
    plan = planned("gpu03")[0]
    assert plan["parallel"]["tensor_parallel_size"] == 2
    alone = {**instances("gpu03")[0], "engine_args": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}}
    assert planned("gpu03", [alone])[0]["verdict"] == "fits_reduced"


def test_two_instances_and_another_process_share_a_card():
    embedding, assistant = planned("gpu04")
    total = embedding["budget"][0]["total_gib"]["value"]
    taken = [plan["budget"][0]["requested_gib"]["value"] for plan in (embedding, assistant)]
    assert all(value <= total for value in taken)
    assert {"kv_cache_memory_bytes"} <= set(arguments(embedding)) & set(arguments(assistant))
    assert assistant["budget"][0]["others_gib"]["value"] > embedding["budget"][0]["others_gib"]["value"]


def test_a_token_of_the_distill_takes_192_kib_and_32k_of_them_6_gib():
    plan = planned("rtx4090", [{**instances("rtx4090")[0], "engine_args": {"tensor_parallel_size": 1}}])[0]
    per_token = plan["kv"]["bytes_per_token"]
    assert per_token == 196_608 == 2 * 48 * 8 * 128 * 2
    assert per_token * 32_768 == 6 * GIB
    assert 8 * per_token * 32_768 == 48 * GIB


def test_the_weights_of_the_distill_are_30_gb_and_a_long_request_makes_them_36():
    weights = describe_config(facts("rtx4090")["checkpoints"][DISTILL])["weights"]["total_bytes"]
    assert weights / GIB == pytest.approx(27.5, abs=0.1)
    assert weights / GIB + 6 == pytest.approx(33.5, abs=0.1)
    assert weights / 2 / GB == pytest.approx(14.8, abs=0.1)


def test_the_guide_tells_the_figures_of_the_articles_and_what_is_counted():
    """Each number of the worked example is in the guide, computed from the checkpoint and not from the guide."""
    text = " ".join(GUIDE.read_text(encoding="utf-8").split())
    example = text[text.index("## The arithmetic") :]
    shape = describe_config(facts("rtx4090")["checkpoints"][DISTILL])
    ((layers,), per_token) = [item["count"] for item in shape["layers"]], 2 * 48 * 8 * 128 * 2
    weights, request = shape["weights"]["total_bytes"], per_token * 32_768
    told = [
        f"{layers} layers",
        f"{per_token:,} bytes, {per_token // 1024} KiB",
        f"takes {request // GIB} GiB, eight of them {8 * request // GIB} GiB",
        f"{weights / GIB:.1f} GiB in bfloat16",
        f"it is {weights / GB:.1f} GB",
        f"{round(weights / GIB) + request // GIB} GB that one reads",
        f"in truth {(weights + request) / GIB:.1f} GiB",
        f"{0.9 * 24:.1f} GB",
        f"{round(weights / GIB) // 2} GB that one reads for this model are its 8-bit figure",
        f"{round(weights / GIB)} GB the bfloat16 one",
        f"some {(0.9 * 24e9 - weights / 2) / GIB:.0f} GB are left",
    ]
    assert [figure for figure in told if figure not in example] == []


def test_the_guide_tells_the_release_that_changed_the_default_share():
    """0.9 up to one release and 0.92 from the next one on: the catalogue says which."""
    defaults = {version: release(version).default("gpu_memory_utilization") for version in known_releases()}
    before = [version for version, share in defaults.items() if share == 0.9]
    after = [version for version, share in defaults.items() if share == 0.92]
    assert f"is 0.9 up to v{before[-1]} and 0.92 from v{after[0]} on" in GUIDE.read_text(encoding="utf-8")
    assert list(defaults) == before + after


def test_a_card_of_24_gb_does_not_hold_the_distill():
    plan = planned("rtx4090")[0]
    assert plan["verdict"] == "does_not_fit"
    needs = " ".join(plan["needs"])
    assert "2 GPUs like NVIDIA GeForce RTX 4090" in needs
    assert re.search("8.bit|of 8 bits", needs)
    two = {**facts("rtx4090")["gpu_info"]}
    assert plan["budget"][0]["weights_gib"]["low"] > two["gpus"][0]["memory_total_mib"] / 1024


@pytest.mark.parametrize(("release", "verdict"), [("v0.9.0", "fits"), ("v0.27.1", "fits"), ("v0.32.0", "fits")])
def test_the_launch_over_two_cards_is_as_the_guide_says(release, verdict):
    launch = {**instances("a100-pair")[0], "image": f"vllm/vllm-openai:{release}"}
    plan = planned("a100-pair", [launch])[0]
    assert plan["verdict"] == verdict
    # One card would do, too: the second adds capacity, and communication.
    alone = {**launch, "engine_args": {**launch["engine_args"], "tensor_parallel_size": 1}}
    assert planned("a100-pair", [alone])[0]["verdict"] == "fits"


@pytest.mark.parametrize(
    ("release", "words"),
    [("v0.9.0", ["--task", "embed"]), ("v0.27.1", ["--runner", "pooling"]), ("v0.32.0", ["--runner", "pooling"])],
)
def test_the_embedding_launch_is_written_as_each_release_takes_it(release, words):
    launch = {**instances("l4-single")[0], "image": f"vllm/vllm-openai:{release}"}
    plan = planned("l4-single", [launch])[0]
    command = serve_args(plan, model="/models/Qwen3-Embedding-0.6B")
    assert plan["verdict"] == "fits"
    assert words[1] == command[command.index(words[0]) + 1]


@pytest.mark.parametrize(
    ("release", "verdict"), [("v0.9.0", "unsupported"), ("v0.27.1", "does_not_fit"), ("v0.32.0", "does_not_fit")]
)
def test_the_large_launch_runs_on_no_release(release, verdict):
    launch = {**instances("h100-pair")[0], "image": f"vllm/vllm-openai:{release}"}
    assert planned("h100-pair", [launch])[0]["verdict"] == verdict


@pytest.mark.parametrize(
    ("release", "share"), [("v0.9.0", 0.9), ("v0.19.1", 0.9), ("v0.20.0", 0.92), ("v0.32.0", 0.92)]
)
def test_the_default_share_of_the_card_depends_on_the_release(release, share):
    instance = {"name": "chat", "image": f"vllm/vllm-openai:{release}", "checkpoint": "/data/models/Qwen3-8B"}
    budget = planned("gpu01", [instance])[0]["budget"][0]
    assert budget["requested_gib"]["value"] / budget["total_gib"]["value"] == pytest.approx(share, abs=0.001)


def test_the_figures_of_the_guide_are_those_of_the_plans():
    """The guide's table of the fleet says what the plans say; a new calibration may move the figures a little."""
    text = GUIDE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w.-]+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE))
    plans, _facts = fleet()
    for plan in plans:
        if plan["verdict"] in ("fits", "fits_reduced"):
            told = re.fullmatch(r"about ([\d,]+) tokens", rows[plan["name"]])
            assert int(told[1].replace(",", "")) == pytest.approx(plan["kv"]["tokens"], rel=0.05), plan["name"]
        else:
            assert rows[plan["name"]] == "–", plan["name"]

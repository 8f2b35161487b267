# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import re

import pytest
from example_fleet import fleet, instances, planned

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._launch import docker_run
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import explain
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.difference import differences
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.text import BAR, card_bar

PLANS = {f"{plan['name']}-{plan['hosts'][0]}": plan for plan in fleet()[0]}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_line_is_longer_than_100_columns(plan):
    long = copy.deepcopy(plan)
    long["extra_args"] = ["--hf-overrides", '{"rope": ' + "x" * 150 + "}"]
    long["environment"] = {"NCCL_DEBUG": "INFO " * 40}
    for running in (None, {}, {plan["name"]: long}):
        assert [line for line in explain(plan, running).splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_verdict_is_first_and_the_host_is_named(plan):
    text = explain(plan)
    assert text.startswith(plan["verdict"].replace("_", " ").upper() + f": {plan['name']} on vLLM ")
    assert plan["hosts"][0] in text.split("\n\n", maxsplit=1)[0]


def test_what_has_no_interval_shows_none():
    text = explain(planned("gpu04")[0])
    assert "KV cache: 65,536 tokens, 114,688 bytes a token and GPU" in text
    assert not re.search(r"\(([\d.,]+) to \1\)", text)


def test_requests_are_summed_up_in_plain_words():
    text = explain(planned("gpu03")[0])
    assert "Holds 9 requests of 32,768 tokens at once" in text
    assert "Planned for 32 requests at once of 6,000 tokens each, and one of 32,768" in text
    assert "Reduced to 5 requests at once of 8,192 tokens each" in explain(planned("gpu04")[1])


def test_equal_cards_are_shown_once():
    text = explain(planned("gpu03")[0])
    assert text.count("[") == 1
    assert "gpu03 GPU 0, gpu03 GPU 1: NVIDIA H100" in text


def test_the_bar_shows_where_the_card_ends():
    fits, fails = planned("gpu01")[0]["budget"][0], planned("rtx4090")[0]["budget"][0]
    assert len(card_bar(fits)) == len(card_bar(fails)) == BAR
    assert "|" not in card_bar(fits) and card_bar(fits).endswith(".")
    # The weights alone are more than the card: the mark is among them, at the card's share of all that is needed.
    needed = sum(fails[f"{term}_gib"]["value"] for term in ("weights", "activation", "non_torch", "cuda_graph"))
    assert card_bar(fails).index("|") == int(fails["total_gib"]["value"] / needed * BAR)


def changed(plan, **changes):
    return {**copy.deepcopy(plan), **changes}


def with_argument(plan, name, value):
    others = [argument for argument in plan["arguments"] if argument["name"] != name]
    added = {"name": name, "value": value, "why": "", "step": 0, "cost": ""}
    return changed(plan, arguments=others if value is None else [*others, added])


RUNNING = planned("gpu01")[0]
VARIANTS = {
    "the same": RUNNING,
    "a prediction": changed(RUNNING, budget=[], decisions=[], warnings=["another"]),
    "the image": changed(RUNNING, image="vllm/vllm-openai:v0.31.0"),
    "the checkpoint": changed(RUNNING, checkpoint="/data/models/other"),
    "the name for clients": changed(RUNNING, served_model_name="other"),
    "the address": changed(RUNNING, address="127.0.0.1"),
    "the port": changed(RUNNING, port=8001),
    "the card": changed(RUNNING, devices={"gpu01": ["GPU-other"]}),
    "an argument": with_argument(RUNNING, "max_model_len", 8192),
    "one argument more": with_argument(RUNNING, "max_num_seqs", 16),
    "one argument less": with_argument(RUNNING, "max_model_len", None),
    "a word": changed(RUNNING, extra_args=["--max-logprobs", "5"]),
    "a variable": changed(RUNNING, environment={"NCCL_DEBUG": "INFO"}),
}


@pytest.mark.parametrize("planned_plan", VARIANTS.values(), ids=VARIANTS)
def test_a_difference_is_one_of_the_launch_command(planned_plan):
    """What restarts an engine is another launch command; the text must neither miss one nor invent one."""
    commands = [docker_run(plan, "/etc/engine.env", "/var/cache") for plan in (RUNNING, planned_plan)]
    assert bool(differences(RUNNING, planned_plan)) == (commands[0] != commands[1])


def test_the_text_shows_each_difference_and_whether_the_engine_restarts():
    plan = planned("gpu01", [{**instances("gpu01")[0], "workload": {"context": 8192, "sequences": 16}}])[0]
    text = explain(plan, {"qwen": RUNNING})
    assert "Against what runs: 1 difference. A deployment would restart the engine." in text
    assert re.search(r"max_model_len +16384 +8192\n", text)
    assert "would not restart" in explain(RUNNING, {"qwen": RUNNING})
    assert "Not deployed yet" in explain(RUNNING, {"other": RUNNING})
    assert "Against what runs" not in explain(RUNNING)

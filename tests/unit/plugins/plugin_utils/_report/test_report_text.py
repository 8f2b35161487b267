# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import copy
import re

import pytest
from example_fleet import fleet, instances, planned

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._launch import docker_run
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import explain, summarize
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.columns import table, width, wrap
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.difference import differences
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.text import BAR, card_bar

PLANS = {f"{plan['name']}-{plan['hosts'][0]}": plan for plan in fleet()[0]}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_no_line_is_longer_than_100_columns(plan):
    long = copy.deepcopy(plan)
    long["extra_args"] = ["--hf-overrides", '{"rope": ' + "x" * 150 + "}"]
    long["environment"] = {"NCCL_DEBUG": "INFO " * 40}
    for running in (None, {}, {plan["hosts"][0]: {plan["name"]: long}}):
        assert [line for line in explain([plan], running).splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_verdict_is_first_and_the_host_is_named(plan):
    text = explain([plan])
    assert text.startswith(plan["verdict"].replace("_", " ").upper() + f": {plan['name']} on vLLM ")
    assert plan["hosts"][0] in text.split("\n\n", maxsplit=1)[0]


def spread(plan, cards):
    """The plan over several cards of its host, with the figures of its own."""
    host, budget = plan["hosts"][0], plan["budget"][0]
    budgets = [{**budget, "gpu": gpu, "uuid": f"GPU-{gpu}"} for gpu in range(cards)]
    return {**plan, "budget": budgets, "devices": {host: [budget["uuid"] for budget in budgets]}}


def named(plan, name, host):
    text = repr({**plan, "name": name}).replace(plan["hosts"][0], host)
    return ast.literal_eval(text)


WIDE = "大きなモデルの対話サービス" * 9
HOST = "gpu-node-with-a-name-of-the-longest-kind.rack-17.room-2.building-c.campus-north.example.com"


@pytest.mark.parametrize("name", ["an-instance-" * 20, WIDE, "a b " * 60], ids=["long", "wide", "spaces"])
def test_names_of_any_length_and_script_stay_in_100_columns(name):
    plans = [named(spread(plan, 8), name, HOST) for plan in planned("gpu01") + planned("gpu04")]
    for plan in plans:
        plan["warnings"] = [f"{WIDE} {name}", "x" * 300]
        plan["arguments"].append({"name": "hf_overrides", "value": {"key": name}, "why": WIDE, "step": 0, "cost": name})
    runs = {HOST: {name: changed(plans[0], served_model_name=WIDE)}}
    failures = {f"{HOST}-{number}": {"msg": f"could not be reached: {WIDE}"} for number in range(9)}
    texts = [explain(plans, runs), summarize(plans, {HOST: {}}, failures, {"plan": f"ansible-playbook -i {name}"})]
    assert [line for text in texts for line in text.splitlines() if width(line) > 100] == []


def test_a_wide_character_takes_two_columns():
    assert (width("ab"), width("模型"), width("e\u0301")) == (2, 4, 1)
    assert wrap("模型" * 3, "  ", columns=6) == ["  模型", "  模型", "  模型"]
    assert list(table([("模", "x"), ("ab", "y")])) == ["  模  x", "  ab  y"]


def test_eight_equal_cards_are_one_bar_and_one_label():
    plan = spread(planned("gpu01")[0], 8)
    plan["budget"][3]["free_gib"] = {
        **plan["budget"][3]["free_gib"],
        "value": plan["budget"][3]["free_gib"]["value"] + 0.001,
    }
    text = explain([plan])
    assert text.count("[") == 1
    assert "gpu01 GPUs 0-7: NVIDIA H100" in text


def test_what_is_said_of_each_card_is_said_once_with_all_of_them():
    plan = spread(planned("gpu01")[0], 12)
    plan["warnings"] = [f"gpu01 GPU {gpu}: too hot" for gpu in range(12)] + ["another"]
    plan["decisions"] = [
        {"step": 3, "decision": f"2.00 GiB of gpu01 GPU {gpu} are left", "why": "why", "cost": "none"}
        for gpu in (0, 1, 2, 5, 10)
    ]
    text = explain([plan])
    assert "  * gpu01 GPUs 0-11: too hot\n  * another\n" in text
    assert text.count("2.00 GiB of") == 1
    assert "    2.00 GiB of gpu01 GPUs 0-2, 5, 10 are left\n" in text


def test_equal_plans_of_several_hosts_are_told_once():
    text = explain([plan for plan in PLANS.values() if plan["name"] == "qwen"])
    assert text.count("FITS: qwen") == 1
    assert "The same 2 times, on 2 hosts: gpu01 GPU 0, gpu02 GPU 0" in text


def test_what_is_not_understood_is_said_first():
    text = explain([{**planned("gpu01")[0], "verdict": "unverified"}])
    assert text.startswith("UNVERIFIED: qwen on vLLM ")
    assert "Holds 24 requests" in text


def test_the_table_has_every_host_the_worst_first_and_the_next_commands():
    plans, hosts = fleet()
    failures = {"gone": {"unreachable": True, "msg": "could not be reached: Task failed: no route. Next: look"}}
    commands = {"plan": "PLAN", "deploy": "DEPLOY", "reach": "REACH"}
    text = summarize(plans, {**hosts, "gone": {}, "spare": hosts["gpu01"]}, failures, commands)
    rows = [line for line in text.splitlines() if re.match(r"  \S", line)]
    assert [row.split()[0].rstrip(",") for row in rows[1:4]] == ["gone", "h100-pair", "rtx4090"]
    assert "could not be reached: no route." in rows[1]
    assert re.search(r"gpu01, gpu02 +qwen +FITS +Holds 24 requests of 16,384 tokens at once", text)
    assert re.search(r"spare +– +NOTHING +vllm_instances is empty there", text)
    assert [row.strip() for row in rows[-3:]] == ["REACH", "PLAN", "DEPLOY"]


def test_a_long_command_can_be_copied():
    command = "ansible-playbook " + " ".join(f"-e file-{number}.yml" for number in range(20))
    text = summarize(planned("gpu01"), {}, {}, {"deploy": command})
    copied = text[text.index("  ansible-playbook") :].replace("\\\n", " ")
    assert copied.split() == command.split()


def test_what_has_no_interval_shows_none():
    text = explain(planned("gpu04")[:1])
    assert "KV cache: 65,536 tokens, 114,688 bytes a token and GPU" in text
    assert not re.search(r"\(([\d.,]+) to \1\)", text)


def test_requests_are_summed_up_in_plain_words():
    text = explain(planned("gpu03"))
    assert "Holds 9 requests of 32,768 tokens at once" in text
    assert "Planned for 32 requests at once of 6,000 tokens each, and one of 32,768" in text
    assert "Reduced to 4 requests at once of 8,192 tokens each" in explain(planned("gpu04")[1:])


def test_equal_cards_are_shown_once():
    text = explain(planned("gpu03"))
    assert text.count("[") == 1
    assert "gpu03 GPUs 0-1: NVIDIA H100" in text


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
    text = explain([plan], {"gpu01": {"qwen": RUNNING}})
    assert "Against what runs: 1 difference. A deployment would restart the engine." in text
    assert re.search(r"max_model_len +16384 +8192\n", text)
    same = explain([RUNNING], {"gpu01": {"qwen": RUNNING}})
    assert "A changed API key would: keys are not read for a plan" in same
    assert "API key" not in text
    assert "would not restart" in explain([RUNNING], {"gpu01": {"qwen": RUNNING}})
    assert "Not deployed yet" in explain([RUNNING], {"gpu01": {"other": RUNNING}})
    assert "Against what runs" not in explain([RUNNING])

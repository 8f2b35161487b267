# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the page of a fleet holds. How it looks is tested in a browser: tests/browser."""

from __future__ import annotations

import copy
import re

import pytest
from example_fleet import fleet, planned

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import fleet_page
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.fleet import (
    attention_of,
    cards_of,
    groups_of,
    unplanned,
)

PLANS, HOSTS = fleet()


def figures(page):
    """The tiles at the top: title, number, note."""
    return {
        title: (int(number), note)
        for title, number, note in re.findall(r"<dt>([^<]+)</dt><dd[^>]*>(\d+)<small>([^<]*)</small>", page)
    }


def test_the_same_input_gives_the_same_bytes():
    assert fleet_page(copy.deepcopy(PLANS), copy.deepcopy(HOSTS)) == fleet_page(PLANS, HOSTS)


def test_the_fleet_in_numbers():
    page = fleet_page(PLANS, HOSTS)
    assert figures(page) == {
        "Hosts": (10, ""),
        "GPUs": (27, "3 idle"),
        "Instances": (10, ""),
        "Fits": (7, ""),
        "Fits reduced": (1, ""),
        "Does not fit": (1, ""),
        "Unsupported": (1, ""),
    }


def test_replicas_are_told_once_and_other_figures_apart():
    replicas = [plan for plan in PLANS if plan["name"] == "qwen"]
    assert [group.hosts for group in groups_of(replicas)] == [["gpu01", "gpu02"]]
    other = copy.deepcopy(replicas[1])
    other["budget"][0]["free_gib"]["value"] -= 1
    assert [group.hosts for group in groups_of([replicas[0], other])] == [["gpu01"], ["gpu02"]]


def test_a_card_holds_what_the_plans_give_it_and_no_more():
    cards = cards_of(PLANS, HOSTS)
    shared = cards["gpu04"][0]
    assert [plan["name"] for plan, _budget in shared.takers] == ["embedding", "assistant"]
    # What the second instance sees of others is not counted again as others of the card.
    assert shared.others_gib == pytest.approx(9000 / 1024, abs=0.01)
    assert [card.idle for card in cards["h100-pair"]] == [True, True]
    assert not any(card.idle for card in cards["gpu03"])


def test_cards_are_known_from_plans_where_facts_are_not_given():
    cards = cards_of(PLANS, {})
    assert [len(cards[host]) for host in ("gpu01", "gpu03", "h100-pair")] == [1, 2, 0]


def test_a_card_of_others_is_not_idle():
    gpu = {"index": 0, "uuid": "GPU-x", "name": "GPU", "memory_total_mib": 24576, "memory_used_by_others_mib": 20000}
    (card,) = cards_of([], {"gpu1": {"gpus": [gpu]}})["gpu1"]
    assert not card.idle


def test_a_divided_card_is_shown_as_its_mig_devices():
    instances = [{"uuid": f"MIG-{number}", "profile": "3g.40gb", "memory_total_mib": 40448} for number in range(2)]
    gpu = {
        "index": 0,
        "uuid": "GPU-x",
        "name": "NVIDIA A100",
        "memory_total_mib": 81920,
        "mig": {"instances": instances},
    }
    cards = cards_of([], {"gpu1": {"gpus": [gpu]}})["gpu1"]
    assert [(card.index, card.name, card.total_gib) for card in cards] == [(0, "NVIDIA A100 MIG 3g.40gb", 39.5)] * 2


def test_the_worst_comes_first():
    hosts = {
        **HOSTS,
        "lost": {},
        "broken": {"gpus": [], "errors": [{"message": "GPU 3 is lost", "next_step": "reboot"}]},
    }
    failures = {
        "gone": {"msg": "gone: could not be reached: no route"},
        "away": {"msg": "could not be reached: no route"},
    }
    reasons = unplanned(PLANS, hosts, failures)
    found = [(item.level, item.subject, item.hosts) for item in attention_of(groups_of(PLANS), hosts, reasons)]
    assert found == [
        ("bad", "No plan", ("gone", "away")),
        ("bad", "No plan", ("lost",)),
        ("bad", "Driver or GPU", ("broken",)),
        ("bad", "glm", ("h100-pair",)),
        ("bad", "distill", ("rtx4090",)),
        ("fair", "assistant", ("gpu04",)),
    ]


def test_hosts_without_a_plan_come_before_everything_else_with_their_reason():
    page = fleet_page(PLANS, {**HOSTS, "gone": {}}, {"gone": {"msg": "could not be reached: no route to host"}})
    assert page.index("<b>No plan</b> on gone: could not be reached: no route to host") < page.index("<h2>Fleet</h2>")
    assert page.index("<h2>Warnings</h2>") < page.index("<h2>Fleet</h2>")
    assert figures(page)["No plan"] == (1, "hosts")


def large_fleet(number):
    """Hosts with eight cards each, of which one is used, with free memory that differs by a few MiB."""
    (plan,) = planned("gpu01")
    facts = HOSTS["gpu01"]
    plans, hosts = [], {}
    for index in range(number):
        name = f"gpu{index:04}"
        gpus = [{**facts["gpus"][0], "index": slot, "uuid": f"GPU-{index}-{slot}"} for slot in range(8)]
        hosts[name] = {**facts, "gpus": gpus}
        budget = {**plan["budget"][0], "host": name, "uuid": f"GPU-{index}-0"}
        kv = {**plan["kv"], "tokens": plan["kv"]["tokens"] - 16 * (index % 5)}
        plans.append({**plan, "hosts": [name], "devices": {name: [f"GPU-{index}-0"]}, "budget": [budget], "kv": kv})
    return plans, hosts


def test_a_large_fleet_stays_a_small_page():
    plans, hosts = large_fleet(1000)
    page = fleet_page(plans, {**hosts, "odd": HOSTS["gpu03"]})
    assert len(page) < 200_000
    assert page.count('<div class="host ') == 2
    assert "gpu0999" in page and "and 999 hosts like it" in page
    assert figures(page)["GPUs"] == (8002, "7002 idle")
    # What is shown for all of them is the one that holds the least.
    assert f"KV cache: {min(plan['kv']['tokens'] for plan in plans):,} tokens" in page


def test_a_plan_that_is_not_understood_has_a_verdict_of_its_own():
    plan = {**planned("gpu01")[0], "verdict": "unverified", "needs": ["start it and look at its receipt"]}
    page = fleet_page([plan], {"gpu01": HOSTS["gpu01"]})
    assert '<span class="chip unverified">? Unverified</span>' in page
    assert "None. Every instance fits as asked." not in page


def test_nothing_to_warn_of_is_said():
    plans = planned("gpu01")
    page = fleet_page(plans, {"gpu01": HOSTS["gpu01"]})
    assert "None. Every instance fits as asked." in page


def test_a_pool_that_is_missing_is_shown_as_missing():
    page = fleet_page(planned("rtx4090"), {})
    assert "GiB too little" in page
    assert 'class="beyond"' in page


def test_names_are_escaped_wherever_they_come_from():
    bad = "<script>alert(1)</script>"
    plan = copy.deepcopy(planned("gpu04"))
    for item in plan:
        item.update(name=f"{bad}{item['name']}", warnings=[bad], hosts=[bad], devices={bad: ["GPU"]})
        item["budget"][0].update(host=bad, name=bad)
        item["arguments"][0].update(value=bad, why=bad, cost=bad)
    facts = {"driver_version": bad, "gpus": [{"index": 0, "uuid": "x", "name": bad, "memory_total_mib": 1}]}
    page = fleet_page(plan, {bad: {**facts, "errors": [{"message": bad, "next_step": bad}]}})
    assert "<script" not in page

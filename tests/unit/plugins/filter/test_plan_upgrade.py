# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter plan_upgrade, and its reports as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.explain import FilterModule as ExplainModule
from ansible_collections.gpufleet.vllm.plugins.filter.plan_upgrade import FilterModule
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._upgrade import _memory_findings, image_of

plan_upgrade, explain = FilterModule().filters()["plan_upgrade"], ExplainModule().filters()["explain"]

FACTS = Path(__file__).resolve().parents[4] / "inventories/example_facts"
PATH = "/data/models/Qwen3-8B"


def reports(target="v0.33.0", hosts=("gpu01",), driver=None, **variables):
    """The report of one instance on each of the hosts, all of them planned by themselves."""
    found = []
    for host in hosts:
        facts = json.loads((FACTS / f"{host}.json").read_text(encoding="utf-8"))
        hardware = {**facts["gpu_info"], **({"driver_version": driver} if driver else {})}
        instance = {"name": "chat", "image": "vllm/vllm-openai:v0.19.0", "checkpoint": PATH, **variables}
        found += plan_upgrade([instance], target, [hardware], facts["checkpoints"], [host])
    return found


def subjects(report, severity):
    return [finding["subject"] for finding in report["findings"] if finding["severity"] == severity]


def test_the_memory_is_planned_on_both_releases():
    report = reports()[0]
    now, then = report["memory"]["now"], report["memory"]["then"]
    assert (now["verdict"], then["verdict"]) == ("fits", "fits")
    # The default share of the card grows from 0.9 to 0.92, and with it the KV cache.
    assert then["tokens"] > now["tokens"]
    assert "KV cache" in subjects(report, "notice")


def test_a_kv_cache_that_shrinks_is_a_change():
    report = reports("v0.19.0", image="vllm/vllm-openai:v0.32.0")[0]
    assert report["verdict"] == "attention"
    assert "KV cache" in subjects(report, "change")


def test_an_argument_that_vanishes_blocks():
    report = reports(image="vllm/vllm-openai:v0.12.0", engine_args={"swap_space": 4})[0]
    assert report["verdict"] == "blocked"
    assert any("swap-space" in subject for subject in subjects(report, "blocker"))


def test_a_driver_that_is_too_old_blocks():
    report = reports(driver="525.60.13", image="vllm/vllm-openai:v0.9.0")[0]
    assert report["verdict"] == "blocked"
    assert subjects(report, "blocker") == ["gpu01: driver"]


def test_what_fits_on_neither_release_is_no_upgrade_that_is_ready():
    report = reports(engine_args={"max_model_len": 40960, "gpu_memory_utilization": 0.1})[0]
    assert report["verdict"] == "blocked"
    assert "memory" in subjects(report, "blocker")


def test_what_is_refused_on_both_releases_is_no_upgrade_that_is_ready():
    report = reports(engine_args={"tensor_parallel_size": 3})[0]
    assert report["verdict"] == "blocked"
    assert "rules" in subjects(report, "blocker")


def test_the_text_says_each_finding_once_with_its_instances():
    text = explain(reports(hosts=("gpu01", "gpu02")))
    assert text.startswith("Upgrade to vLLM v0.33.0: 2 instances: 0 blocked, 2 in need of attention, 0 ready\n")
    assert text.count("default: --gpu-memory-utilization") == 1
    assert "all 2 instances" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_text_names_the_hosts_that_cannot_run_it():
    text = explain([*reports(), *reports(hosts=("gpu02",), image="vllm/vllm-openai:v0.9.0", driver="525.60.13")])
    blocked = text.split("Would not start")[1].split("\n\n")[0]
    assert "chat on gpu02" in blocked
    assert "gpu01" not in blocked
    assert text.index("Would not start") < text.index("Would start") < text.index("Good to know")


@pytest.mark.parametrize(
    ("image", "target", "expected"),
    [
        ("vllm/vllm-openai:v0.32.0", "v0.33.0", "vllm/vllm-openai:v0.33.0"),
        ("vllm/vllm-openai:v0.32.0@sha256:abc", "0.33.0", "vllm/vllm-openai:v0.33.0"),
        ("registry.example.com:5000/vllm:v0.32.0", "v0.33.0", "registry.example.com:5000/vllm:v0.33.0"),
        ("vllm/vllm-openai:v0.32.0", "mirror/vllm:v0.33.0", "mirror/vllm:v0.33.0"),
    ],
)
def test_the_image_of_the_target(image, target, expected):
    assert image_of(image, target) == expected


@pytest.mark.parametrize(
    ("variables", "target", "told"),
    [
        ({}, "v0.99.0", "v0.99.0"),
        ({"checkpoint": "/models/other"}, "v0.33.0", "/models/other"),
        ({"image": "vllm/vllm-openai:latest"}, "v0.33.0", "latest"),
    ],
)
def test_a_mistake_is_an_ansible_error(variables, target, told):
    with pytest.raises(AnsibleFilterError, match=f"plan_upgrade: .*{told}"):
        reports(target, **variables)


@pytest.mark.parametrize(("before", "found"), [("fits", ["change"]), ("fits_reduced", ["change"]), ("unverified", [])])
def test_a_model_that_is_no_longer_understood_is_a_change(before, found):
    now = {"verdict": before, "needs": [], "kv": {}}
    findings = list(_memory_findings(now, {**now, "verdict": "unverified"}))
    assert [finding["severity"] for finding in findings] == found

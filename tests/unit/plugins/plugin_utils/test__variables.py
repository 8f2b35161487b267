# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._variables import faults_of, slips

INSTANCE = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/models/chat"}


@pytest.fixture(name="options", scope="module")
def read_options(repository):
    text = (repository / "roles/vllm/meta/argument_specs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["argument_specs"]["plan"]["options"]


def instances(**more):
    return {"vllm_instances": [{**INSTANCE, **more}]}


GOOD = {
    "nothing": {},
    "the least": instances(),
    "numbers as text": instances(port="8001", workload={"context": "8192", "sequences": 8}, headroom_mib="512"),
    "words": instances(task="embed", gpus=[0, "GPU-1"], extra_args=["--max-logprobs", 5], trust_remote_code="yes"),
    "mappings": instances(engine_args={"max_model_len": 1}, environment={"A": 1}),
}
BAD = {
    "a text": ({"vllm_instances": "abc"}, "vllm_instances", "'abc' is no list"),
    "an entry": ({"vllm_instances": ["abc"]}, "vllm_instances[0]", "'abc' is no mapping"),
    "a number": (
        instances(workload={"context": "abc"}),
        "vllm_instances[0] (chat).workload.context",
        "no whole number",
    ),
    "a share": (instances(headroom_mib=0.5), "vllm_instances[0] (chat).headroom_mib", "0.5 is no whole number"),
    "a choice": (instances(task="chat"), "vllm_instances[0] (chat).task", "'chat' is none of its values"),
    "a switch": (instances(trust_remote_code="perhaps"), "vllm_instances[0] (chat).trust_remote_code", "neither true"),
    "a slip": (instances(workloads={}), "vllm_instances[0] (chat).workloads", "is not known"),
    "a gap": ({"vllm_instances": [{"name": "chat"}]}, "vllm_instances[0] (chat).image", "is missing"),
    "a name": (instances(name=None), "vllm_instances[0].name", "is missing"),
    "cards as text": (instances(gpus="0"), "vllm_instances[0] (chat).gpus", "'0' is no list"),
}


@pytest.mark.parametrize("given", GOOD.values(), ids=GOOD)
def test_what_can_be_used_has_no_fault(options, given):
    assert faults_of(options, given) == []
    assert ArgumentSpecValidator(options).validate(given).error_messages == []


@pytest.mark.parametrize(("given", "variable", "fault"), BAD.values(), ids=BAD)
def test_a_fault_names_the_variable_the_value_and_what_would_be_right(options, given, variable, fault):
    found = {item.variable: item for item in faults_of(options, given)}
    assert fault in found[variable].fault
    assert found[variable].remedy


def test_a_slip_is_told_with_the_name_that_was_meant(options):
    (fault,) = faults_of(options, instances(workloads={}))
    assert fault.remedy == "Did you mean workload?"


def test_all_faults_are_found_at_once(options):
    given = {"vllm_instances": [{"name": "a", "port": "x"}, {**INSTANCE, "task": "y"}], "vllm_record_facts": "z"}
    assert [item.variable for item in faults_of(options, given)] == [
        "vllm_instances[0] (a).image",
        "vllm_instances[0] (a).checkpoint",
        "vllm_instances[0] (a).port",
        "vllm_instances[1] (chat).task",
        "vllm_record_facts",
    ]


@pytest.mark.parametrize("value", [["secret"], {"a": "secret"}])
def test_the_value_of_a_key_is_never_shown(options, value):
    (fault,) = faults_of(options, {"vllm_api_key": value})
    assert (fault.variable, "secret" in f"{fault}") == ("vllm_api_key", False)


def test_no_fault_of_ansibles_own_check_is_missed(options):
    for given, _variable, _fault in BAD.values():
        if ArgumentSpecValidator(options).validate(given).error_messages:
            assert faults_of(options, given)


def test_names_that_look_like_ours_are_slips():
    known = ["vllm_instances", "vllm_report"]
    assert slips(known, ["vllm_instanes", "vllm_report", "vllm_rack"]) == [("vllm_instanes", "vllm_instances")]

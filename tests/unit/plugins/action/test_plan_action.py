# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from unittest.mock import MagicMock

import pytest
import yaml

from ansible_collections.gpufleet.vllm.plugins.action.plan import SPECIFICATION, ActionModule
from ansible_collections.gpufleet.vllm.plugins.filter.plan import FilterModule
from ansible_collections.gpufleet.vllm.plugins.modules.plan import DOCUMENTATION

CHAT = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/data/models/Qwen3-8B"}


@pytest.fixture(name="facts")
def read_facts(repository):
    return json.loads((repository / "inventories/example_facts/gpu01.json").read_text(encoding="utf-8"))


def run(facts, *instances):
    arguments = {
        "instances": list(instances),
        "hosts": [facts["gpu_info"]],
        "checkpoints": facts["checkpoints"],
        "inventory_hosts": ["gpu01"],
        "next_command": "ansible-playbook again.yml",
    }
    task = MagicMock(async_val=False, check_mode=False, diff=False, args=arguments)
    action = ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._load_name = "gpufleet.vllm.plan"  # the plugin loader sets it
    return action.run(task_vars={})


def test_the_plans_are_those_of_the_filter(facts):
    plan = FilterModule().filters()["plan"]
    assert run(facts, CHAT)["plans"] == plan([CHAT], [facts["gpu_info"]], facts["checkpoints"], ["gpu01"])


def test_all_faults_are_told_once_each_with_the_host(facts):
    result = run(facts, {**CHAT, "port": 70000, "engine_args": {"gpu_memory_utilization": 90, "max_model_length": 5}})
    lines = result["msg"].splitlines()
    assert result["failed"]
    assert lines[0] == "There is no plan: 3 faults in the inventory."
    assert lines[-1] == "Next: ansible-playbook again.yml"
    for line, variable in zip(lines[1:-1], ("port", "gpu_memory_utilization", "max_model_length"), strict=True):
        assert line.startswith("  gpu01: ") and variable in line


def test_a_member_that_limit_leaves_out_is_named_before_anything_else_happens(facts):
    big = {**CHAT, "name": "big", "span": ["gpu01", "gpu02"]}
    member = {
        "instances": [big],
        "facts": {**facts, "plans": {}, "receipts": {}},
        "network": {},
    }
    action = ActionModule(*[MagicMock(async_val=False, check_mode=False, diff=False)] * 5, None)
    action._load_name = "gpufleet.vllm.plan"
    action._task.args = {"instances": [big], "hosts": [facts["gpu_info"]], "checkpoints": facts["checkpoints"]}
    action._task.args |= {"next_command": "again", "host": "gpu01", "member_fact": "_member", "reach_fact": "_reach"}
    # The inventory knows the other host, this run does not.
    result = action.run(task_vars={"hostvars": {"gpu01": {"_member": member}, "gpu02": {}}, "groups": {}})
    assert "gpu01: vllm_instances[big].span" in result["msg"]
    assert "names gpu02, which is not planned in this run" in result["msg"]
    assert "--limit gpu01,gpu02" in result["msg"]


def test_an_argument_that_the_release_does_not_know_is_a_fault_too(facts):
    result = run(facts, {**CHAT, "engine_args": {"max_model_length": 5}})
    assert "max_model_length" in result["msg"] and "plans" not in result


def test_the_documentation_tells_of_the_same_options():
    documented = yaml.safe_load(DOCUMENTATION)["options"]
    told = {
        name: {key: value for key, value in option.items() if key != "description"}
        for name, option in documented.items()
    }
    assert told == SPECIFICATION


@pytest.mark.parametrize(
    "given", [{"engine_args": {"trust-remote-code": True}}, {"extra_args": ["--trust_remote_code"]}]
)
def test_code_of_a_checkpoint_runs_only_where_the_instance_itself_says_so(facts, given):
    result = run(facts, {**CHAT, **given}, {**CHAT, "name": "b", "port": "http"})
    assert "There is no plan: 2 faults" in result["msg"]
    assert "gpu01: vllm_instances[chat].trust_remote_code None is not what" in result["msg"]
    assert not run(facts, {**CHAT, "trust_remote_code": True}).get("failed")

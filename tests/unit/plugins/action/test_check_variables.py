# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.gpufleet.vllm.plugins.action.check_variables import ActionModule

ARGUMENTS = {"role": "vllm", "entry_point": "plan", "next_command": "ansible-playbook again.yml"}


def run(variables):
    task = MagicMock(async_val=False, check_mode=False, diff=False, args=ARGUMENTS)
    templar = Templar(loader=DataLoader(), variables=variables)
    action = ActionModule(task, MagicMock(), MagicMock(), MagicMock(), templar, None)
    action._load_name = "gpufleet.vllm.check_variables"  # the plugin loader sets it
    return action.run(task_vars={"inventory_hostname": "gpu01", **variables})


def test_good_variables_pass():
    result = run({"vllm_instances": [], "vllm_report": "fleet.html", "other": 1})
    assert (result.get("failed"), result["changed"], result.get("warnings")) == (None, False, None)


def test_faults_are_told_with_the_host_and_the_next_command():
    result = run({"vllm_instances": "abc", "vllm_record_facts": "maybe"})
    assert result["failed"]
    assert result["msg"].splitlines() == [
        "gpu01: 2 variables cannot be used; nothing was read or changed.",
        "  vllm_instances: 'abc' is no list.",
        "      Begin each entry below it with '- '. The vLLM engines of this host.",
        "  vllm_record_facts: 'maybe' is neither true nor false.",
        "      Write true or false. Read the hosts and write what was read into vllm_facts_directory.",
        "Next: ansible-playbook again.yml",
    ]


@pytest.mark.parametrize(("name", "value"), [("vllm_api_key", "sk-1{{x"), ("vllm_api_keys", {"chat": "sk-1{{ x }}"})])
def test_a_key_that_looks_like_a_template_is_not_told(name, value):
    try:
        from ansible.template import trust_as_template
    except ImportError:  # before ansible-core 2.19 all text is
        trust_as_template = str
    value = {key: trust_as_template(text) for key, text in value.items()} if name == "vllm_api_keys" else value
    result = run({name: value if name == "vllm_api_keys" else trust_as_template(value)})
    assert f"{name}: cannot be worked out: its value is taken for a template" in result["msg"]
    assert "!unsafe" in result["msg"]
    assert "sk-1" not in str(result)


@pytest.mark.parametrize("name", ["vllm_instance", "vllm_instnces"])
def test_a_variable_that_nobody_reads_is_warned_of(name):
    result = run({name: []})
    assert result["warnings"] == [
        f"{name} is no variable of gpufleet.vllm and changes nothing; did you mean vllm_instances?"
    ]

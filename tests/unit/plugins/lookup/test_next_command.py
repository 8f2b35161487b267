# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict

from ansible_collections.gpufleet.vllm.plugins.lookup.next_command import DOCUMENTATION, LookupModule

DEFAULTS = {name: option.get("default") for name, option in yaml.safe_load(DOCUMENTATION)["options"].items()}


class Lookup(LookupModule):
    """Takes its options from the documentation, as Ansible's plugin loader would let it."""

    def set_options(self, task_keys=None, var_options=None, direct=None):
        self.given = {**DEFAULTS, **direct}

    def get_option(self, option, hostvars=None):
        return self.given[option]


@pytest.fixture(name="lookup")
def make_lookup(monkeypatch):
    arguments = {"args": ("gpufleet.vllm.plan_vllm",), "inventory": ("/etc/fleet",)}
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(arguments))
    return Lookup()


def test_one_command_for_each_playbook(lookup):
    assert lookup.run(["plan_vllm", "deploy_vllm"], {}) == [
        "ansible-playbook -i /etc/fleet gpufleet.vllm.plan_vllm",
        "ansible-playbook -i /etc/fleet gpufleet.vllm.deploy_vllm",
    ]


def test_variables_are_added(lookup):
    assert lookup.run(["plan_vllm"], {}, extra_vars=["vllm_report=a b.html"]) == [
        "ansible-playbook -i /etc/fleet gpufleet.vllm.plan_vllm -e 'vllm_report=a b.html'"
    ]


def test_hosts_are_reached(lookup):
    assert lookup.run(["reach"], {}, hosts="gpu01") == ["ansible -i /etc/fleet gpu01 -m ansible.builtin.ping"]

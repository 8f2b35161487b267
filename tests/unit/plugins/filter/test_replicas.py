# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.replicas import FilterModule

replicas = FilterModule().filters()["replicas"]


def test_replicas_have_their_own_names_and_ports_and_one_model_name():
    one, two = replicas([{"name": "chat", "port": 9000, "replicas": 2, "image": "i"}])
    assert (one["name"], one["port"], one["served_model_name"]) == ("chat-1", 9000, "chat")
    assert (two["name"], two["port"], two["served_model_name"]) == ("chat-2", 9001, "chat")
    assert two["replica_of"] == "chat"
    assert "replicas" not in two


def test_other_instances_are_left_as_they_are():
    instance = {"name": "embed", "port": 8000}
    assert replicas([instance]) == [instance]


def test_a_number_may_come_as_text():
    assert len(replicas([{"name": "chat", "replicas": "3"}])) == 3


@pytest.mark.parametrize("count", [0, -1, "many", True, 1.5])
def test_what_is_no_number_is_refused(count):
    with pytest.raises(AnsibleFilterError, match=r"vllm_instances\[chat\].replicas"):
        replicas([{"name": "chat", "replicas": count}])


@pytest.mark.parametrize("wrong", ["chat", {"name": "chat"}, ["chat"]])
def test_what_is_no_list_of_instances_is_refused(wrong):
    with pytest.raises(AnsibleFilterError, match="not a list of instances"):
        replicas(wrong)

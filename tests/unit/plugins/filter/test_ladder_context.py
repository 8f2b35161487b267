# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.ladder_context import ladder_context

GPU = {"memory_total_mib": 1000, "memory_free_mib": 100}


def test_what_the_engine_itself_held_is_free():
    own = {"pid": 1, "container": "vllm-chat", "used_memory_mib": 700}
    other = {"pid": 2, "container": "vllm-embed", "used_memory_mib": 200}
    context = ladder_context({"name": "chat"}, {"verdict": "fits"}, [{"gpus": [{**GPU, "processes": [own, other]}]}])
    assert context["hosts"][0]["gpus"][0]["memory_free_mib"] == 800
    assert (context["plan"], context["instance"]) == ({"verdict": "fits"}, {"name": "chat"})


def test_unknown_memory_stays_unknown():
    context = ladder_context({"name": "chat"}, None, [{"gpus": [{"memory_total_mib": 1000, "memory_free_mib": None}]}])
    assert context["hosts"][0]["gpus"][0]["memory_free_mib"] is None


def test_an_instance_without_a_name_is_refused():
    with pytest.raises(AnsibleFilterError, match="with its name"):
        ladder_context({})

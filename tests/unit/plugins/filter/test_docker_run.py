# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.docker_run import FilterModule

PLAN = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.32.0",
    "release": {"version": "0.32.0"},
    "checkpoint": "/data/models/m",
    "served_model_name": "chat",
    "address": "127.0.0.1",
    "port": 8000,
    "devices": {"gpu1": ["GPU-aaaa"]},
    "environment": {},
    "arguments": [{"name": "max_model_len", "value": 2048}],
}


def docker_run(plan):
    return FilterModule().filters()["docker_run"](plan, "/etc/vllm/chat/engine.env", "/var/cache/vllm/chat")


def test_a_plan_becomes_a_command():
    argv = docker_run(PLAN)
    assert argv[:2] == ["/usr/bin/docker", "run"]
    assert argv[-2:] == ["--max-model-len", "2048"]


def test_an_argument_that_the_release_lacks_names_the_instance():
    with pytest.raises(AnsibleFilterError, match=r"docker_run: instance chat: .*swap"):
        docker_run({**PLAN, "extra_args": ["--swap-space", "4"]})


def test_what_is_no_plan_is_said_to_be_none():
    with pytest.raises(AnsibleFilterError, match="'checkpoint' is missing; the input must be a plan"):
        docker_run({"name": "chat"})

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest

from ansible_collections.gpufleet.vllm.plugins.action import image_share

NAME = "vllm/vllm-openai:v0.32.0"


@pytest.fixture(name="run")
def run_action(monkeypatch):
    """A function that runs the action for gpu2, delegated to gpu1, which answers with this."""

    def run(answer):
        monkeypatch.setattr(image_share.ActionBase, "run", lambda self, tmp, task_vars: {})
        action = image_share.ActionModule.__new__(image_share.ActionModule)
        action._task = types.SimpleNamespace(args={"name": NAME}, delegate_to="gpu1")
        monkeypatch.setattr(action, "_execute_module", lambda **_arguments: answer, raising=False)
        return action.run(task_vars={"inventory_hostname": "gpu2"})

    return run


def test_the_offer_says_whose_it_is(run):
    assert run({"changed": False, "offer": {"token": "t"}})["offer"] == {"token": "t", "host": "gpu1"}


def test_a_failure_names_the_host_that_has_the_image(run):
    told = run({"failed": True, "msg": "the image is not on this host.", "next": "docker image ls"})
    assert told["msg"] == "gpu1: the image is not on this host. Next: docker image ls"

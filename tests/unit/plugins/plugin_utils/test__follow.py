# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest
from ansible.errors import AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _follow

GIB = 1 << 30


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Action:
    """As much of an action plugin as is needed; the host gives one answer after the other."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.asked = []
        self.printed = []
        self._display = types.SimpleNamespace(display=self.printed.append)

    def _execute_module(self, module_name, module_args, task_vars):
        self.asked.append((module_name, module_args))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def running(done=None, total=None, phase="pulling"):
    progress = {"phase": phase, "done_bytes": done, "total_bytes": total}
    return {"changed": True, "job": {"id": "c0ffee", "state": "running", "progress": progress}, "invocation": {}}


DONE = {"changed": True, "job": {"id": "c0ffee", "state": "done"}, "image": {"id": "sha256:1"}, "invocation": {}}


@pytest.fixture(name="follow")
def follow_job(monkeypatch):
    monkeypatch.setattr(_follow, "time", Clock())

    def follow(answers, subject="image vllm/vllm-openai:v0.32.0", interval=10.0):
        action = Action(answers)
        follower = _follow.Follower(action, "gpufleet.vllm.image", {"inventory_hostname": "gpu1"}, subject, interval)
        return follower.follow({"name": "vllm/vllm-openai:v0.32.0"}), action

    return follow


def test_the_job_is_followed_to_its_end_by_its_id(follow):
    told, action = follow([running(), running(), DONE])
    assert told == {"changed": True, "job": DONE["job"], "image": DONE["image"]}
    name = {"name": "vllm/vllm-openai:v0.32.0", "wait": False}
    assert [asked for _module, asked in action.asked] == [name, {**name, "job": "c0ffee"}, {**name, "job": "c0ffee"}]


def test_what_needs_no_job_prints_nothing(follow):
    told, action = follow([{"changed": False}])
    assert (told, action.printed) == ({"changed": False}, [])


def test_how_far_it_is_how_fast_and_how_long_it_takes(follow):
    _told, action = follow([running(0, 10 * GIB), running(GIB, 10 * GIB), running(3 * GIB, 10 * GIB), DONE])
    assert action.printed == [
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 0 %, 0.0 MiB of 10.0 GiB",
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 10 %, 1.0 GiB of 10.0 GiB, 102 MiB/s, 1:30 left",
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 30 %, 3.0 GiB of 10.0 GiB, 154 MiB/s, 0:46 left",
    ]


def test_a_new_phase_is_told_at_once_and_the_same_again_is_not(follow):
    _told, action = follow([running(5, None), running(5, None), running(phase="loading"), DONE], interval=1.0)
    assert action.printed == [
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 0.0 MiB",
        "gpu1: image vllm/vllm-openai:v0.32.0: loading",
    ]


def test_work_that_stands_still_says_so(follow):
    _told, action = follow([running(GIB, 2 * GIB)] * 8 + [DONE])
    assert action.printed == [
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 50 %, 1.0 GiB of 2.0 GiB",
        "gpu1: image vllm/vllm-openai:v0.32.0: pulling, 50 %, 1.0 GiB of 2.0 GiB, unchanged for 1:00",
    ]


def test_a_long_name_gives_way_to_the_figures(follow):
    _told, action = follow([running(GIB, 2 * GIB), DONE], subject="image " + "registry.example/" * 9)
    assert len(action.printed[0]) == 100
    assert action.printed[0].endswith("...: pulling, 50 %, 1.0 GiB of 2.0 GiB")


def test_a_lost_connection_does_not_end_it(follow):
    told, action = follow([running(), AnsibleConnectionFailure("ssh: reset by peer"), DONE])
    assert told["image"] == DONE["image"]
    assert action.printed[1].startswith("gpu1: image vllm/vllm-openai:v0.32.0: connection lost, trying again: ssh")


def test_a_host_that_stays_away_is_unreachable(follow):
    with pytest.raises(AnsibleConnectionFailure):
        follow([running(), *[AnsibleConnectionFailure("no route")] * 11])


def test_a_failure_is_handed_on(follow):
    told, _action = follow([running(), {"failed": True, "msg": "disk full", "job": {"state": "running"}}])
    assert told["msg"] == "disk full"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest
import yaml
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from ansible_collections.gpufleet.vllm.plugins.action import wait_ready
from ansible_collections.gpufleet.vllm.plugins.modules import boot_info as boot_info_module
from ansible_collections.gpufleet.vllm.plugins.modules import wait_ready as documentation
from ansible_collections.gpufleet.vllm.plugins.plugin_utils import _startup

UNIT = {
    "name": "vllm-chat.service",
    "load_state": "loaded",
    "active_state": "active",
    "sub_state": "running",
    "result": "success",
    "exec_code": None,
    "exec_status": 0,
    "n_restarts": 0,
    "invocation_id": "first",
}
FATAL = (
    "(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: To serve at least one request with the model's "
    "max seq len (32768), 4.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.50 GiB). "
    "Based on the available memory, the estimated maximum model length is 12288."
)


def boot(phase, progress=None, healthy=False, log="", **unit):
    return {
        "unit": {**UNIT, **unit},
        "healthy": healthy,
        "phase": phase,
        "progress": progress,
        "measured": {"kv_tokens": 1},
        "log": log,
        "errors": [],
        "invocation": {},
    }


def step(done, total):
    return {"done": done, "total": total, "percent": 100 * done // total}


SERVES = boot("serving", healthy=True)


class Host:
    """A host whose engine is at the next of some moments each time that it is asked."""

    def __init__(self, moments, failed_log=""):
        self.moments = list(moments)
        self.failed_log = failed_log
        self.asked = []

    def execute_module(self, module_name, module_args, task_vars):
        self.asked.append(module_args)
        if module_args["lines"] > 1:
            return boot("failed", log=self.failed_log)
        moment = self.moments.pop(0) if len(self.moments) > 1 else self.moments[0]
        if isinstance(moment, Exception):
            raise moment
        return moment


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(name="follow")
def follow_start(monkeypatch):
    """A function that runs the action against a host and returns its result and what it printed."""
    clock = Clock()
    monkeypatch.setattr(wait_ready, "time", clock)

    def follow(host, check_mode=False, **arguments):
        action = object.__new__(wait_ready.ActionModule)
        action._task = types.SimpleNamespace(check_mode=check_mode, args={"name": "chat", **arguments})
        printed = []
        action._display = types.SimpleNamespace(display=printed.append)
        action._execute_module = host.execute_module
        monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_args: {})
        defaults = {name: option.get("default") for name, option in wait_ready._ARGUMENTS.items()}
        action.validate_argument_spec = lambda _spec: (None, {**defaults, **action._task.args})
        return action.run(task_vars={"inventory_hostname": "gpu1"}), printed

    return follow


def test_it_prints_each_phase_and_ends_when_the_engine_serves(follow):
    moments = [
        boot("starting"),
        boot("starting"),
        boot("loading weights", step(7, 30)),
        boot("loading weights", step(8, 30)),
        boot("compiling"),
        boot("profiling"),
        boot("capturing graphs", step(22, 51)),
        SERVES,
    ]
    result, printed = follow(Host(moments), interval=10)
    assert (result.get("failed"), result["changed"], result["phase"], result["measured"]) == (
        None,
        False,
        "serving",
        {"kv_tokens": 1},
    )
    assert printed == [
        "gpu1: vllm-chat: starting (0:00)",
        "gpu1: vllm-chat: loading weights, 7 of 30 shards (0:20)",
        "gpu1: vllm-chat: loading weights, 8 of 30 shards (0:30)",
        "gpu1: vllm-chat: compiling (0:40)",
        "gpu1: vllm-chat: profiling (0:50)",
        "gpu1: vllm-chat: capturing graphs, 43 % (1:00)",
        "gpu1: vllm-chat: serving (1:10)",
    ]


def test_a_long_phase_says_that_it_goes_on(follow):
    _result, printed = follow(Host([boot("starting")] * 8 + [SERVES]), interval=10)
    assert printed == [
        "gpu1: vllm-chat: starting (0:00)",
        "gpu1: vllm-chat: starting (0:30)",
        "gpu1: vllm-chat: starting (1:00)",
        "gpu1: vllm-chat: serving (1:20)",
    ]


def test_the_module_is_asked_for_this_instance(follow):
    host = Host([SERVES])
    follow(host, address="10.0.0.7", port=8001)
    assert host.asked == [{"name": "chat", "address": "10.0.0.7", "port": 8001, "member": False, "lines": 1}]


@pytest.mark.parametrize(
    "last",
    [
        boot("failed"),
        boot("failed", active_state="activating", sub_state="auto-restart", result="exit-code"),
        boot("failed", active_state="failed", sub_state="failed", result="start-limit-hit"),
    ],
)
def test_it_stops_at_once_when_the_engine_failed(follow, last):
    host = Host([boot("starting"), last, SERVES], failed_log=FATAL)
    result, _printed = follow(host)
    assert result["failed"]
    assert result["findings"][0]["class"] == "max_model_len_exceeds_kv"
    message = result["msg"].splitlines()
    assert message[0] == (
        "gpu1: vllm-chat failed to start: The KV cache is too small for one request of max_model_len tokens"
    )
    assert message[1].startswith("Evidence: ValueError: To serve at least one request")
    assert "Change: engine_args.max_model_len from 32768 to 12288" in message
    assert message[-1] == "Next, on gpu1: journalctl -u vllm-chat -n 200 --no-pager"
    assert all(len(line) <= 100 for line in message)


def test_the_log_of_the_activation_that_failed_is_read(follow):
    host = Host([boot("starting"), boot("starting", n_restarts=1, invocation_id="second")], failed_log=FATAL)
    result, _printed = follow(host)
    assert result["failed"]
    assert host.asked[-1]["invocation_id"] == "first"


def test_a_restart_of_yesterday_is_no_failure(follow):
    result, _printed = follow(Host([boot("starting", n_restarts=1), boot("serving", healthy=True, n_restarts=1)]))
    assert "failed" not in result


def test_a_failure_that_nobody_knows_shows_the_last_line(follow):
    failed = boot("failed", exec_code="exited", exec_status=3, result="exit-code")
    result, _printed = follow(Host([failed], failed_log="one\nthe last words\n"))
    assert "Last line: the last words" in result["msg"]
    assert "exit-code, exited with 3, 0 restarts" in result["msg"]


@pytest.mark.parametrize("member", [False, True])
def test_an_engine_whose_log_is_being_archived_has_failed_not_been_stopped(follow, member):
    ending = boot("stopped", active_state="deactivating", sub_state="stop-post", result="exit-code")
    last = boot("failed", active_state="activating", sub_state="auto-restart", result="exit-code")
    result, printed = follow(Host([boot("starting"), ending, ending, last, SERVES], failed_log=FATAL), member=member)
    assert result["findings"][0]["class"] == "max_model_len_exceeds_kv"
    assert printed[1] == "gpu1: vllm-chat: ending (0:03)"


def test_a_member_that_is_ended_by_its_watcher_followed_another(follow):
    ending = boot("stopped", active_state="deactivating", sub_state="stop-sigterm")
    again = boot("starting", active_state="activating", sub_state="start-pre", invocation_id="second")
    result, _printed = follow(Host([boot("starting"), ending, again], failed_log=""), member=True)
    assert result["ending"] == "followed"


class WaitingMember(Host):
    """A member of an engine over several hosts, about to start: another one does not come."""

    def execute_module(self, module_name, module_args, task_vars):
        self.asked.append(module_args)
        log = "Waits for the other members. gpu2: its watcher cannot be reached (timed out)\n"
        return boot("starting", log=log, active_state="activating", sub_state="start-pre")


def test_a_member_does_not_wait_for_ever_for_one_that_does_not_come(follow):
    result, printed = follow(WaitingMember([]), member=True, interval=10)
    assert printed[0] == "gpu1: vllm-chat: waiting for the other hosts (0:00)"
    assert result["failed"] and len(printed) < 10
    message = result["msg"].splitlines()
    assert message[0].startswith("gpu1: vllm-chat does not serve after 2:10: waiting for the other hosts")
    assert "gpu2: its watcher cannot be reached" in message[1]
    assert message[-1].startswith("Next, on gpu1: ")


def test_a_unit_that_does_not_exist(follow):
    result, _printed = follow(Host([boot("stopped", load_state="not-found", active_state="inactive")]))
    assert result["failed"]
    assert "there is no unit vllm-chat.service" in result["msg"]


def test_an_engine_that_somebody_stopped(follow):
    result, _printed = follow(Host([boot("starting"), boot("stopped", active_state="inactive")]))
    assert result["msg"] == "gpu1: vllm-chat was stopped. Next, on gpu1: systemctl start vllm-chat"


def test_the_timeout_tells_where_it_hangs(follow):
    host = Host([boot("starting"), boot("loading weights", step(7, 30))])
    host.failed_log = ""
    result, _printed = follow(host, timeout=60, interval=10)
    assert result["failed"]
    assert result["msg"].startswith("gpu1: vllm-chat does not serve after 1:10")
    assert "timeout of wait_ready" in result["msg"]


def test_every_phase_has_its_own_deadline(follow):
    allowed = _startup.deadlines(0, 100)
    result, _printed = follow(Host([boot("profiling")]), interval=allowed["profiling"] / 2, bytes_to_read=0)
    assert result["failed"]
    phases = [boot("starting"), boot("loading weights"), boot("compiling"), boot("warming up"), SERVES]
    result, _printed = follow(Host(phases), interval=allowed["loading weights"] - 1, bytes_to_read=0)
    assert "failed" not in result


def test_loading_may_take_as_long_as_reading_the_bytes():
    small, large = _startup.deadlines(0, 100), _startup.deadlines(1000 << 20, 10)
    assert large["loading weights"] - small["loading weights"] == 100
    assert large["compiling"] == small["compiling"]


def test_check_mode_waits_for_nothing(follow):
    host = Host([boot("stopped", load_state="not-found")])
    result, printed = follow(host, check_mode=True)
    assert (result["skipped"], result["changed"], printed, host.asked) == (True, False, [], [])


def test_a_lost_connection_is_tried_again(follow):
    lost = AnsibleConnectionFailure("ssh: connect to host gpu1 port 22: No route to host")
    result, printed = follow(Host([boot("starting"), lost, lost, SERVES]))
    assert result["phase"] == "serving"
    assert sum("connection lost" in line for line in printed) == 2


def test_a_host_that_stays_away_is_unreachable(follow):
    with pytest.raises(AnsibleConnectionFailure):
        follow(Host([AnsibleConnectionFailure("No route to host")]))


def test_a_module_that_fails_is_told(follow):
    with pytest.raises(AnsibleActionFail, match="boot_info failed on gpu1: no systemctl"):
        follow(Host([{"failed": True, "msg": "no systemctl"}]))


def test_lines_fit_the_terminal(follow):
    _result, printed = follow(Host([SERVES]), name="n" * 120)
    assert all(len(line) <= 100 for line in printed)


def test_the_documented_options_are_those_that_are_taken():
    documented = yaml.safe_load(documentation.DOCUMENTATION)["options"]
    assert sorted(documented) == sorted(wait_ready._ARGUMENTS)
    for name, option in wait_ready._ARGUMENTS.items():
        assert documented[name].get("default") == option.get("default")
        assert documented[name]["type"] == option["type"]
        assert documented[name].get("required", False) == option.get("required", False)


def test_it_returns_what_boot_info_returns():
    returned = set(yaml.safe_load(boot_info_module.RETURN)) - {"errors"}
    assert returned <= set(yaml.safe_load(documentation.RETURN))


def test_a_disk_that_was_measured_slow_gets_three_times_what_it_took():
    usual, slow = _startup.deadlines(1000 << 20, 100), _startup.deadlines(1000 << 20, 100, load_seconds=600)
    assert slow["loading weights"] - usual["loading weights"] == 3 * 600 - 10
    assert _startup.deadlines(1000 << 20, 100, load_seconds=1) == usual

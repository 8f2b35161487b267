# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import types

import pytest

from ansible_collections.gpufleet.vllm.plugins.action import member_info
from ansible_collections.gpufleet.vllm.plugins.modules import member_info as module

INSTANCE = {"name": "big", "span": ["a", "b"], "port": 8000}


def network(number, listener=(29001, 40000), ours=()):
    return {
        "interfaces": [{"name": "eth0", "addresses": [{"address": f"10.0.0.{number}", "prefix": 24}], "up": True}],
        "listener": {"token": f"token{number}", "ports": list(listener)},
        "listening": [{"port": port, "ours": True} for port in ours],
    }


MEMBERS = {"a": {"network": network(1, (29000, 29001, 40000))}, "b": {"network": network(2)}}


@pytest.fixture
def asked(monkeypatch):
    """Runs the action; returns (what the module was asked, what the action returned)."""

    def run(host, arguments, hostvars=None, answer=None):
        calls = []
        action = member_info.ActionModule(
            types.SimpleNamespace(args=arguments, async_val=0, check_mode=False, diff=False, environment=None),
            types.SimpleNamespace(_shell=types.SimpleNamespace(tmpdir="/none")),
            types.SimpleNamespace(check_mode=False),
            loader=None,
            templar=None,
            shared_loader_obj=None,
        )
        monkeypatch.setattr(
            action,
            "_execute_module",
            lambda module_name, module_args, task_vars: calls.append(module_args) or dict(answer or {}),
        )
        variables = {"inventory_hostname": host, "groups": {}, "hostvars": hostvars or {}}
        return calls, action.run(task_vars=variables)

    return run


def test_rank_0_listens_where_the_others_come_to(asked):
    calls, _told = asked("a", {"instances": [INSTANCE, {"name": "own"}]}, answer={"now": 1.0})
    assert (calls[0]["names"], calls[0]["listen"], calls[0]["peers"]) == (["big"], [0, 29001, 29000], 1)
    calls, _told = asked("b", {"instances": [INSTANCE]}, answer={"now": 1.0})
    assert calls[0]["listen"] == [0, 29001]


def test_the_clock_is_compared_with_that_of_the_controller(asked):
    _calls, told = asked("a", {"instances": [INSTANCE]}, answer={"now": member_info.time.time() + 60})
    assert told["clock"]["offset_seconds"] == pytest.approx(60, abs=1)
    assert "now" not in told


def test_peers_are_reached_at_their_addresses_with_their_tokens(asked):
    hostvars = {name: {"_member": member} for name, member in MEMBERS.items()}
    calls, _told = asked("b", {"instances": [INSTANCE], "peers_fact": "_member"}, hostvars)
    reached = [(target["address"], target["port"], target["token"]) for target in calls[0]["reach"]]
    assert reached == [("10.0.0.1", port, "token1") for port in (29000, 29001, 40000)]


def test_a_port_that_the_engine_has_is_reached_without_a_token():
    members = {"a": {"network": network(1, (40000,), ours=(29000, 29001))}, "b": MEMBERS["b"]}
    asked = member_info.peers_of("b", [INSTANCE], {}, members)
    assert [target.get("token") for target in asked["reach"]] == [None, None, "token1"]


def test_a_name_in_place_of_the_address_is_looked_up():
    instance = {**INSTANCE, "engine_args": {"master_addr": "rank0"}}
    assert member_info.peers_of("b", [instance], {}, MEMBERS)["resolve"] == ["rank0"]


def test_what_is_wrong_with_the_span_is_left_to_the_plan(asked):
    calls, told = asked("a", {"instances": [{"name": "big", "span": "nowhere"}]})
    assert calls == []
    assert told["reached"] == []


def test_the_module_takes_what_the_action_asks():
    documented = module.DOCUMENTATION
    for option in ("names", "listen", "peers", "reach", "resolve", "listen_seconds", "peers_fact"):
        assert f"\n  {option}:" in documented

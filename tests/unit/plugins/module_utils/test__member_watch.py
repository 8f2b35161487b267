# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.client
import json
import socket
import threading
import time

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _member_watch as watch

RUNNING = {"invocation": "b1", "phase": "running", "with": {"a": "a1"}, "plan": "p", "silent_seconds": 0, "error": None}
OWN = {"invocation": "a1", "phase": "running", "with": {"b": "b1"}}


def peer(**more):
    return {"b": {**RUNNING, **more}}


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({}, None),
        ({"phase": "down"}, "the engine on b has ended"),
        ({"invocation": "b2", "phase": "waiting"}, "the engine on b has ended"),
        # Let go, and about to start in systemd's eyes.
        ({"phase": "waiting"}, None),
        ({"silent_seconds": 20}, None),
        ({"silent_seconds": 31}, "b has not answered for 31 s"),
        # An answer of before says nothing about now.
        ({"silent_seconds": 10, "phase": "down"}, None),
        ({"phase": None}, None),
    ],
)
def test_when_the_own_engine_is_started_anew(seen, told):
    assert watch.broken(OWN, peer(**seen)) == told


def test_an_engine_that_is_down_or_waits_is_left_alone():
    for phase in ("down", "waiting"):
        assert watch.broken({**OWN, "phase": phase}, peer(phase="down")) is None


def test_a_watcher_that_was_started_later_takes_what_runs_for_whole():
    own = {**OWN, "with": {}}
    assert watch.broken(own, peer()) is None
    assert watch.broken(own, peer(phase="waiting")) == "the engine on b has ended"


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"phase": "waiting"}, None),
        # Let go together with this very start.
        ({"with": {"a": "a2"}}, None),
        ({}, "b: its engine has not ended yet"),
        ({"phase": "down"}, "b: its engine is down"),
        ({"phase": "waiting", "plan": "q"}, "b: another plan is deployed there"),
        ({"silent_seconds": 6, "error": "its watcher cannot be reached (refused)"}, "b: its watcher cannot be reached"),
    ],
)
def test_when_the_own_engine_may_start(seen, told):
    reason = watch.waits_for({"host": "a", "invocation": "a2", "plan": "p"}, peer(**seen))
    assert reason is None if told is None else reason.startswith(told)


# --- two watchers that talk ----------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def members(tmp_path, monkeypatch):
    """Two hosts, as two loopback addresses of this one."""
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.05)))
    port, addresses = free_port(), {"a": "127.0.0.1", "b": "127.0.0.2"}
    found = {}
    for host, address in addresses.items():
        root = tmp_path / host
        (root / "etc/vllm/big").mkdir(parents=True)
        (root / "etc/vllm/big/engine.env").write_text("VLLM_API_KEY=secret\n")
        listed = [{"host": name, "address": addresses[name]} for name in "ab"]
        plan = {"address": "0.0.0.0", "port": 1, "launch": {"watch_port": port, "members": listed}}
        (root / "etc/vllm/big/plan.json").write_text(json.dumps(plan))
        monkeypatch.setattr(
            watch,
            "_own",
            lambda members, address=address: next(member for member in members if member["address"] == address),
        )
        found[host] = Host(watch.Instance("big", str(root)))
    yield found
    for host in found.values():
        host.close()


class Host:
    def __init__(self, instance):
        self.unit, self.ran, self.answers = ("", "down"), [], 0
        self.watcher = watch.Watcher(instance, look=lambda _unit: self.unit, run=self._run)
        self._server = watch._Server(self.watcher)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _run(self, command, **_options):
        self.ran.append(command)
        return self.answers

    def see(self):
        """What the watcher does once a second."""
        for other in self.watcher.instance.peers:
            self.watcher.ask_peer(other)
        return self.watcher.look()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


def start_both(members):
    for host in "ab":
        members[host].unit = (f"{host}1", "waiting")
        members[host].see()
    for host in "ab":
        members[host].see()
        assert members[host].watcher.may_start(f"{host}1") is None
        members[host].unit = (f"{host}1", "running")
        members[host].see()


def test_members_start_together_and_end_together(members):
    a, b = members["a"], members["b"]
    a.unit = ("a1", "waiting")
    a.see()
    assert "its engine is down" in a.watcher.may_start("a1")
    start_both(members)
    assert a.see() is None and b.see() is None
    b.unit = ("b1", "down")
    b.see()
    assert a.see() == "the engine on b has ended"
    assert a.ran[-1] == ["systemctl", "restart", "--no-block", "--job-mode=fail", "vllm-big.service"]
    # Both are at the start again: nobody restarts a second time, and they go.
    a.unit, b.unit = ("a2", "waiting"), ("b2", "waiting")
    assert [host.see() for host in (a, b, a, b)] == [None] * 4
    assert a.watcher.may_start("a2") is None
    assert b.see() is None
    assert b.watcher.may_start("b2") is None


def commands(host):
    """What it ran: the words behind systemctl."""
    return [command[1] for command in host.ran]


@pytest.mark.parametrize("way", ["the other host was repaired", "the network is back"])
def test_who_waited_in_vain_comes_back_when_the_others_would_start(members, way):
    a, b = members["a"], members["b"]
    clock = iter(range(100))
    watch.wait(a.watcher.instance, 5, "a3", lambda *_: "b: no answer yet", lambda _s: None, lambda: next(clock))
    a.unit, b.unit = ("a3", "down"), ("b3", "down")
    for host in (a, b, a):
        host.see()
    assert "start" not in commands(a)
    if way == "the network is back":
        watch.wait(b.watcher.instance, 5, "b3", lambda *_: "a: no answer yet", lambda _s: None, lambda: next(clock))
    else:
        b.unit = ("b4", "waiting")
    b.watcher.look()
    a.see()
    assert commands(a)[-2:] == ["reset-failed", "start"]
    # Once: another start has another number.
    a.ran, a.unit = [], ("a4", "down")
    a.see()
    assert commands(a) == []


def test_who_was_stopped_or_failed_otherwise_does_not_come_back_by_itself(members):
    a, b = members["a"], members["b"]
    a.unit, b.unit = ("a3", "down"), ("b2", "waiting")
    for host in (b, a):
        host.see()
    assert commands(a) == []
    watch._write(a.watcher.instance.vain_file, "a3")
    a.answers = 1  # systemctl is-failed: it is inactive
    a.see()
    assert commands(a) == ["--quiet"]


def test_what_was_let_go_outlives_the_watcher(members):
    start_both(members)
    again = watch.Watcher(members["a"].watcher.instance, look=lambda _unit: ("a1", "running"))
    again.look()
    assert again.told()["with"] == {"b": "b1"}


def test_another_key_is_told_nothing(members):
    members["b"].watcher.instance.key = b"another"
    members["a"].see()
    error = members["a"].watcher._peers["b"]["error"]
    assert "does not know the same API key" in error
    assert members["a"].watcher._peers["b"]["phase"] is None


def http_get(host, path):
    instance = host.watcher.instance
    address = instance.own["address"]
    connection = http.client.HTTPConnection(address, instance.port, timeout=5, source_address=(address, 0))
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode().strip()


def test_health_is_that_of_the_whole_engine(members):
    a, b = members["a"], members["b"]
    assert http_get(b, "/health")[0] == 503
    start_both(members)
    assert http_get(b, "/health") == (503, "the engine on a does not serve yet")
    a.watcher._serves = True
    b.see()
    assert [http_get(host, "/health") for host in (a, b)] == [(200, "serves")] * 2
    b.unit = ("b1", "down")
    b.see()
    a.see()
    assert http_get(a, "/health")[0] == 503
    assert http_get(a, "/anything")[0] == 404


def test_the_start_waits_for_all_and_says_for_whom(members, capsys):
    instance, clock = members["a"].watcher.instance, iter(range(100))
    reasons = iter(["b: its engine is down", "b: its engine is down", None])
    code = watch.wait(instance, 60, "a1", lambda *_: next(reasons), lambda _s: None, lambda: next(clock))
    assert code == 0
    assert capsys.readouterr().out.count("b: its engine is down") == 1


def test_the_start_does_not_wait_for_ever(members, capsys):
    instance, clock = members["a"].watcher.instance, iter(range(100))
    assert watch.wait(instance, 5, "a1", lambda *_: "b: no answer yet", lambda _s: None, lambda: next(clock)) == 1
    assert "Not all members were there within 5 s. b: no answer yet" in capsys.readouterr().out


def test_the_start_asks_the_watcher_of_its_host(members):
    start_both(members)
    assert watch._ask_watcher(members["a"].watcher.instance, "a1") is None
    members["a"].see()
    assert "has not ended yet" in watch._ask_watcher(members["a"].watcher.instance, "a9")


def test_an_instance_on_one_host_has_nothing_to_watch(tmp_path):
    (tmp_path / "etc/vllm/one").mkdir(parents=True)
    (tmp_path / "etc/vllm/one/plan.json").write_text("{}")
    with pytest.raises(watch.WatchError, match="spans no hosts"):
        watch.Instance("one", str(tmp_path))


def test_an_engine_that_was_deployed_on_one_host_since_is_left_alone(members, tmp_path):
    start_both(members)
    a, b = members["a"], members["b"]
    b.unit = ("b1", "down")
    b.see()
    (tmp_path / "a/etc/vllm/big/new").write_text(json.dumps({"address": "0.0.0.0", "port": 1}))
    (tmp_path / "a/etc/vllm/big/new").replace(tmp_path / "a/etc/vllm/big/plan.json")
    a.unit = ("a2", "running")
    with pytest.raises(watch.WatchError, match="spans no hosts"):
        a.see()
    assert a.ran == []


def test_a_host_that_is_no_member_is_told_so():
    with pytest.raises(watch.WatchError, match=r"none of the members' addresses .*b 192\.0\.2\.1"):
        watch._own([{"host": "b", "address": "192.0.2.1"}])
    assert watch._own([{"host": "b", "address": "192.0.2.1"}, {"host": "a", "address": "127.0.0.1"}])["host"] == "a"

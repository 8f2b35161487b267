# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the engine of an instance that spans hosts whole: all members start together, and end together. Private.

Put on every member as ``/etc/vllm/NAME/members.py``: standard library only, and no import from the collection.

``members.py NAME`` is the watcher, run by vllm-members@NAME.service. Once a second it asks the watchers of the other
members which start of the engine runs there. ``members.py NAME --wait SECONDS`` is the ExecStartPre of the engine: it
ends when all members are about to start.

A start of an engine is its InvocationID. Whoever is let go remembers with which starts of the others (``with``); when
one of these ends, or its host does not answer for a while, the own engine is restarted: it waits until all are there
again. systemd counts these starts, so that the StartLimit of the unit bounds them. A unit that failed because it waited
in vain, as while another host was away for long, is started once more when all others wait for it, or did so in vain.

Watchers prove to each other that they know the instance's API key (HMAC over numbers used once); the key itself is
never sent. Without proof the port answers ``GET /health`` alone: 200 if the whole engine serves.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import secrets
import socket
import socketserver
import subprocess
import sys
import threading
import time

POLL_SECONDS = 1.0

#: An engine that serves is asked less often: it logs each request.
SERVING_SECONDS = 10.0

#: An answer that is older says nothing about now.
FRESH_SECONDS = 5.0

#: A host that does not answer for so long is taken for lost. A switch that restarts takes less.
LOST_SECONDS = 30.0

ANSWER_SECONDS = 3.0
_LONGEST_LINE = 65536


def tell(text, stream=None):
    """A line for the journal."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


class WatchError(Exception):
    """What keeps the watcher from its work, with what would be right."""


# --- what is on the host ------------------------------------------------------------------------------------------


class Instance:
    """The instance as its files tell of it. own is this host's member, peers the others: {"host", "address"}."""

    def __init__(self, name, root="/"):
        self.name = name
        self.unit = "vllm-" + name + ".service"
        self.archive = os.path.join(root, "etc/vllm", name, "archive.sh")
        self.state_file = os.path.join(root, "run/vllm", name + ".members.json")
        #: The last start that waited in vain.
        self.vain_file = os.path.join(root, "run/vllm", name + ".waited-in-vain")
        self._plan_file = os.path.join(root, "etc/vllm", name, "plan.json")
        self._plan_state = None
        plan = self.check_span()
        launch = plan["launch"]
        # Members of different releases must never meet.
        told = [plan.get(key) for key in ("image", "checkpoint", "arguments", "extra_args", "environment", "launch")]
        self.plan = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        self.port = launch["watch_port"]
        self.endpoint = (_local(plan["address"]), plan["port"])
        self.own = _own(launch["members"])
        self.rank = launch["members"].index(self.own)
        self.peers = [member for member in launch["members"] if member is not self.own]
        self.first = launch["members"][0]["host"]
        self.key = _key(os.path.join(root, "etc/vllm", name, "engine.env"), name)

    def check_span(self):
        """The plan; {} where it is the one of before. Raises WatchError if there is nothing to watch, any more."""
        state = os.stat(self._plan_file)
        state = (state.st_mtime_ns, state.st_ino)
        if state == self._plan_state:
            return {}
        with open(self._plan_file, encoding="utf-8") as file:
            plan = json.load(file)
        if not plan.get("launch"):
            raise WatchError(f"{self.name} spans no hosts: there is nothing to watch")
        self._plan_state = state
        return plan


def _local(address):
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


def _own(members):
    """The member whose address is one of this host's: only that can be bound."""
    for member in members:
        family = socket.AF_INET6 if ":" in member["address"] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.bind((member["address"], 0))
            return member
    addresses = ", ".join(f"{member['host']} {member['address']}" for member in members)
    raise WatchError(f"none of the members' addresses is this host's ({addresses}): deploy the instance again")


def _key(path, name):
    with open(path, encoding="utf-8") as file:
        values = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
    return hashlib.sha256(f"vllm-members {name} {values.get('VLLM_API_KEY', '')}".encode()).digest()


def read_unit(unit):
    """(InvocationID, phase) of the engine: running, waiting (before its start) or down."""
    command = ["systemctl", "show", unit, "--property=InvocationID,ActiveState,SubState"]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=10, check=False).stdout
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    state, sub = values.get("ActiveState"), values.get("SubState")
    if state == "active" or (state == "activating" and sub in ("start", "start-post")):
        phase = "running"
    else:
        phase = "waiting" if sub in ("start-pre", "condition") else "down"
    return values.get("InvocationID", ""), phase


# --- what is decided: no clock, no network ------------------------------------------------------------------------


def broken(own, peers):
    """Why the own engine must be started anew, or None.

    own: {"invocation", "phase", "with" {host: invocation}}. peers: {host: the same of it, with "silent_seconds"}.
    """
    if own["phase"] != "running":
        return None
    for host, peer in peers.items():
        if peer["silent_seconds"] > LOST_SECONDS:
            return f"{host} has not answered for {peer['silent_seconds']:.0f} s"
        if peer["silent_seconds"] > FRESH_SECONDS or not peer["phase"]:
            continue
        known = own["with"].get(host)
        # A watcher that was started later knows no other start than the one that runs.
        if known is None and peer["phase"] == "running":
            continue
        if peer["phase"] == "down" or peer["invocation"] != known:
            return f"the engine on {host} has ended"
    return None


def waits_for(own, peers):
    """Why the own engine must not start yet, or None. own: {"host", "invocation", "plan"}; peers as above."""
    for host, peer in peers.items():
        if peer["silent_seconds"] > FRESH_SECONDS or not peer["phase"]:
            return f"{host}: {peer['error'] or 'no answer yet'}"
        if peer["plan"] != own["plan"]:
            return f"{host}: another plan is deployed there; deploy the instance on all of its hosts"
        if peer["phase"] == "down":
            return f"{host}: its engine is down"
        if peer["phase"] == "running" and peer["with"].get(own["host"]) != own["invocation"]:
            return f"{host}: its engine has not ended yet"
    return None


def is_awaited(own, peers):
    """Whether all others would start the same engine: they wait, or waited in vain. own: {"plan"}; peers as above."""
    return all(
        peer["silent_seconds"] <= FRESH_SECONDS
        and (peer["phase"] == "waiting" or peer["vain"])
        and peer["plan"] == own["plan"]
        for peer in peers.values()
    )


# --- talking ------------------------------------------------------------------------------------------------------


def _proof(key, *words):
    return hmac.new(key, " ".join(words).encode("utf-8"), "sha256").hexdigest()


def ask(address, port, key, own_address):
    """The state of a peer. Raises OSError or ValueError with what is wrong."""
    with socket.create_connection((address, port), ANSWER_SECONDS, (own_address, 0)) as connection:
        connection.settimeout(ANSWER_SECONDS)
        stream = connection.makefile("rw", encoding="utf-8", newline="\n")
        mine = secrets.token_hex(16)
        stream.write(json.dumps({"once": mine}) + "\n")
        stream.flush()
        theirs = str(json.loads(stream.readline(_LONGEST_LINE))["once"])
        stream.write(json.dumps({"proof": _proof(key, "ask", theirs, mine)}) + "\n")
        stream.flush()
        answer = json.loads(stream.readline(_LONGEST_LINE) or "{}")
        text = answer.get("state")
        if text is None or not hmac.compare_digest(answer["proof"], _proof(key, "answer", mine, text)):
            raise ValueError("it does not know the same API key")
        return json.loads(text)


class _Handler(socketserver.StreamRequestHandler):
    timeout = ANSWER_SECONDS

    def handle(self):
        with contextlib.suppress(OSError, ValueError, KeyError):
            line = self.rfile.readline(_LONGEST_LINE).decode("utf-8")
            if line.startswith("GET "):
                self._http(line.split()[1])
            else:
                self._member(str(json.loads(line)["once"]))

    def _member(self, theirs):
        watcher, mine = self.server.watcher, secrets.token_hex(16)
        self._send({"once": mine})
        proof = json.loads(self.rfile.readline(_LONGEST_LINE).decode("utf-8"))["proof"]
        if not hmac.compare_digest(str(proof), _proof(watcher.instance.key, "ask", mine, theirs)):
            return self._send({})
        text = json.dumps(watcher.told())
        return self._send({"state": text, "proof": _proof(watcher.instance.key, "answer", theirs, text)})

    def _send(self, answer):
        self.wfile.write((json.dumps(answer) + "\n").encode("utf-8"))

    def _http(self, path):
        watcher, (route, _mark, invocation) = self.server.watcher, path.partition("?")
        while self.rfile.readline(_LONGEST_LINE).strip():
            pass
        if route == "/health":
            self._answer(*watcher.health())
        elif route == "/start" and self.client_address[0] == watcher.instance.own["address"]:
            reason = watcher.may_start(invocation)
            self._answer(503 if reason else 200, reason or "all members are there")
        else:
            self._answer(404, "there are /health and, on the host itself, /start")

    def _answer(self, status, text):
        body = (text + "\n").encode("utf-8")
        head = f"HTTP/1.0 {status} {http.client.responses[status]}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode("ascii") + body)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, watcher):
        self.watcher = watcher
        address = watcher.instance.own["address"]
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, watcher.instance.port), _Handler)


# --- the watcher --------------------------------------------------------------------------------------------------


class Watcher:
    """Knows the own engine and, by asking, the others'."""

    def __init__(self, instance, look=read_unit, run=subprocess.call, clock=time.monotonic):
        self.instance = instance
        self._look, self._run, self._clock = look, run, clock
        self._lock = threading.Lock()
        self._peers = {peer["host"]: self._unknown() for peer in instance.peers}
        self._released = self._read_released()
        self._own = {"invocation": "", "phase": "down", "with": {}, "vain": False}
        self._serves = False

    def _unknown(self):
        told = {"invocation": "", "phase": None, "with": {}, "serves": False, "plan": None, "vain": False}
        return {**told, "error": None, "answered": self._clock()}

    def _read_released(self):
        with contextlib.suppress(OSError, ValueError), open(self.instance.state_file, encoding="utf-8") as file:
            return json.load(file)
        return {"invocation": "", "with": {}}

    def told(self):
        """What the other members are told."""
        with self._lock:
            return {**self._own, "serves": self._serves, "plan": self.instance.plan}

    def health(self):
        """(HTTP status, text): whether the engine serves, as a whole."""
        with self._lock:
            peers = self._seen()
            if self._own["phase"] != "running":
                return 503, "the engine on this host does not run"
            reason = broken(self._own, peers)
            if reason:
                return 503, reason
            serves = self._serves if self.instance.rank == 0 else peers[self.instance.first]["serves"]
            return (200, "serves") if serves else (503, f"the engine on {self.instance.first} does not serve yet")

    def may_start(self, invocation):
        """Why that start must wait, or None: then it goes, and is remembered with the others'."""
        with self._lock:
            peers = self._seen()
            own = {"invocation": invocation, "plan": self.instance.plan, "host": self.instance.own["host"]}
            reason = waits_for(own, peers)
            if reason is None:
                members = {host: peer["invocation"] for host, peer in peers.items()}
                self._released = {"invocation": invocation, "with": members}
                self._own = {"invocation": invocation, "phase": "running", "with": members, "vain": False}
                self._write_released()
            return reason

    def _write_released(self):
        _write(self.instance.state_file, json.dumps(self._released))

    def _seen(self):
        now = self._clock()
        return {host: {**peer, "silent_seconds": now - peer["answered"]} for host, peer in self._peers.items()}

    def look(self):
        """Looks at the own engine, and starts it anew if it is no longer whole. Returns why, or None.

        Raises WatchError if another deployment has made an engine of one host of it.
        """
        self.instance.check_span()
        invocation, phase = self._look(self.instance.unit)
        vain = phase == "down" and self._waited_in_vain(invocation)
        with self._lock:
            known = self._released["with"] if self._released["invocation"] == invocation else {}
            # Let go and not started yet, in systemd's eyes.
            phase = "running" if phase == "waiting" and known else phase
            self._own = {"invocation": invocation, "phase": phase, "with": known, "vain": vain}
            reason = broken(self._own, self._seen())
            awaited = vain and is_awaited({"plan": self.instance.plan}, self._seen())
        if reason:
            self._start_anew(reason)
        elif awaited:
            self._start_again()
        return reason

    def _waited_in_vain(self, invocation):
        with contextlib.suppress(OSError), open(self.instance.vain_file, encoding="utf-8") as file:
            # A unit that somebody stopped is inactive, not failed.
            return (
                file.read() == invocation and self._run(["systemctl", "--quiet", "is-failed", self.instance.unit]) == 0
            )
        return False

    def _start_again(self):
        tell("The others wait for the engine on this host, which had waited for them in vain: it is started again")
        self._run(["systemctl", "reset-failed", self.instance.unit])
        self._run(["systemctl", "start", "--no-block", self.instance.unit])
        time.sleep(2 * POLL_SECONDS)

    def _start_anew(self, reason):
        tell(f"{reason}: the engine on this host is started anew and waits for all members")
        # archive.sh keeps the log of the start that this variable names; here it would be the watcher's own.
        environment = dict(os.environ, INVOCATION_ID=self._own["invocation"])
        self._run([self.instance.archive, f"Ended by the watcher of its members: {reason}."], env=environment)
        # A stop that somebody asked for meanwhile goes first.
        self._run(["systemctl", "restart", "--no-block", "--job-mode=fail", self.instance.unit])
        time.sleep(2 * POLL_SECONDS)

    def ask_peer(self, peer):
        """Asks a peer once."""
        try:
            told = ask(peer["address"], self.instance.port, self.instance.key, self.instance.own["address"])
            known = {key: told[key] for key in ("invocation", "phase", "with", "serves", "plan")}
            # Watchers of earlier versions do not tell.
            known["vain"] = told.get("vain", False)
        except (OSError, ValueError, KeyError) as error:
            with self._lock:
                self._peers[peer["host"]]["error"] = f"its watcher cannot be reached ({error})"
            return
        with self._lock:
            self._peers[peer["host"]] = {**known, "error": None, "answered": self._clock()}

    def ask_endpoint(self):
        """Asks the own engine whether it serves; only rank 0 does."""
        try:
            connection = http.client.HTTPConnection(*self.instance.endpoint, timeout=ANSWER_SECONDS)
            connection.request("GET", "/health")
            serves = connection.getresponse().status == 200
            connection.close()
        except (OSError, http.client.HTTPException):
            serves = False
        with self._lock:
            self._serves = serves
        if serves:
            time.sleep(SERVING_SECONDS)

    def watch(self):
        """Never returns."""
        server = _Server(self)
        work = [server.serve_forever]
        work += [_again(self.ask_peer, peer) for peer in self.instance.peers]
        work += [_again(self.ask_endpoint)] if self.instance.rank == 0 else []
        for run in work:
            threading.Thread(target=run, daemon=True).start()
        _again(self.look)()


def _write(path, text):
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def _again(work, *arguments):
    def run():
        while True:
            try:
                work(*arguments)
            except (OSError, subprocess.SubprocessError) as error:
                tell(f"{type(error).__name__}: {error}", sys.stderr)
            time.sleep(POLL_SECONDS)

    return run


# --- before the engine starts -------------------------------------------------------------------------------------


def wait(instance, seconds, invocation, ask_watcher=None, sleep=time.sleep, clock=time.monotonic):
    """Returns when the engine may start (0) or the time is over (1)."""
    ask_watcher = ask_watcher or _ask_watcher
    deadline, told = clock() + seconds, None
    while True:
        reason = ask_watcher(instance, invocation)
        if reason is None:
            tell("All members are there.")
            return 0
        if reason != told:
            tell(f"Waits for the other members. {reason}")
            told = reason
        if clock() >= deadline:
            tell(f"Not all members were there within {seconds} s. {reason}")
            _write(instance.vain_file, invocation)
            return 1
        sleep(POLL_SECONDS)


def _ask_watcher(instance, invocation):
    address = instance.own["address"]
    try:
        connection = http.client.HTTPConnection(
            address, instance.port, timeout=ANSWER_SECONDS, source_address=(address, 0)
        )
        connection.request("GET", "/start?" + invocation)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8").strip()
        connection.close()
    except (OSError, http.client.HTTPException) as error:
        return f"The watcher of this host does not answer ({error}): systemctl status vllm-members@{instance.name}"
    return None if answer.status == 200 else text


def main():
    """The program."""
    parser = argparse.ArgumentParser(description="Keeps an engine over several hosts whole.")
    parser.add_argument("name")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="wait until the engine may start")
    given = parser.parse_args()
    try:
        instance = Instance(given.name)
        if given.wait is not None:
            return wait(instance, given.wait, os.environ.get("INVOCATION_ID", ""))
        return Watcher(instance).watch()
    except WatchError as error:
        tell(error)
        return 0 if given.wait is None else 1
    except (OSError, KeyError, ValueError) as error:
        tell(f"{given.name}: its files cannot be used: {type(error).__name__}: {error}", sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())

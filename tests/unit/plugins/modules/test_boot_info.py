# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _engine_unit
from ansible_collections.gpufleet.vllm.plugins.modules import boot_info

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "ExecMainCode": "0",
    "ExecMainStatus": "0",
    "NRestarts": "1",
    "InvocationID": "c0ffee",
    "ActiveEnterTimestamp": "Mon 2026-11-30 12:00:00 UTC",
    "ActiveEnterTimestampMonotonic": "5000000",
}
STARTED = "vLLM API server version 0.32.0\nINFO Starting vLLM server on http://0.0.0.0:8000\n"
LOADING = "vLLM API server version 0.32.0\nLoading safetensors checkpoint shards:  23% Completed | 7/30 [00:10<00:33]\n"


class Host:
    """Answers systemctl and journalctl as a host does, and keeps what it was asked."""

    def __init__(self, journal="", journal_error="", **properties):
        self.properties = {**RUNNING, **properties}
        self.journal = journal
        self.journal_error = journal_error
        self.asked = []

    def run(self, arguments):
        self.asked.append(arguments)
        if arguments[0] == "systemctl":
            return 0, "".join(f"{name}={value}\n" for name, value in self.properties.items()), ""
        if arguments[0] == "sh":
            return 0, "".join(self.journal.splitlines(True)[: _engine_unit.HEAD_LINES]), self.journal_error
        count = int(arguments[-1].rpartition("=")[2])
        return 0, "".join(self.journal.splitlines(True)[-count:]), ""


@pytest.fixture(name="port")
def serve_health(request):
    """The port of a server that answers every request with the status that the test asks for."""
    status = getattr(request, "param", 200)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_args):
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def ask(host, port=1, **params):
    defaults = {"name": "chat", "address": "127.0.0.1", "port": port, "health": True, "health_timeout": 2.0}
    defaults.update(lines=100, invocation_id=None)
    return boot_info.boot_info(host.run, {**defaults, **params})


def test_an_engine_that_loads_weights():
    told = ask(Host(LOADING))
    assert (told["phase"], told["progress"]) == ("loading weights", {"done": 7, "total": 30, "percent": 23})
    assert told["healthy"] is False
    assert told["measured"]["version"] == "0.32.0"
    assert told["unit"] == {
        "name": "vllm-chat.service",
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "result": "success",
        "exec_code": None,
        "exec_status": 0,
        "n_restarts": 1,
        "invocation_id": "c0ffee",
        "active_since": "Mon 2026-11-30 12:00:00 UTC",
        "active_monotonic_us": 5000000,
    }


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_an_engine_that_answers_serves(port, address):
    told = ask(Host(STARTED), port=port, address=address)
    assert (told["healthy"], told["phase"], told["progress"]) == (True, "serving", None)


@pytest.mark.parametrize("port", [503], indirect=True)
def test_an_engine_that_listens_and_answers_503_does_not_serve(port):
    told = ask(Host("INFO:     Application startup complete.\n"), port=port)
    assert (told["healthy"], told["phase"]) == (False, "warming up")


@pytest.mark.parametrize(
    ("host", "phase"),
    [
        (Host(STARTED, ActiveState="failed", SubState="failed", Result="exit-code"), "failed"),
        (Host(STARTED, ActiveState="activating", SubState="auto-restart"), "failed"),
        (Host(LOADING), "loading weights"),
        (Host("", ActiveEnterTimestampMonotonic=str(int(time.monotonic() * 1e6))), "starting"),
    ],
)
def test_somebody_else_on_the_port_is_not_our_engine(port, host, phase):
    told = ask(host, port=port)
    assert (told["healthy"], told["phase"]) == (False, phase)


def test_an_old_engine_whose_start_is_no_longer_in_the_journal_serves(port):
    told = ask(Host("INFO Avg prompt throughput: 12.3 tokens/s\n", ActiveEnterTimestampMonotonic="1"), port=port)
    assert (told["healthy"], told["phase"]) == (True, "serving")


@pytest.mark.parametrize(
    ("properties", "phase"),
    [
        ({"ActiveState": "failed", "SubState": "failed", "Result": "start-limit-hit"}, "failed"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, "failed"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "stopped"),
        ({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "InvocationID": ""}, "stopped"),
        ({"ActiveState": "activating", "SubState": "start"}, "loading weights"),
    ],
)
def test_what_systemd_says_outweighs_the_log(properties, phase):
    assert ask(Host(LOADING, **properties))["phase"] == phase


def test_the_signal_that_killed_the_engine():
    killed = {"ActiveState": "failed", "SubState": "failed", "Result": "oom-kill"}
    unit = ask(Host(**killed, ExecMainCode="2", ExecMainStatus="9"))["unit"]
    assert (unit["result"], unit["exec_code"], unit["exec_status"]) == ("oom-kill", "killed", 9)


def test_the_journal_of_the_current_activation_is_read():
    host = Host(LOADING)
    ask(host)
    assert "_SYSTEMD_INVOCATION_ID=c0ffee" in host.asked[-1]
    assert "INVOCATION_ID=c0ffee" in host.asked[-1]


def test_the_journal_of_an_earlier_activation_can_be_read():
    host = Host(LOADING)
    ask(host, invocation_id="feed")
    assert "_SYSTEMD_INVOCATION_ID=feed" in host.asked[-1]


def test_a_unit_that_never_ran_has_no_journal():
    host = Host(LOADING, InvocationID="", ActiveState="inactive", SubState="dead")
    assert ask(host)["log"] == ""
    assert len(host.asked) == 1


def test_only_the_last_lines_are_returned():
    assert ask(Host("a\nb\nc\n"), lines=2)["log"] == "b\nc"


def test_of_a_long_log_start_and_end_are_read():
    lines = ["INFO Available KV cache memory: 3.5 GiB\n"] + ["INFO Avg throughput\n"] * (_engine_unit.HEAD_LINES + 5)
    told = ask(Host("".join(lines) + "ERROR EngineCore encountered a fatal error.\n"), lines=2)
    assert (told["measured"]["kv_pool_gib"], told["phase"]) == (3.5, "failed")
    assert told["log"].splitlines() == ["INFO Avg throughput", "ERROR EngineCore encountered a fatal error."]


def test_an_unreadable_journal_is_told():
    told = ask(Host(journal_error="No journal files were opened due to insufficient permissions.\n"))
    assert told["errors"] == [
        "The journal of vllm-chat.service cannot be read: No journal files were opened due to insufficient permissions."
    ]


def test_keys_in_the_log_are_made_unreadable():
    assert "s3cr3t" not in ask(Host("non-default args: {'api_key': ['s3cr3t']}\n"))["log"]


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.7", "http://10.0.0.7:8001/health"),
        ("0.0.0.0", "http://127.0.0.1:8001/health"),
        ("::", "http://[::1]:8001/health"),
        ("fd00::7", "http://[fd00::7]:8001/health"),
        ("", "http://127.0.0.1:8001/health"),
    ],
)
def test_where_health_is_asked(address, url):
    assert _engine_unit.health_url(address, 8001) == url

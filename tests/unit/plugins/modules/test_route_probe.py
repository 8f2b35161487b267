# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.server
import json
import threading
import time

import pytest

from ansible_collections.gpufleet.vllm.plugins.modules import route_probe

ROUTES = {
    "/v1/models": ("GET",),
    "/v1/responses/{response_id}": ("GET",),
    "/invocations": ("POST",),
    "/health": ("GET",),
    "/metrics": ("GET", "REPORT"),
    "/broken": (),
}


class Server(http.server.ThreadingHTTPServer):
    """Answers as vLLM does: the key is asked for below /v1, before the route is looked for."""

    daemon_threads = True
    documented = True
    closes = False
    delay = 0.0
    ran = ()

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []

    def handle_error(self, request, client_address):
        """Who left before the answer is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def parse_request(self):
        parsed = super().parse_request()
        self.answer()
        if self.server.closes:
            self.close_connection = True
            return False
        return parsed

    def do_GET(self):
        pass

    do_REPORT = do_GET

    def answer(self):
        time.sleep(self.server.delay)
        self.server.asked.append((self.command, self.path))
        status, body = self.status(), b""
        if self.path == "/openapi.json" and self.server.documented:
            status, body = 200, json.dumps({"paths": dict.fromkeys(ROUTES)}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def status(self):
        if self.path.startswith("/v1"):
            return 401
        if self.path == "/broken":
            return 501
        if self.path not in ROUTES:
            return 404
        return 200 if self.command in ROUTES[self.path] else 405

    def log_message(self, *_arguments):
        pass


@pytest.fixture(name="server")
def serve():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def probe(server, routes=(), timeout=10):
    return route_probe.probe(route_probe.Engine("0.0.0.0", server.server_port, timeout), routes)


def test_what_the_engine_lists_is_told_apart(server):
    found = probe(server, ["/tokenize", "/health"])
    assert found["unguarded"] == [
        {"path": "/health", "status": 405},
        {"path": "/invocations", "status": 405},
        {"path": "/metrics", "status": 200},
    ]
    assert [route["path"] for route in found["guarded"]] == ["/v1/models", "/v1/responses/{response_id}"]
    assert found["unclear"] == [{"path": "/broken", "status": 501}]
    assert found["absent"] == ["/tokenize"]


def test_nothing_can_be_run_by_it(server):
    probe(server, ["/tokenize"])
    methods = {command for command, path in server.asked if path != "/openapi.json"}
    assert methods == {"REPORT"}
    assert ("GET", "/openapi.json") in server.asked
    assert ("REPORT", "/v1/responses/0") in server.asked


@pytest.mark.parametrize("closes", [False, True])
def test_without_a_list_of_its_own_the_known_routes_are_asked_for(server, closes):
    server.documented, server.closes = False, closes
    found = probe(server, ["/invocations", "/v1/models"])
    assert found["unguarded"] == [{"path": "/invocations", "status": 405}]
    assert found["guarded"] == [{"path": "/v1/models", "status": 401}]


def test_a_slow_engine_is_left_when_the_time_is_over(server):
    server.delay = 0.2
    began = time.monotonic()
    with pytest.raises(OSError):
        probe(server, timeout=0.5)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("status", "body"), [(500, b"{}"), (200, b"no json"), (200, b"[]"), (200, b"{}"), (200, b"\xff"), (200, b"null")]
)
def test_a_list_that_cannot_be_read_is_none(status, body):
    assert route_probe.listed_paths(status, body) == []

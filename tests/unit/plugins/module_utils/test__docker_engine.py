# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socketserver
import threading
from http.server import BaseHTTPRequestHandler

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._docker_engine import DockerError, Engine


class Handler(BaseHTTPRequestHandler):
    """Answers as the engine does, on its socket."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/images/none/json":
            self.answer(404, b'{"message":"No such image: none"}')
        elif self.path == "/images/broken/json":
            self.answer(500, b"no JSON")
        else:
            self.answer(200, b'{"Id":"sha256:1"}')

    def do_DELETE(self):
        self.answer(204, b"")

    def do_POST(self):
        self.server.asked = (self.path, self.headers.get("X-Registry-Auth"), self.body())
        if self.path.startswith("/images/create"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            # A message may come in pieces.
            for piece in (b'{"status":"Down', b'loading"}\r\n', b'{"error":"no space left on device"}\r\n'):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.answer(200, b'{"stream":"Loaded image: a:1\\n"}\n')

    def body(self):
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        content = b""
        while self.headers.get("Transfer-Encoding") == "chunked":
            size = int(self.rfile.readline(), 16)
            content += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        return content

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def address_string(self):
        return "socket"

    def log_message(self, format, *arguments):
        """Quiet."""


@pytest.fixture(name="server")
def serve(tmp_path):
    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(name="engine")
def connect(server):
    return Engine(server.server_address)


def test_answers_are_parsed(engine):
    assert engine.get("/info") == {"Id": "sha256:1"}
    assert engine.image("a/b:1@sha256:2") == {"Id": "sha256:1"}
    assert engine.image("none") is None
    engine.remove_image("a:1")


def test_what_the_engine_refuses_is_told_in_its_words(engine):
    with pytest.raises(DockerError, match="no JSON") as caught:
        engine.image("broken")
    assert caught.value.status == 500


def test_messages_come_one_by_one_and_an_error_among_them_is_raised(engine, server):
    query = {"fromImage": "a/b", "tag": "1"}
    messages = engine.messages("POST", "/images/create", query, {"X-Registry-Auth": "secret"})
    assert next(messages) == {"status": "Downloading"}
    with pytest.raises(DockerError, match="no space left on device"):
        next(messages)
    assert server.asked == ("/images/create?fromImage=a%2Fb&tag=1", "secret", b"")


@pytest.mark.parametrize("size", [6, None])
def test_an_archive_is_sent_in_blocks(engine, server, size):
    messages = engine.messages("POST", "/images/load", {"quiet": "0"}, body=iter([b"abc", b"def"]), size=size)
    assert list(messages) == [{"stream": "Loaded image: a:1\n"}]
    assert server.asked == ("/images/load?quiet=0", None, b"abcdef")


def test_bytes_are_read_in_blocks(engine):
    assert b"".join(engine.blocks("/images/get", {"names": "a:1"}, size=4)) == b'{"Id":"sha256:1"}'


def test_an_engine_that_does_not_answer_is_named(tmp_path):
    with pytest.raises(DockerError, match=r"No Docker engine answers at .*/docker\.sock"):
        Engine(str(tmp_path / "docker.sock")).get("/info")

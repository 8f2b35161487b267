# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API of the Docker engine on its socket. Private to the collection.

The command line tells no machine how far a pull is; the API does. Paths without a version are answered by every engine.
Reference: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import socket
from urllib.parse import quote, urlencode

SOCKET = "/var/run/docker.sock"
# Of a request that is answered from what the engine knows.
_ANSWER_SECONDS = 120
# Of silence in an answer that tells progress. A large layer on a slow disk is quiet for minutes.
_SILENCE_SECONDS = 900


class DockerError(Exception):
    """What the engine answered, or why it did not; status is None then."""

    def __init__(self, message, status=None):
        super().__init__(message)
        self.status = status


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Engine:
    """Every method raises DockerError."""

    def __init__(self, path=SOCKET):
        self.path = path

    def get(self, path, **query):
        """Returns the parsed answer."""
        return self._ask("GET", path, query)

    def image(self, name):
        """Returns what ``docker image inspect`` shows of a name or an ID; None if there is no such image."""
        try:
            return self._ask("GET", f"/images/{quote(name, safe='/:@')}/json", {})
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    def tag(self, name, repository, tag):
        """Lets repository:tag mean the image."""
        self._ask("POST", f"/images/{quote(name, safe='/:@')}/tag", {"repo": repository, "tag": tag})

    def remove_image(self, name):
        """Removes a name, and the image with its last one."""
        self._ask("DELETE", f"/images/{quote(name, safe='/:@')}", {})

    def messages(self, method, path, query, headers=None, body=None, size=None):
        """Yields the messages of a long answer as they come. An error among them is raised.

        body: blocks of bytes; size: bytes of all of them, if known.
        """
        with self._request(method, path, query, _SILENCE_SECONDS, headers, body, size) as answer:
            for line in answer:
                if not line.strip():
                    continue
                message = json.loads(line)
                if message.get("error"):
                    raise DockerError(message["error"])
                yield message

    def blocks(self, path, query, size=1 << 20):
        """Yields the bytes of an answer."""
        with self._request("GET", path, query, _SILENCE_SECONDS) as answer:
            block = answer.read(size)
            while block:
                yield block
                block = answer.read(size)

    def _ask(self, method, path, query):
        with self._request(method, path, query, _ANSWER_SECONDS) as answer:
            text = answer.read()
            return json.loads(text) if text.strip() else None

    @contextlib.contextmanager
    def _request(self, method, path, query, timeout, headers=None, body=None, size=None):
        connection = _SocketConnection(self.path, timeout)
        try:
            headers = {**(headers or {}), **_length(body, size)}
            # An engine that has read enough, or refuses, closes its end: its answer says which.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                url = f"{path}?{urlencode(query)}" if query else path
                connection.request(method, url, body=body, headers=headers, encode_chunked=size is None)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise DockerError(_message(answer.read()), answer.status)
            yield answer
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DockerError(self._silence(error)) from error
        finally:
            connection.close()

    def _silence(self, error):
        number = getattr(error, "errno", None)
        if number in (errno.EACCES, errno.EPERM):
            return f"The Docker engine at {self.path} refuses this user (become: true is needed)."
        if number in (errno.ENOENT, errno.ECONNREFUSED):
            return f"No Docker engine answers at {self.path}."
        return f"The connection to the Docker engine ended: {error or type(error).__name__}"


def _length(body, size):
    if body is None:
        return {}
    kind = {"Content-Type": "application/x-tar"}
    return {**kind, "Transfer-Encoding": "chunked"} if size is None else {**kind, "Content-Length": str(size)}


def _message(text):
    try:
        return json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        return text.decode("utf-8", "replace").strip() or "no message"

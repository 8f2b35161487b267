# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model hub on loopback: as much of the HTTP interfaces as huggingface_hub and modelscope ask for."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeHub(ThreadingHTTPServer):
    """Serves one repository from a folder. ``asked`` has (method, path, Range) of every request."""

    daemon_threads = True

    def __init__(self, folder: Path, repository: str, commit: str, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.repository, self.commit, self.token = folder, repository, commit, token
        self.asked: list[tuple[str, str, str]] = []
        self.sent_bytes = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server
        path, _mark, query = self.path.partition("?")
        hub.asked.append((self.command, path, self.headers.get("Range", "")))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
            return
        prefix = f"/api/models/{hub.repository}/revision/"
        if path.startswith(prefix):
            self._revision(path[len(prefix) :])
        elif path == f"/api/models/{hub.repository}/tree/{hub.commit}":
            files = [{"type": "file", "oid": "0" * 40, **entry} for entry in self._files("path")]
            self._send(200, json.dumps(files).encode(), {"Content-Type": "application/json"})
        elif path.startswith(f"/{hub.repository}/resolve/{hub.commit}/"):
            self._file(hub.folder / path.split("/", 5)[5])
        elif path.startswith(f"/api/v1/models/{hub.repository}/"):
            self._modelscope(path.rsplit("/", 1)[1], urllib.parse.parse_qs(query))
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _modelscope(self, kind: str, query: dict[str, list[str]]) -> None:
        if kind == "repo":
            self._file(self.server.folder / query["FilePath"][0])
            return
        files = [
            {
                "Path": entry["path"],
                "Name": str(entry["path"]).rpartition("/")[2],
                "Type": "blob",
                "Size": entry["size"],
                "Revision": self.server.commit,
                "Sha256": hashlib.sha256((self.server.folder / str(entry["path"])).read_bytes()).hexdigest(),
            }
            for entry in self._files("path")
        ]
        told = {"Code": 200, "Success": True, "Data": {"Files": files, "RevisionMap": {"Branches": [], "Tags": []}}}
        self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _revision(self, revision: str) -> None:
        hub = self.server
        if revision not in (hub.commit, "main"):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        told = {"id": hub.repository, "sha": hub.commit, "siblings": self._files("rfilename")}
        self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _files(self, name: str) -> list[dict[str, object]]:
        folder = self.server.folder
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [{name: str(path.relative_to(folder)), "size": path.stat().st_size} for path in files]

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        headers = {"X-Repo-Commit": self.server.commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        asked = self.headers.get("Range", "")
        if asked:
            first, _dash, last = asked.partition("=")[2].partition("-")
            end = min(int(last) if last else len(content) - 1, len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
            self._send(206, content[int(first) : end + 1], headers)
        else:
            self._send(200, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.server.sent_bytes += len(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""

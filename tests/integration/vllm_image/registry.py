# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry that Docker pulls from, with faults: python3 registry.py PORT SETTINGS.json

It serves the same made-up image under every name and tag (GET part of the OCI distribution specification). The settings
are read at every request: {"rate": bytes per second, "cut": bytes after which a layer breaks off, "password": wanted of
the user "gpu", "lie": whether what it serves is not what the digest says, "release": another release is another image}.
Python 3.8, standard library only.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import random
import sys
import tarfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LAYERS = 3
LAYER_BYTES = 4 << 20
BLOCK = 64 << 10


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def tar_file(name, content):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


class Image:
    """The bytes of an image by their digests; the first layers are those of every release."""

    def __init__(self, release):
        self.blobs = {}
        tars = [self.layer(number, release) for number in range(LAYERS)]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/layer0"], "Env": ["RELEASE=" + release]},
            "rootfs": {"type": "layers", "diff_ids": [digest(content) for content in tars]},
        }
        packed = [gzip.compress(content, 1, mtime=0) for content in tars]
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
                "config": self.add("application/vnd.docker.container.image.v1+json", json.dumps(config).encode()),
                "layers": [self.add("application/vnd.docker.image.rootfs.diff.tar.gzip", blob) for blob in packed],
            }
        ).encode()
        self.id = digest(json.dumps(config).encode())

    @staticmethod
    def layer(number, release):
        """Noise, which does not compress, and the same noise at every call."""
        noise = random.Random(f"{number} {release if number == LAYERS - 1 else ''}")
        return tar_file(f"layer{number}", bytes(noise.getrandbits(8) for _byte in range(LAYER_BYTES)))

    def add(self, kind, content):
        self.blobs[digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": digest(content)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    images = {}

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        with open(self.server.settings, encoding="utf-8") as stream:
            settings = json.load(stream)
        password = settings.get("password")
        wanted = "Basic " + base64.b64encode(f"gpu:{password}".encode()).decode()
        if password and self.headers.get("Authorization") != wanted:
            self.refuse(401, "UNAUTHORIZED", {"Www-Authenticate": 'Basic realm="registry"'})
            return
        release = settings.get("release", "1")
        if release not in self.images:
            self.images[release] = Image(release)
        image, (kind, _slash, name) = self.images[release], self.path.rpartition("/")
        if self.path == "/v2/":
            self.send_all(b"{}", "application/json", with_body)
        elif kind.endswith("/manifests"):
            self.send_manifest(image, name, settings, with_body)
        elif name in image.blobs:
            self.send_blob(image.blobs[name], settings, with_body)
        else:
            self.refuse(404, "BLOB_UNKNOWN")

    def send_manifest(self, image, name, settings, with_body):
        if name.startswith("sha256:") and name != digest(image.manifest) and not settings.get("lie"):
            self.refuse(404, "MANIFEST_UNKNOWN")
            return
        self.send_all(image.manifest, json.loads(image.manifest)["mediaType"], with_body, name)

    def send_blob(self, content, settings, with_body):
        first = int(self.headers.get("Range", "bytes=0-")[len("bytes=") :].partition("-")[0])
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if with_body:
            self.send_slowly(content[first:], settings)

    def send_slowly(self, content, settings):
        rate, cut = settings.get("rate"), settings.get("cut")
        for start in range(0, len(content), BLOCK):
            if cut and start >= cut:
                self.close_connection = True
                return
            block = content[start : start + BLOCK]
            self.wfile.write(block)
            if rate:
                time.sleep(len(block) / rate)

    def send_all(self, content, kind, with_body, name=""):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Docker-Content-Digest", name if name.startswith("sha256:") else digest(content))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def refuse(self, status, code, headers=None):
        content = json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format, *arguments):
        """Quiet."""


def main():
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    server.settings = sys.argv[2]
    server.serve_forever()


if __name__ == "__main__":
    main()

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker engine in memory, and archives as ``docker save`` writes them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

from ansible_collections.gpufleet.vllm.plugins.module_utils._docker_engine import DockerError

GIB = 1 << 30


def sha(text):
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def inspected(content, tags=(), digests=(), size=GIB):
    """What ``docker image inspect`` shows of an image that consists of that text."""
    return {
        "Id": config_id(content),
        "RepoTags": list(tags),
        "RepoDigests": list(digests),
        "Size": size,
        "Architecture": "amd64",
        "Config": {"Env": ["CONTENT=" + content], "Entrypoint": ["vllm", "serve"], "Cmd": None},
        "RootFS": {"Layers": [sha("layer of " + content)]},
    }


def config_of(content):
    return json.dumps({"rootfs": {"diff_ids": [sha("layer of " + content)]}, "content": content}).encode()


def config_id(content):
    return "sha256:" + hashlib.sha256(config_of(content)).hexdigest()


def save(path, images, manifest=True):
    """Writes an archive; images: {content: [tags]}."""
    entries, files = [], {}
    for content, tags in images.items():
        config = config_id(content).partition(":")[2] + ".json"
        files[config] = config_of(content)
        files[content + "/layer.tar"] = b"layer of " + content.encode()
        entries.append({"Config": config, "RepoTags": tags or None, "Layers": [content + "/layer.tar"]})
    if manifest:
        files["manifest.json"] = json.dumps(entries).encode()
    with tarfile.open(path, "w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


class Docker:
    """Does with its images what the engine does, as far as the collection asks for it.

    registry: {"repository@digest" or "repository:tag": content}; failures: what the next pulls say instead.
    """

    def __init__(self, images=(), containers=(), registry=None, root="/"):
        self.images = {image["Id"]: image for image in images}
        self.containers = [{"ImageID": image} for image in containers]
        self.registry = registry or {}
        self.failures = []
        self.root = root
        self.pulls = []

    def get(self, path, **_query):
        return {
            "/info": {"DockerRootDir": self.root, "Architecture": "x86_64", "DriverStatus": [["Backing", "extfs"]]},
            "/containers/json": self.containers,
            "/images/json": list(self.images.values()),
        }[path]

    def image(self, name):
        for image in self.images.values():
            if name in (image["Id"], *image["RepoTags"], *image["RepoDigests"]):
                return image
        return None

    def tag(self, name, repository, tag):
        image = self.image(name)
        for other in self.images.values():
            other["RepoTags"] = [known for known in other["RepoTags"] if known != f"{repository}:{tag}"]
        image["RepoTags"].append(f"{repository}:{tag}")

    def remove_image(self, name):
        image = self.image(name)
        image["RepoTags"] = [known for known in image["RepoTags"] if known != name]
        image["RepoDigests"] = [known for known in image["RepoDigests"] if known != name]
        if not image["RepoTags"]:
            del self.images[image["Id"]]

    def messages(self, _method, path, query, headers=None, body=None, size=None):
        return self.load(b"".join(body)) if path == "/images/load" else self.pull(query, headers)

    def pull(self, query, headers):
        colon = "@" if query["tag"].startswith("sha256:") else ":"
        name = query["fromImage"] + colon + query["tag"]
        self.pulls.append((name, headers))
        yield {"status": "Downloading", "id": "0123456789ab", "progressDetail": {"current": 50, "total": 100}}
        if self.failures:
            raise DockerError(self.failures.pop(0))
        if name not in self.registry:
            raise DockerError(f"manifest for {name} not found: manifest unknown: manifest unknown")
        content = self.registry[name]
        image = self.images.setdefault(config_id(content), inspected(content))
        image["RepoDigests"].append(f"{query['fromImage']}@{sha('manifest of ' + content)}")
        if colon == ":":
            self.tag(image["Id"], query["fromImage"], query["tag"])
        yield {"status": "Pull complete", "id": "0123456789ab"}

    def load(self, content):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for entry in json.load(archive.extractfile("manifest.json")):
                text = json.load(archive.extractfile(entry["Config"]))["content"]
                image = self.images.setdefault(config_id(text), inspected(text))
                for name in entry["RepoTags"] or []:
                    self.tag(image["Id"], *name.rsplit(":", 1))
                    yield {"stream": f"Loaded image: {name}\n"}
                if not entry["RepoTags"]:
                    yield {"stream": f"Loaded image ID: {image['Id']}\n"}

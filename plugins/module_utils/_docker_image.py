# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which image a name means, whether it is on the host, and whether it is the pinned one. Private to the collection.

A name is REPOSITORY:TAG, perhaps with @sha256:DIGEST, the digest of the manifest in the registry. Docker knows the
digest of what it pulled, but not of what it loaded from an archive: there the image ID proves the image, which is the
digest of the manifest's config and as good. What was proven once is recorded on the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections import namedtuple

RECORDS = "/var/lib/vllm/images"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


class Reference(namedtuple("Reference", ["repository", "tag", "digest"])):
    """digest is None where none is pinned."""

    @property
    def tagged(self):
        return f"{self.repository}:{self.tag}"

    @property
    def registry(self):
        """The registry as the engine names it, docker.io where the name has none."""
        first, slash, _rest = self.repository.partition("/")
        return first if slash and (re.search("[.:]", first) or first == "localhost") else "docker.io"

    @property
    def path(self):
        """The repository within its registry."""
        registry = self.registry
        start = len(registry) + 1 if self.repository.startswith(registry + "/") else 0
        return self.repository[start:]

    def at(self, mirror):
        """The same image in a mirror, "registry.example:5000" or "registry.example/folder"."""
        host = re.sub(r"^https?://", "", mirror).strip("/")
        return Reference(f"{host}/{self.path}", self.tag, self.digest)


def parse(name):
    """Returns the Reference. Raises ValueError where the name has no tag or a digest that is none."""
    tagged, at, digest = name.partition("@")
    repository, _colon, tag = tagged.rpartition(":")
    if not repository or "/" in tag or (at and not _DIGEST.match(digest)):
        raise ValueError(
            f"{name} is no image as it must be pinned: REPOSITORY:TAG, and best @sha256: with the 64 digits of its "
            "digest, for example vllm/vllm-openai:v0.32.0"
        )
    return Reference(re.sub(r"^(index\.)?docker\.io/", "", repository), tag, digest or None)


def find(engine, reference, expected_id=None, record=None):
    """Returns (the right image or None, what the tag means now or None), as ``docker image inspect`` shows them."""
    tagged = engine.image(reference.tagged)
    if not reference.digest and not expected_id:
        return tagged, tagged
    names = [f"{reference.repository}@{reference.digest}" if reference.digest else None, expected_id]
    names.append((record or {}).get("id"))
    for image in [tagged] + [engine.image(name) for name in names if name]:
        if image and is_proven(image, reference, expected_id, record):
            return image, tagged
    return None, tagged


def is_proven(image, reference, expected_id=None, record=None):
    """Whether the image is the one with the pinned digest, or with the expected ID."""
    wanted = {reference.digest, expected_id} - {None}
    known = {image["Id"], *digests(image)}
    if record and record.get("id") == image["Id"]:
        known.update(record.get("proven", []))
    return not wanted or bool(wanted & known)


def digests(image):
    """The digests of the manifests by which the engine pulled it."""
    return sorted({name.rpartition("@")[2] for name in image.get("RepoDigests") or []})


def facts(image, reference):
    """What others need to know of an image on this host."""
    return {
        "id": image["Id"],
        "digests": digests(image),
        "size_bytes": image.get("Size"),
        "reference": reference.tagged,
        "architecture": image.get("Architecture"),
        "fingerprint": fingerprint(image),
    }


def fingerprint(image):
    """Equal for equal images, also between engines whose image stores number them differently (config or manifest)."""
    config = image.get("Config") or {}
    content = [
        image.get("Architecture"),
        (image.get("RootFS") or {}).get("Layers"),
        [config.get(name) or [] for name in ("Entrypoint", "Cmd", "Env")],
    ]
    return "sha256:" + hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()


def read_record(name, folder=RECORDS):
    """Returns what was recorded of the image of that name: {"name", "id", "digests", "size_bytes", "proven", ...}."""
    try:
        with open(_record_path(name, folder), encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return {}


def write_record(name, image, proven=(), folder=RECORDS):
    """Records the image; proven: the digest or ID that somebody asked for and that this image was shown to have."""
    before = read_record(name, folder)
    kept = before.get("proven", []) if before.get("id") == image["Id"] else []
    told = {"name": name, "id": image["Id"], "digests": digests(image), "size_bytes": image.get("Size")}
    record = {**told, "proven": sorted({*kept, *digests(image), *proven} - {None})}
    if {**before, **record} == before:
        return before
    record["recorded"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path = _record_path(name, folder)
    # An image that cannot be recorded is there all the same.
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=2)
        os.replace(path + ".new", path)
    return record


def _record_path(name, folder):
    return os.path.join(folder, re.sub(r"[^A-Za-z0-9_.-]+", "_", name) + ".json")

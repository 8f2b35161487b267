# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an archive made by ``docker save`` holds, read before anything is loaded. Private to the collection.

Format: a tar file with manifest.json, a list of {"Config": file, "RepoTags": [...], "Layers": [file, ...]}.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections import namedtuple

from ._job import JobError

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

# id: digest of the image's config, which is the image ID (but for engines with the image store of containerd).
Content = namedtuple("Content", ["tags", "id", "layers", "has_compressed_layers"])


def compression(path):
    """Returns the name of the compression, None for a plain tar file."""
    with open(path, "rb") as stream:
        return _compression_of(stream.read(6))


def read_archive(path):
    """Returns [Content], one for each image of a plain archive. Raises JobError where it is none or is cut off."""
    try:
        with tarfile.open(path, "r:") as archive:
            members = {member.name: member for member in archive}
            if "manifest.json" not in members:
                raise JobError(
                    f"{path} has no manifest.json, so it was not made by docker save.",
                    "docker save --output FILE IMAGE; or, of an OCI archive: "
                    "skopeo copy oci-archive:FILE docker-archive:NEW:IMAGE",
                )
            _check_is_whole(path, archive)
            return [_content(archive, members, entry) for entry in json.load(archive.extractfile("manifest.json"))]
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path} is no archive of docker save, or only part of one: {error}", f"ls -l {path}") from error


def _check_is_whole(path, archive):
    """Two blocks of zeros end a tar file; one that was cut off lacks them."""
    with open(path, "rb") as stream:
        stream.seek(archive.offset)
        if not stream.read(512):
            raise JobError(f"{path} is only part of an archive: its end is missing.", f"ls -l {path}; copy it again")


def _content(archive, members, entry):
    config = archive.extractfile(members[entry["Config"]]).read()
    layers = [archive.extractfile(members[name]).read(6) for name in entry.get("Layers") or []]
    return Content(
        tags=entry.get("RepoTags") or [],
        id="sha256:" + hashlib.sha256(config).hexdigest(),
        layers=json.loads(config)["rootfs"]["diff_ids"],
        has_compressed_layers=any(_compression_of(head) for head in layers),
    )


def _compression_of(head):
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)

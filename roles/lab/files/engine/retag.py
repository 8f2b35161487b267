# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives the image in a `docker save` archive another tag: docker save IMAGE | retag.py NAME:TAG > ARCHIVE

`docker tag` would do it as well, but could take that tag away from a real image on the same Docker engine.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile


def retag(manifest: bytes, tag: str) -> bytes:
    """Returns manifest.json with the tag in place of the image's own."""
    images = json.loads(manifest)
    return json.dumps([{**image, "RepoTags": [tag]} for image in images]).encode()


def main() -> None:
    tag = sys.argv[1]
    with (
        tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as source,
        tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if member.name in ("repositories", "index.json"):
                continue  # both only repeat the old tag
            if member.name == "manifest.json" and content is not None:
                text = retag(content.read(), tag)
                member.size = len(text)
                content = io.BytesIO(text)
            target.addfile(member, content)


if __name__ == "__main__":
    main()

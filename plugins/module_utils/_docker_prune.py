# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Old images of a pinned repository that nothing needs any more. Private to the collection."""

from __future__ import annotations

import glob
import json
import re

from . import _docker_image as images
from ._docker_engine import DockerError

# The plan that runs, those to which a rollback returns, and the IDs of their images.
PLANS = (
    "/etc/vllm/*/plan.json",
    "/var/lib/vllm/*/releases/*/plan.json",
    "/var/lib/vllm/*/releases/*/release.json",
)

_ID = re.compile(r"sha256:[0-9a-f]{64}")


def removable(engine, reference, keep=(), patterns=PLANS):
    """Returns [{"id", "names", "size_bytes"}] of the images that a prune removes.

    These are images whose names are all of the reference's repository, here or in a mirror. What stays: the image that
    the reference means, those of any container, running or not, those of the plans on the host, and those in ``keep``.
    Raises ValueError where a plan cannot be read: nobody knows then what a rollback needs.
    """
    needed = {container["ImageID"] for container in engine.get("/containers/json", all="1")}
    names, ids = planned(patterns)
    needed |= ids
    names |= {reference.tagged, *keep}
    found = []
    for image in engine.get("/images/json"):
        of_image = _names(image)
        is_ours = of_image and all(_is_ours(name, reference) for name in of_image)
        is_needed = image["Id"] in needed or any(_means(name, of_image) for name in names)
        if is_ours and not is_needed:
            found.append({"id": image["Id"], "names": of_image, "size_bytes": image.get("Size")})
    return sorted(found, key=lambda image: image["names"])


def planned(patterns=PLANS):
    """Returns (names, IDs and digests) of the images in the plans on the host."""
    names, ids = set(), set()
    for pattern in patterns:
        for path in glob.glob(pattern):
            try:
                with open(path, encoding="utf-8") as stream:
                    text = stream.read()
                names.add(str(json.loads(text)["image"]))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} cannot be read ({error}), so nobody knows which images it needs") from error
            ids.update(_ID.findall(text))
    return names, ids


def prune(engine, found):
    """Removes the images; returns (those that are gone, [why another is not])."""
    gone, problems = [], []
    for image in found:
        try:
            for name in image["names"]:
                # With the last tag of a repository its digests go, too.
                if engine.image(name):
                    engine.remove_image(name)
            gone.append(image)
        except DockerError as error:
            problems.append(f"{', '.join(image['names'])} stays: {error}")
    return gone, problems


def _names(image):
    names = (image.get("RepoTags") or []) + (image.get("RepoDigests") or [])
    return [name for name in names if "<none>" not in name]


def _is_ours(name, reference):
    repository = re.sub(r"(@.*|:[^:/]*)\Z", "", name)
    return repository == reference.repository or repository.endswith("/" + reference.path)


def _means(wanted, of_image):
    """Whether a name that must stay is one of the image's."""
    try:
        kept = images.parse(wanted)
    except ValueError:
        return wanted in of_image
    tags = {kept.tagged, *(name for name in of_image if name.endswith("/" + kept.tagged))}
    return bool(tags & set(of_image)) or any(kept.digest and name.endswith("@" + kept.digest) for name in of_image)

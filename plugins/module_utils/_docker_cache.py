# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of images on their way to a host: they grow part by part, and go when they are loaded. Private."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os

from . import _docker_space as space
from . import _transfer as transfer
from ._job import JobError

FOLDER = "/var/cache/vllm/images"
# The name under which a host offers an archive.
OFFERED = "image.tar"


def path_of(key):
    """Returns where the archive of that key lies."""
    return os.path.join(FOLDER, os.path.basename(key) + ".tar")


def receive(engine, key, size, part=None, offset=0, sha256=None):
    """Adds a part of an archive, and returns how many bytes of it are here. Raises JobError.

    A part that does not fit to what is here (its connection broke off, it was sent twice) changes nothing.
    """
    path = path_of(key)
    try:
        os.makedirs(FOLDER, mode=0o755, exist_ok=True)
        with open(path, "ab") as archive:
            if archive.tell() > size:
                archive.truncate(0)
            here = archive.tell()
            if part is None:
                _require_room(engine, size, here, path)
            elif offset == here:
                here += _append(archive, part, sha256)
            return here
    except OSError as error:
        raise failure(path, error) from error


def fetch(engine, offer, report):
    """Brings the archive that another host offers, and returns its path. What is here of it is kept."""
    path, size = path_of(offer["key"]), offer["size"]
    try:
        os.makedirs(FOLDER, mode=0o755, exist_ok=True)
        done = [_size(path)]
        _require_room(engine, size, done[0], path)

        def advance(count):
            done[0] += count
            report({"phase": "copying from " + offer["host"], "done_bytes": done[0], "total_bytes": size})

        advance(0)
        source = transfer.Source(offer)
        transfer.fetch_file(source, {"path": OFFERED, "size": size}, path, advance)
        return path
    except transfer.TransferError as error:
        raise JobError(str(error), "run the same command again") from error
    except OSError as error:
        raise failure(path, error) from error


@contextlib.contextmanager
def removing(path):
    """Removes the file afterwards, whatever happens: it is large, and was only for this."""
    try:
        yield
    finally:
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)


def failure(path, error):
    """Returns a JobError that says why a file could not be written."""
    folder = os.path.dirname(path)
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"{reason}: the disk has {space.gib(space.free_bytes(folder))} free"
    return JobError(
        f"{path} cannot be written: {reason}. Engines that run go on serving; nothing was changed.", f"df -h {folder}"
    )


def _append(archive, part, sha256):
    with open(part, "rb") as stream:
        content = stream.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        return 0
    archive.write(content)
    return len(content)


def _require_room(engine, size, here, path):
    load = space.bytes_to_load(size, is_compressed=False, has_compressed_layers=False)
    wanted = [(FOLDER, size - here), (space.image_root(engine), load)]
    space.require_room(wanted, f"bringing {os.path.basename(path)} and loading it")


def _size(path):
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0

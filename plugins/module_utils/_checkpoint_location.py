# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a checkpoint's files are, whatever put them there. Private to the collection gpufleet.vllm.

A plain directory; a Hugging Face cache (``models--org--name/{blobs,refs,snapshots}``); a ModelScope folder, which is a
plain directory with ``.msc`` and ``.mdl`` beside the files.
"""

from __future__ import annotations

import os

UNFINISHED_SUFFIXES = (".incomplete", ".part", ".tmp", ".aria2", ".crdownload")
"""Files that a download leaves behind when it did not end."""


class Location:
    """A checkpoint's directory.

    ``path``: the directory with config.json; ``layout``: ``directory``, ``huggingface_cache`` or ``modelscope``;
    ``revision``: of the Hugging Face snapshot; ``unfinished``: files of a download that did not end.
    """

    def __init__(self, path, layout, revision=None, unfinished=()):
        self.path = path
        self.layout = layout
        self.revision = revision
        self.unfinished = sorted(unfinished)


def locate(path):
    """The location of the checkpoint at ``path``.

    Raises: ValueError where there is no such directory, or a Hugging Face cache folder has no snapshot.
    """
    if not os.path.isdir(path):
        raise ValueError(
            f"{path} is not a directory. A checkpoint is a directory with config.json; look with: ls -la {path}"
        )
    if os.path.isdir(os.path.join(path, "snapshots")):
        return _huggingface_cache(path)
    layout = "modelscope" if _is_modelscope(path) else "directory"
    return Location(path, layout, unfinished=unfinished_files(path))


def _is_modelscope(path):
    return any(os.path.exists(os.path.join(path, name)) for name in (".msc", ".mdl", ".mv", "._____temp"))


def _huggingface_cache(path):
    snapshots = os.path.join(path, "snapshots")
    revision = _main_revision(path)
    if revision is None or not os.path.isdir(os.path.join(snapshots, revision)):
        revision = _newest(snapshots)
    if revision is None:
        raise ValueError(
            "{} is a Hugging Face cache folder without a snapshot: nothing was downloaded. Fetch it again: "
            "hf download {}".format(path, os.path.basename(path).replace("models--", "").replace("--", "/"))
        )
    return Location(
        os.path.join(snapshots, revision), "huggingface_cache", revision, unfinished_files(os.path.join(path, "blobs"))
    )


def _main_revision(path):
    try:
        with open(os.path.join(path, "refs", "main"), encoding="utf-8") as handle:
            return handle.read().strip() or None
    except OSError:
        return None


def _newest(directory):
    found = [name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
    return max(found, key=lambda name: os.path.getmtime(os.path.join(directory, name))) if found else None


def unfinished_files(path):
    """What a broken download left in a directory or in the download folders inside it."""
    found = []
    for folder in (path, os.path.join(path, ".cache", "huggingface", "download"), os.path.join(path, "._____temp")):
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            if name.endswith(UNFINISHED_SUFFIXES) or folder.endswith("._____temp"):
                found.append(os.path.join(folder, name))
    return found

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Proves a copy of a checkpoint against a manifest. Private to the collection gpufleet.vllm.

A manifest is the output of ``sha256sum``, or JSON: ``[{"path", "size", "sha256"}]``, alone or under ``files``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

from ._checkpoint_files import finding

CHUNK = 8 * 1024 * 1024
_SHA256SUM = re.compile(r"^([0-9a-fA-F]{64})[ \t]+\*?(.+)$")
_BLOB = re.compile(r"^[0-9a-f]{64}$")


def read_manifest(path):
    """[{"path", "size" (or None), "sha256" (or None)}] of a manifest.

    Raises: ValueError where the file cannot be read or is neither format.
    """
    try:
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"The manifest {path} cannot be read: {error}.") from None
    if text.lstrip()[:1] in ("[", "{"):
        return _from_json(path, text)
    return _from_sha256sum(path, text)


def _from_json(path, text):
    try:
        content = json.loads(text)
        entries = content["files"] if isinstance(content, dict) else content
        return [{"path": entry["path"], "size": entry.get("size"), "sha256": entry.get("sha256")} for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"The manifest {path} is not a list of objects with path, size and sha256; write one with: sha256sum * > "
            "manifest"
        ) from None


def _from_sha256sum(path, text):
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _SHA256SUM.match(line)
        if not found:
            raise ValueError(f"Line {number} of the manifest {path} is not of sha256sum's form: {line!r}.")
        name = found.group(2)
        entries.append(
            {"path": name[2:] if name.startswith("./") else name, "size": None, "sha256": found.group(1).lower()}
        )
    return entries


def manifest_of_cache(directory):
    """A manifest from a Hugging Face snapshot itself: large files are links to blobs named by their sha256."""
    entries = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        blob = os.path.basename(os.path.realpath(path))
        if os.path.islink(path) and _BLOB.match(blob):
            entries.append({"path": name, "size": None, "sha256": blob})
    return entries


def sha256_of(path, advance=None):
    """The sha256 of a file; ``advance`` is called with the bytes of every chunk."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for chunk in iter(lambda: handle.read(CHUNK), b""):
            digest.update(chunk)
            if advance:
                advance(len(chunk))
    return digest.hexdigest()


class Bytes:
    """Counts bytes from several threads and reports them under the name of a phase."""

    def __init__(self, report, phase, total, done=0):
        self._report, self._phase, self._total, self._done = report, phase, total, done
        self._lock = threading.Lock()

    def advance(self, size):
        with self._lock:
            self._done += size
            self._report({"phase": self._phase, "done_bytes": self._done, "total_bytes": self._total})


def verify(directory, manifest, with_hash, report=None, workers=4):
    """Holds a directory against a manifest.

    Args: report: called with progress, as a job's, as hashing advances; workers: files hashed at once.
    Returns: (findings, files that were hashed and are right).
    """
    findings = [problem for problem in (_presence_problem(directory, entry) for entry in manifest) if problem]
    if not with_hash:
        return findings, 0
    wanted = [e for e in manifest if e["sha256"] and os.path.isfile(os.path.join(directory, e["path"]))]
    total = sum(os.path.getsize(os.path.join(directory, entry["path"])) for entry in wanted)
    progress = Bytes(report or (lambda told: None), "hashing", total)
    with ThreadPoolExecutor(max_workers=workers) as pool:
        problems = list(pool.map(lambda entry: _hash_problem(directory, entry, progress), wanted))
    findings += [problem for problem in problems if problem]
    return findings, sum(1 for problem in problems if not problem)


def _presence_problem(directory, entry):
    path = os.path.join(directory, entry["path"])
    if not os.path.exists(path):
        return finding(
            "corrupted_weights",
            "{} is missing".format(entry["path"]),
            f"The manifest names it; {path} is not there.",
            "Copy {} again".format(entry["path"]),
        )
    size = os.path.getsize(path)
    if entry["size"] is not None and int(entry["size"]) != size:
        return finding(
            "corrupted_weights",
            "{} has the wrong size".format(entry["path"]),
            "{} has {} bytes, the manifest says {}.".format(path, size, entry["size"]),
            "Copy {} again".format(entry["path"]),
        )
    return None


def _hash_problem(directory, entry, progress):
    path = os.path.join(directory, entry["path"])
    try:
        found = sha256_of(path, progress.advance)
    except OSError as error:
        return finding("mount_permissions", "{} cannot be read".format(entry["path"]), str(error), f"chmod a+r {path}")
    if found == entry["sha256"].lower():
        return None
    return finding(
        "corrupted_weights",
        "{} is not the file that the manifest means".format(entry["path"]),
        "sha256 of {} is {}, expected {}.".format(path, found, entry["sha256"]),
        "Copy {} again".format(entry["path"]),
    )

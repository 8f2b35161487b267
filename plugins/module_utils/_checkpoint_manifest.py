# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manifest of a checkpoint, and its record on disk. Private to the collection gpufleet.vllm.

A record is JSON beside the checkpoint (``/srv/models/Qwen3-8B.manifest.json``), or in the state folder where that
place cannot be written, as on a read-only mount::

    {"path": directory, "digest": sha256 over all files or None, "total_bytes": int,
     "files": [{"path", "size", "sha256" or None, "mtime_ns"}],
     "source": where the files came from or {}, "disk": what was measured (see ``_checkpoint_disk``) or {}}

A file is hashed once: as long as its size and its time of modification stay, its sha256 does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os

from ._checkpoint_hash import Bytes, sha256_of
from ._checkpoint_location import UNFINISHED_SUFFIXES
from ._transfer import in_parallel

SUFFIX = ".manifest.json"


def state_folder(name):
    """Where this collection keeps its state of one kind: for root below /var/lib/vllm, else below the user's cache."""
    if os.geteuid() == 0:
        return os.path.join("/var/lib/vllm", name)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "gpufleet-vllm", name)


def list_files(directory):
    """[{"path", "size", "mtime_ns"}] of the files of a checkpoint, links followed.

    Neither hidden files (those of git and of downloads) nor what a broken download left behind.
    Raises: OSError where a file or folder cannot be read.
    """
    found = []
    for folder, folders, names in os.walk(directory, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "._")))
        for name in sorted(names):
            if name.startswith(".") or name.endswith(UNFINISHED_SUFFIXES):
                continue
            path = os.path.join(folder, name)
            status = os.stat(path)
            found.append(
                {
                    "path": os.path.relpath(path, directory),
                    "size": status.st_size,
                    "mtime_ns": status.st_mtime_ns,
                }
            )
    return sorted(found, key=lambda entry: entry["path"])


def _raise(error):
    raise error


def digest_of(files):
    """One sha256 for all files, by their names and hashes; None where a hash is not known."""
    if not files or not all(entry["sha256"] for entry in files):
        return None
    lines = sorted("{}  {}\n".format(entry["sha256"], entry["path"]) for entry in files)
    return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def make_record(directory, files, source=None, disk=None):
    """A record (see the module) of these files."""
    return {
        "path": directory,
        "digest": digest_of(files),
        "total_bytes": sum(entry["size"] for entry in files),
        "files": files,
        "source": source or {},
        "disk": disk or {},
    }


def read_record(directory):
    """The record of a checkpoint as it is now: a file that changed has lost its sha256.

    ``changed`` lists the files that had one. A directory without a record, or none at all, gives one without hashes.
    """
    known = load_record(directory)
    hashes = {entry["path"]: entry for entry in known.get("files", [])}
    files = list_files(directory) if os.path.isdir(directory) else []
    changed = []
    for entry in files:
        before = hashes.get(entry["path"], {})
        same = (before.get("size"), before.get("mtime_ns")) == (entry["size"], entry["mtime_ns"])
        entry["sha256"] = before.get("sha256") if same else None
        if before.get("sha256") and not same:
            changed.append(entry["path"])
    gone = [path for path in hashes if hashes[path].get("sha256") and path not in {entry["path"] for entry in files}]
    record = make_record(directory, files, known.get("source"), known.get("disk"))
    return dict(record, changed=sorted(changed + gone))


def load_record(directory):
    """The record as it was written, or {}."""
    for path in _places(directory):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="utf-8") as handle:
                record = json.load(handle)
            if isinstance(record, dict) and record.get("path") == directory:
                return record
    return {}


def _places(directory):
    name = hashlib.sha256(directory.encode("utf-8")).hexdigest()[:16]
    elsewhere = f"{os.path.basename(directory)}-{name}{SUFFIX}"
    return [directory + SUFFIX, os.path.join(state_folder("manifests"), elsewhere)]


def write_record(record):
    """Writes a record beside the checkpoint or, where that cannot be written, into the state folder.

    Nothing depends on it but time, so a disk that takes it at neither place is no error.
    """
    kept = {name: value for name, value in record.items() if name != "changed"}
    for path in _places(record["path"]):
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            temporary = f"{path}.{os.getpid()}.new"
            with open(temporary, "w", encoding="utf-8") as handle:
                json.dump(kept, handle, indent=1, sort_keys=True)
                handle.write("\n")
            os.replace(temporary, path)
            return path
    return None


def remove_record(directory):
    """Forgets a checkpoint."""
    for path in _places(directory):
        with contextlib.suppress(OSError):
            os.unlink(path)


def make_manifest(directory, report, source=None):
    """The record of a checkpoint with every file hashed; what was hashed before and has not changed is not read.

    Args: report: called with progress, as a job's. source: noted in the record.
    """
    record = read_record(directory)
    unknown = [entry for entry in record["files"] if not entry["sha256"]]
    if not unknown and (source is None or source == record["source"]):
        return record
    counter = Bytes(report, "hashing", sum(entry["size"] for entry in unknown))

    def hash_one(entry):
        entry["sha256"] = sha256_of(os.path.join(directory, entry["path"]), counter.advance)

    in_parallel(hash_one, unknown)
    record = make_record(directory, record["files"], source or record["source"], record["disk"])
    write_record(record)
    return dict(record, changed=[])

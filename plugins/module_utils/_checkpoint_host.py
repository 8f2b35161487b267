# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules checkpoint and checkpoint_source do. Private to the collection gpufleet.vllm.

A *source* is where a checkpoint comes from: {} (it must be there), {"path": DIRECTORY, "on": PLACE} or
{"repository", "revision", "hub", "on": PLACE}; a place is ``host``, ``controller`` or an inventory host.
"""

from __future__ import annotations

import errno
import hashlib
import os

from . import _checkpoint_disk as disks
from ._checkpoint import describe_checkpoint
from ._checkpoint_directory import python_files
from ._checkpoint_hub import OUTLINE, Download, directory_of
from ._checkpoint_manifest import make_manifest, make_record, read_record, write_record
from ._checkpoint_place import (
    Copy,
    begin,
    bring_from_directory,
    bring_from_host,
    check_space,
    end_what_was_cut_short,
    finish,
    of_the_disk,
    previous_of,
    refuse_incomplete,
    wrong_files,
)
from ._job import JobError

SOURCE = {
    "type": "dict",
    "options": {
        "path": {"type": "str"},
        "repository": {"type": "str"},
        "revision": {"type": "str"},
        "hub": {"type": "str", "choices": ["huggingface", "modelscope"], "default": "huggingface"},
        "directory": {"type": "path"},
        "on": {"type": "str", "default": "host"},
        "transfer_address": {"type": "str"},
        "transfer_port": {"type": "int", "default": 0},
    },
    "required_together": [("repository", "revision")],
    "mutually_exclusive": [("path", "repository")],
}
"""The option of both modules, documented in doc_fragments/checkpoint.py."""


def origin_of(source):
    """What a record says of where a checkpoint came from; equal origins with a commit mean equal files."""
    if source.get("repository"):
        return Download(source).origin
    return {"path": source["path"], "on": source.get("on") or "host"} if source.get("path") else {}


class Directory:
    """A source that is a directory of the host or controller that this runs on."""

    def __init__(self, source):
        self.origin = origin_of(source)
        self.directory = directory_of(os.path.expanduser(source["path"]))

    def have(self, report):
        refuse_incomplete(self.directory, self.directory)
        return dict(make_manifest(self.directory, report), source=self.origin)

    def outline(self, report):
        return self.directory


def source_here(source, python=None, token=None):
    """The source, on the host or controller that this runs on. Raises: JobError where there is none."""
    return Download(source, python, token) if source.get("repository") else Directory(source)


def describe(directory):
    """describe_checkpoint's dict. Raises: JobError.

    An outline without even the headers of the weights (ModelScope gives none) lacks no files: they are yet to come.
    """
    try:
        described = describe_checkpoint(directory)
    except ValueError as error:
        raise JobError(str(error)) from None
    if directory.endswith(OUTLINE) and described["weights"]["source"] == "config":
        findings = [found for found in described["findings"] if found["class"] != "corrupted_weights"]
        complete = not any(found["severity"] == "error" for found in findings)
        warning = "The hub tells no headers of the weights: they are counted from config.json until they are here."
        described.update(findings=findings, complete=complete, would_start_offline=complete)
        described["warnings"] = [*described["warnings"], warning]
    return described


def manifest_without_hashing(place):
    """The record of a source as far as it is known without reading its files; None where it is still to be loaded."""
    if isinstance(place, Download) and not place.is_complete():
        return None
    return dict(read_record(place.directory), source=place.origin)


# --- the host that gets it


def is_same(record, wanted):
    """Whether a checkpoint in place is the wanted one; sizes decide for files whose hash is not known there."""
    if wanted["digest"] and record["digest"]:
        return wanted["digest"] == record["digest"]
    return [(entry["path"], entry["size"]) for entry in record["files"]] == [
        (entry["path"], entry["size"]) for entry in wanted["files"]
    ]


def is_pinned_here(path, source):
    """Whether the very commit of a hub that is wanted is in place, verified; then its source need not be asked."""
    record = read_record(path)
    return bool(source.get("repository") and record["digest"] and record["source"] == origin_of(source))


def hash_in_place(path, report):
    """The work of a job: hashes a checkpoint that is where it must be."""
    make_manifest(path, report)
    return {"changed": False}


def job_key(kind, path):
    """The key of the one job that may work on a path; directories with equal names have different ones."""
    return "{}-{}-{}".format(kind, os.path.basename(path), hashlib.sha256(path.encode("utf-8")).hexdigest()[:8])


def copy_from_directory(path, place, report):
    """The work of a job: has the checkpoint of a source on the same host at ``path``."""
    wanted = place.have(report)
    if place.directory == path:
        return {"changed": False}
    return _copy(
        path,
        wanted,
        report,
        lambda copy, entries: bring_from_directory(
            copy, entries, place.directory, report, link=isinstance(place, Download)
        ),
    )


def copy_from_host(path, wanted, offer, report):
    """The work of a job: has the checkpoint that another host offers at ``path``."""
    return _copy(path, wanted, report, lambda copy, entries: bring_from_host(copy, entries, offer, report))


def _copy(path, wanted, report, bring):
    end_what_was_cut_short(path, wanted["digest"])
    before = read_record(path)
    if before["digest"] == wanted["digest"]:
        return {"changed": False}
    copy = Copy(path, wanted)
    entries = begin(copy)
    bring(copy, entries)
    return {"changed": True, "previous": finish(copy), "before": _summary(before)}


def _summary(record):
    return {"digest": record["digest"], "total_bytes": record["total_bytes"], "files": len(record["files"])}


def begin_push(path, wanted):
    """Makes ready for files that the controller brings; returns where to, and what is to come from which byte on.

    ``partial`` is None where another run of the same playbook, or the last one's remains, has brought it meanwhile.
    """
    end_what_was_cut_short(path, wanted["digest"])
    if read_record(path)["digest"] == wanted["digest"]:
        return {"partial": None, "missing": []}
    copy = Copy(path, wanted)
    entries = begin(copy)
    for entry in entries:
        os.makedirs(os.path.dirname(copy.target(entry)), exist_ok=True)
    missing = [dict(path=e["path"], size=e["size"], have_bytes=copy.have_bytes(e)) for e in entries]
    return {"partial": copy.partial, "missing": missing}


def append(path, wanted, name, offset, piece):
    """Adds a piece of a file that the controller has brought; False where another run has brought it meanwhile."""
    copy = Copy(path, wanted)
    entry = next(entry for entry in wanted["files"] if entry["path"] == name)
    if copy.have_bytes(entry) != offset:
        return False
    try:
        with open(piece, "rb") as reading, open(copy.target(entry), "ab") as writing:
            writing.write(reading.read())
        os.unlink(piece)
        return True
    except FileNotFoundError:
        # The other run has finished: what was partial is in its place.
        return False
    except OSError as error:
        raise of_the_disk(error, copy) from None


def abandon(path, wanted):
    """What the controller does when the disk became full under its copy. Raises: JobError, always."""
    raise of_the_disk(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Copy(path, wanted))


def finish_push(path, wanted, report):
    """The work of a job: verifies what the controller has brought, and puts it in its place when it is right."""
    copy = Copy(path, wanted)
    missing = wrong_files(copy, wanted["files"], report)
    if missing:
        return {"changed": False, "missing": sorted(entry["path"] for entry in missing)}
    before = read_record(path)
    return {"changed": True, "previous": finish(copy), "before": _summary(before)}


def would_copy(path, wanted):
    """What check mode tells of a copy. Raises: JobError where the disk has no room for it."""
    if wanted is None:
        return "would be downloaded and copied"
    if wanted["digest"]:
        check_space(Copy(path, wanted))
    return "{} files, {:.2f} GiB would be copied".format(len(wanted["files"]), wanted["total_bytes"] / 1024.0**3)


# --- what is told of it


def facts(path, may_write=True):
    """(facts of the checkpoint in place, warnings). The disk is measured once for each copy."""
    record = read_record(path)
    if not record["disk"] and record["files"]:
        record = dict(record, disk=disks.measure(path, record["files"]))
        if may_write:
            write_record(record)
    disk, size = record["disk"], record["total_bytes"]
    told = {
        "path": path,
        "manifest_digest": record["digest"],
        "bytes": size,
        "files": len(record["files"]),
        "source": record["source"],
        "disk": disk,
        "load_seconds_estimate": disks.load_seconds(disk, size),
        "python_files": python_files(path),
        "previous": previous_of(path),
    }
    warnings = [disks.slowness(disk, path, size)] if disk else []
    if record["changed"]:
        warnings.append("{}: changed since they were verified: {}.".format(path, ", ".join(record["changed"][:5])))
    return told, [warning for warning in warnings if warning]


def absent_facts(path, wanted):
    """Facts of a checkpoint that check mode did not copy."""
    record = wanted or make_record(path, [])
    return {
        "path": path,
        "manifest_digest": record["digest"],
        "bytes": record["total_bytes"],
        "files": len(record["files"]),
        "source": record["source"],
        "disk": {},
        "load_seconds_estimate": None,
        "python_files": [
            dict(path=e["path"], sha256=e["sha256"]) for e in record["files"] if e["path"].endswith(".py")
        ],
        "previous": [],
    }

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts a checkpoint in its place on a host, whole or not at all. Private to the collection gpufleet.vllm.

A copy grows in ``PATH.partial-DIGEST``. Only when every file of it has the size and the sha256 that the manifest says
does it take the place of what is at PATH, in one step; what was there is kept in ``PATH.previous-DIGEST``. So a
running engine, which has the directory itself mounted, keeps what it has, and a copy that breaks off changes nothing
and goes on where it stopped.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time

from ._checkpoint import describe_checkpoint
from ._checkpoint_hash import Bytes, sha256_of
from ._checkpoint_manifest import (
    SUFFIX,
    list_files,
    load_record,
    make_record,
    read_record,
    remove_record,
    write_record,
)
from ._job import JobError
from ._transfer import Source, TransferError, fetch_file, in_parallel

CHUNK = 8 * 1024 * 1024
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class Copy:
    """A copy on its way: ``partial`` grows until it is what ``wanted``, a record, says."""

    def __init__(self, path, wanted):
        self.path = path
        self.wanted = wanted
        self.partial = "{}.partial-{}".format(path, wanted["digest"][:12])

    def target(self, entry):
        return os.path.join(self.partial, entry["path"])

    def have_bytes(self, entry):
        """Bytes of a file that are there already."""
        try:
            return min(os.path.getsize(self.target(entry)), entry["size"])
        except OSError:
            return 0


def begin(copy):
    """Makes the partial copy, with what need not be copied, and proves that the rest finds room.

    Returns: entries of the manifest that are still to be brought or verified.
    Raises: JobError where the disk has no room for them.
    """
    _refuse_paths_outside(copy.wanted["files"])
    _remove(path for path in _beside(copy.path, "partial") if path != copy.partial)
    check_space(copy)
    os.makedirs(copy.partial, mode=0o755, exist_ok=True)
    _remove_unwanted(copy)
    linked = _link_what_is_there(copy)
    return [entry for entry in copy.wanted["files"] if entry["path"] not in linked]


def _refuse_paths_outside(files):
    for entry in files:
        if os.path.isabs(entry["path"]) or ".." in entry["path"].split("/"):
            raise JobError("The manifest names {}, which is outside of the checkpoint.".format(entry["path"]))


def _remove_unwanted(copy):
    """Files that are no part of it, and those that are too long or shared with the checkpoint that is in use."""
    sizes = {entry["path"]: entry["size"] for entry in copy.wanted["files"]}
    for entry in list_files(copy.partial):
        path = os.path.join(copy.partial, entry["path"])
        if entry["size"] > sizes.get(entry["path"], -1) or os.stat(path).st_nlink > 1:
            os.unlink(path)


def _unchanged_files(copy):
    """{(size, sha256): path} of the files of the checkpoint in place."""
    record = read_record(copy.path)
    return {(entry["size"], entry["sha256"]): entry["path"] for entry in record["files"] if entry["sha256"]}


def _link_what_is_there(copy):
    """Files that the checkpoint in place has as well are the same file twice, not a copy; returns their names."""
    present, linked = _unchanged_files(copy), set()
    for entry in copy.wanted["files"]:
        same = present.get((entry["size"], entry["sha256"]))
        if same and _link(os.path.join(copy.path, same), copy.target(entry)):
            linked.add(entry["path"])
    return linked


def _link(source, target):
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.exists(target):
            os.unlink(target)
        os.link(os.path.realpath(source), target)
    except OSError:
        return False
    return True


def check_space(copy):
    """Raises JobError where the disk has no room for what is still to be copied."""
    present = _unchanged_files(copy)
    needed = sum(
        entry["size"] - copy.have_bytes(entry)
        for entry in copy.wanted["files"]
        if (entry["size"], entry["sha256"]) not in present
    )
    folder = existing_parent(copy.path)
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise JobError(
            f"The disk of {folder} has no room for {copy.path}: {_gib(needed)} are to be copied, {_gib(free)} are "
            f"free, {_gib(needed - free)} are missing. Nothing was changed.",
            f"df -h {folder}; du -xh --max-depth=1 {folder} | sort -h",
        )


def existing_parent(path):
    """The nearest folder above a path that exists."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _gib(size):
    return f"{size / 1024.0**3:.2f} GiB" if size >= 1 << 30 else f"{size / 1024.0**2:.1f} MiB"


# --- bringing the files


def bring_from_directory(copy, entries, directory, report, link=False):
    """Copies files from a directory of this host; ``link``: the files may be shared, because nobody changes them."""

    def one(entry, target, advance):
        source = os.path.join(directory, entry["path"])
        if link and not os.path.exists(target) and _link(source, target):
            advance(entry["size"])
        else:
            _copy_file(source, target, entry["size"], advance)

    _bring(copy, entries, one, report)


def _copy_file(source, target, size, advance):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as reading, open(target, "ab") as writing:
        reading.seek(writing.tell())
        while writing.tell() < size:
            chunk = reading.read(min(CHUNK, size - writing.tell()))
            if not chunk:
                raise JobError(
                    f"{source} became shorter while it was copied: it ends at {reading.tell()} of {size} bytes.",
                    "Wait until whatever writes there has ended, then run the same command again",
                )
            writing.write(chunk)
            advance(len(chunk))
        writing.flush()
        os.fsync(writing.fileno())


def bring_from_host(copy, entries, offer, report):
    """Fetches files from the host that offers them."""
    try:
        source = Source(offer)
        _bring(copy, entries, lambda entry, target, advance: fetch_file(source, entry, target, advance), report)
    except TransferError as error:
        raise JobError(str(error), "Run the same command again; it goes on where it stopped") from None


def _bring(copy, entries, bring_one, report):
    counter = Bytes(report, "copying", sum(e["size"] for e in entries), sum(copy.have_bytes(e) for e in entries))

    def one(entry):
        # What an interrupted copy left may be wrong (a machine that lost its power): then once more from the start.
        for _attempt in range(2):
            bring_one(entry, copy.target(entry), counter.advance)
            if sha256_of(copy.target(entry)) == entry["sha256"]:
                os.chmod(copy.target(entry), 0o644)
                return
            os.unlink(copy.target(entry))
        raise JobError(*_wrong(entry))

    try:
        in_parallel(one, entries)
    except OSError as error:
        raise of_the_disk(error, copy) from None


def _wrong(entry):
    return (
        "{} arrived twice with other bytes than its sha256 ({}) says. Nothing was changed.".format(
            entry["path"], entry["sha256"]
        ),
        "Hash it where it comes from: sha256sum {}. If that differs too, the file was changed or its disk is "
        "damaged there".format(entry["path"]),
    )


def of_the_disk(error, copy):
    """The JobError for a disk that failed. A full one troubles the whole host: what was copied is taken away again."""
    if error.errno not in _DISK_IS_FULL:
        return JobError(f"{error.filename or copy.partial}: {error.strerror or error}.", "journalctl -k -n 50")
    size = sum(copy.have_bytes(entry) for entry in copy.wanted["files"])
    shutil.rmtree(copy.partial, ignore_errors=True)
    folder = existing_parent(copy.path)
    return JobError(
        f"The disk of {folder} became full while {copy.path} was copied, after {_gib(size)} of "
        f"{_gib(copy.wanted['total_bytes'])}; there had been room for all of it, so something else wrote too. The "
        "partial copy was removed and everything is as it was before.",
        f"df -h {folder}; du -xh --max-depth=1 {folder} | sort -h",
    )


def wrong_files(copy, entries, report):
    """Hashes what somebody else has brought; removes what is wrong, and returns the entries that are still missing."""
    counter = Bytes(report, "verifying", sum(entry["size"] for entry in entries))
    missing = []

    def one(entry):
        target = copy.target(entry)
        if copy.have_bytes(entry) < entry["size"] or not os.path.exists(target):
            missing.append(entry)
        elif sha256_of(target, counter.advance) == entry["sha256"]:
            os.chmod(target, 0o644)
        else:
            os.unlink(target)
            missing.append(entry)

    in_parallel(one, entries)
    return missing


# --- taking the place


def finish(copy):
    """Puts a whole copy in its place; returns where the checkpoint that was there is kept, or None.

    Raises: JobError where what was copied would not load; then everything stays as it was.
    """
    refuse_incomplete(copy.partial, copy.path)
    new = make_record(copy.path, _with_times(copy), copy.wanted["source"])
    # Whoever finds the host after it lost its power between the two next steps knows by these which is which.
    write_record(dict(new, path=copy.partial))
    previous = None
    if os.path.isdir(copy.path):
        old = read_record(copy.path)
        previous = _name_of_previous(copy.path, old["digest"])
        write_record(dict(old, path=previous))
        _take_place(copy.partial, copy.path, previous)
    else:
        os.rename(copy.partial, copy.path)
    write_record(new)
    remove_record(copy.partial)
    return previous


def _name_of_previous(path, digest):
    previous = "{}.previous-{}".format(path, digest[:12] if digest else time.strftime("%Y%m%dT%H%M%S"))
    shutil.rmtree(previous, ignore_errors=True)
    return previous


def end_what_was_cut_short(path, digest):
    """Ends a change of places that a loss of power cut short: the new checkpoint is in place, its record is not."""
    partial = f"{path}.partial-{digest[:12]}"
    new = load_record(partial)
    if not new or not os.path.isdir(path) or not _is_what_is_there(new, path):
        return
    if os.path.isdir(partial):
        os.rename(partial, _name_of_previous(path, None))
    write_record(dict(new, path=path))
    remove_record(partial)


def _is_what_is_there(record, directory):
    stated = [(entry["path"], entry["size"], entry["mtime_ns"]) for entry in record["files"]]
    return stated == [(entry["path"], entry["size"], entry["mtime_ns"]) for entry in list_files(directory)]


def refuse_incomplete(directory, shown):
    """Raises JobError where a checkpoint would not load."""
    try:
        findings = describe_checkpoint(directory)["findings"]
    except ValueError as error:
        raise JobError(str(error)) from None
    errors = [found for found in findings if found["severity"] == "error"]
    if errors:
        told = "; ".join("{} ({})".format(found["title"], found["evidence"]) for found in errors[:3])
        raise JobError(f"{shown} would not load: {told}", errors[0]["next"])


def _with_times(copy):
    hashes = {entry["path"]: entry["sha256"] for entry in copy.wanted["files"]}
    return [dict(entry, sha256=hashes[entry["path"]]) for entry in list_files(copy.partial) if entry["path"] in hashes]


def _take_place(new, path, kept):
    """``new`` becomes ``path``, which becomes ``kept``; there is no moment without ``path`` where the kernel can."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 and renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(path), _RENAME_EXCHANGE) == 0:
        os.rename(new, kept)
    else:
        os.rename(path, kept)
        os.rename(new, path)


def previous_of(path):
    """Directories with earlier checkpoints of a path, the last one first."""
    return sorted(_beside(path, "previous"), key=lambda found: os.stat(found).st_ctime_ns, reverse=True)


def _beside(path, kind):
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        return []
    start = f"{name}.{kind}-"
    found = [os.path.join(folder, entry) for entry in os.listdir(folder) if entry.startswith(start)]
    return [entry for entry in found if os.path.isdir(entry) and not entry.endswith(SUFFIX)]


def restore(path, digest=None):
    """Puts the checkpoint that was replaced last, or the one with that manifest, in its place again.

    Returns: whether that changed anything. The one that had replaced it becomes a partial copy with nothing missing, so
    that it can be had again at once.
    Raises: JobError where the one with that manifest is not kept.
    """
    if not would_restore(path, digest):
        return False
    previous, new = _kept(path, digest), read_record(path)
    old = read_record(previous)
    aside = "{}.partial-{}".format(path, (new["digest"] or "unknown")[:12])
    if aside != previous:
        shutil.rmtree(aside, ignore_errors=True)
    write_record(dict(new, path=aside))
    _take_place(previous, path, aside)
    remove_record(previous)
    write_record(dict(old, path=path))
    return True


def would_restore(path, digest=None):
    """Whether restore() would change anything. Raises what that raises."""
    if digest and read_record(path)["digest"] == digest:
        return False
    return _kept(path, digest) is not None


def _kept(path, digest):
    """The directory that keeps what is asked for, or None where nothing is asked for and nothing was replaced."""
    if not digest:
        return next(iter(previous_of(path)), None)
    for directory in previous_of(path) + _beside(path, "partial"):
        if read_record(directory)["digest"] == digest:
            return directory
    raise JobError(
        f"{path} is not the checkpoint of that release (manifest {digest[:12]}), which is not kept beside it either. "
        "Nothing was changed.",
        f"ls -d {path}*; then deploy with the checkpoint_source of that time",
    )


def prune(path):
    """Removes earlier checkpoints and partial copies of a path; returns what was removed."""
    return _remove(_beside(path, "previous") + _beside(path, "partial"))


def _remove(directories):
    removed = []
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
        remove_record(directory)
        removed.append(directory)
    return removed

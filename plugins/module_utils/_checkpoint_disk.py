# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The disk that a checkpoint lies on, and how long an engine reads from it. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import os
import re
import time

NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs", "9p", "virtiofs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.mount-s3", "fuse.rclone", "fuse.blobfuse2", "fuse.weka", "wekafs", "panfs", "pvfs2", "orangefs",
)  # fmt: skip
"""Types in /proc/self/mountinfo whose files come over a network (virtiofs and 9p: from the hypervisor)."""

ROTATIONAL_BYTES_PER_SECOND = 300 * 1000 * 1000
"""What no single disk with platters sustains (Seagate's Exos X20: 285 MB/s, by its data sheet).

Virtual disks often call themselves rotational; one that reads faster is none.
"""

READ_BYTES = 256 * 1024 * 1024
READ_SECONDS = 2.0
READ_CHUNK = 8 * 1024 * 1024
SMALLEST_SAMPLE = 16 * 1024 * 1024
"""Less than that is over before its time can be told."""


def disk_of(path, mountinfo="/proc/self/mountinfo", block="/sys/dev/block"):
    """{"kind": "local|rotational|network|memory", "filesystem", "device", "mount"} of the disk that holds a path."""
    mount = _mount_of(os.path.realpath(path), mountinfo)
    return dict(mount, kind=_kind(mount, path, block))


def _mount_of(path, mountinfo):
    best = {"filesystem": "unknown", "device": "unknown", "mount": "/"}
    with open(mountinfo, encoding="utf-8", errors="replace") as handle:
        for line in handle:
            before, _separator, after = line.rstrip("\n").partition(" - ")
            fields, told = before.split(" "), after.split(" ")
            if len(fields) < 5 or len(told) < 2:
                continue
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), fields[4])
            if _is_below(path, point) and len(point) >= len(best["mount"]):
                best = {"filesystem": told[0], "device": told[1], "mount": point}
    return best


def _is_below(path, point):
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")


def _kind(mount, path, block):
    if mount["filesystem"] in NETWORK_FILE_SYSTEMS:
        return "network"
    if mount["filesystem"] in ("tmpfs", "ramfs"):
        return "memory"
    return "rotational" if _is_rotational(mount["device"], path, block) else "local"


def _is_rotational(device, path, block):
    """Some file systems (btrfs, zfs) show no device number of a disk: then the one of the device that was mounted."""
    for found in (path, device):
        try:
            status = os.stat(found)
        except OSError:
            continue
        number = status.st_dev if found == path else status.st_rdev
        for queue in ("queue", "../queue"):
            try:
                with open(f"{block}/{os.major(number)}:{os.minor(number)}/{queue}/rotational") as handle:
                    return handle.read().strip() == "1"
            except OSError:
                continue
    return False


def read_rate(path):
    """Bytes per second that the disk gives, by reading a part of the file at ``path``; None where that tells nothing.

    At most 256 MiB and about 2 seconds, past the kernel's cache as far as the kernel lets go of it: what a running
    engine has mapped stays in memory and reads faster than the disk.
    """
    size = min(os.path.getsize(path), READ_BYTES)
    if size < SMALLEST_SAMPLE:
        return None
    begin = time.monotonic()
    with open(path, "rb", buffering=0) as handle:
        os.posix_fadvise(handle.fileno(), 0, size, os.POSIX_FADV_DONTNEED)
        done = 0
        while done < size and time.monotonic() - begin < READ_SECONDS:
            chunk = handle.read(min(READ_CHUNK, size - done))
            if not chunk:
                break
            done += len(chunk)
    seconds = time.monotonic() - begin
    return int(done / seconds) if done >= min(size, SMALLEST_SAMPLE) or seconds >= READ_SECONDS else None


def measure(directory, files):
    """The disk under a checkpoint with ``read_bytes_per_second`` (None where its files are too small to tell)."""
    disk = disk_of(directory)
    largest = max(files, key=lambda entry: entry["size"], default=None)
    rate = read_rate(os.path.join(directory, largest["path"])) if largest else None
    return dict(disk, read_bytes_per_second=rate)


def load_seconds(disk, size):
    """Seconds that reading ``size`` bytes takes at the measured rate; None where none was measured."""
    rate = disk.get("read_bytes_per_second")
    return round(size / rate, 1) if rate else None


def slowness(disk, path, size):
    """A sentence on a disk that is slow and what it costs, or None. What is too small to measure costs nothing."""
    rate = disk.get("read_bytes_per_second")
    if disk.get("kind") not in ("network", "rotational") or not rate:
        return None
    if disk["kind"] == "rotational" and rate >= ROTATIONAL_BYTES_PER_SECOND:
        return None
    what = "a network file system" if disk["kind"] == "network" else "a rotational disk"
    return (
        f"{path} lies on {what} ({disk['filesystem']} {disk['device']} on {disk['mount']}), which reads "
        f"{rate / 1e6:.0f} MB/s (measured): every start of an engine reads its {size / 1024.0**3:.1f} GiB for about "
        f"{_duration(size / rate)}. Next: name a folder on a local NVMe or SSD as checkpoint, and this one as "
        "checkpoint_source."
    )


def _duration(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

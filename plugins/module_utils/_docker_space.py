# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the host's disks have room for an image. Private to the collection."""

from __future__ import annotations

import os

from ._job import JobError

_GIB = 1 << 30
# Unpacked bytes per compressed byte: vllm/vllm-openai takes 26.7 GiB unpacked (vllm#22377) and 11.2 GiB compressed
# (vllm#27154), and is the image that this collection is for.
_UNPACKED = 26.7 / 11.2
_OFFICIAL_COMPRESSED_BYTES = 11.2 * _GIB
# The image store of containerd has its own root, which the engine does not tell.
_CONTAINERD_ROOT = "/var/lib/containerd"


def image_root(engine):
    """Returns the folder in which the engine keeps its images."""
    info = engine.get("/info")
    status = dict(entry for entry in info.get("DriverStatus") or [] if len(entry) == 2)
    return _CONTAINERD_ROOT if "containerd" in status.get("driver-type", "") else info["DockerRootDir"]


def bytes_to_pull(compressed, path):
    """Returns what a pull takes: the downloaded layers and the unpacked ones lie side by side.

    compressed: bytes of the layers, None where the registry did not tell; path: the repository within its registry.
    Returns None where nothing is known of the image.
    """
    if compressed is None and path.endswith("vllm/vllm-openai"):
        compressed = _OFFICIAL_COMPRESSED_BYTES
    return None if compressed is None else int(compressed * (1 + _UNPACKED))


def bytes_to_load(size, is_compressed, has_compressed_layers):
    """Returns what loading an archive of that size takes: the engine unpacks the archive first, then the layers."""
    archive = size * _UNPACKED if is_compressed else size
    layers = archive * _UNPACKED if has_compressed_layers else archive
    return int(archive + layers)


def require_room(wanted, what):
    """Raises JobError where a disk is too full. wanted: [(folder, bytes or None)]; folders may share a disk."""
    disks = {}
    for folder, count in wanted:
        if count:
            place = _nearest_existing(folder)
            disk = disks.setdefault(os.stat(place).st_dev, {"folders": [], "place": place, "needed": 0})
            disk["folders"].append(folder)
            disk["needed"] += count
    for disk in disks.values():
        free = free_bytes(disk["place"])
        if free < disk["needed"]:
            raise JobError(
                f"The disk of {' and '.join(disk['folders'])} has {gib(free)} free, and {what} takes "
                f"{gib(disk['needed'])}. Nothing was changed: what runs goes on serving.",
                f"docker system df; df -h {disk['place']}. If less is needed, as the layers are there already: "
                "vllm_image_gib",
            )


def free_bytes(folder):
    """Bytes that are free on the disk of a folder, which need not exist yet."""
    disk = os.statvfs(_nearest_existing(folder))
    return disk.f_bavail * disk.f_frsize


def gib(count):
    return f"{count / _GIB:.1f} GiB"


def _nearest_existing(folder):
    folder = os.path.realpath(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the host that the GPU driver does not tell: PCI devices, memory, a directory's disk, processes' containers.

Private to the collection gpufleet.vllm. Everything is read from /proc and /sys, no process is started. Each function
takes root, the directory that stands for "/" in tests.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Mapping

NVIDIA_VENDOR = "0x10de"
#: PCI classes "VGA", "3D" and "display" controller.
GPU_CLASSES = ("0x0300", "0x0302", "0x0380")
#: PCI devices that are NVSwitches of the V100, A100 and H100 generations; for a host whose driver is not loaded.
NVSWITCH_DEVICES = ("0x1ac0", "0x1ac1", "0x1ac2", "0x1af1", "0x22a3")

#: File systems whose data come over a network (their names in /proc/self/mountinfo).
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "smb3",
        "smbfs",
        "virtiofs",
        "wekafs",
    ]
)

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_LXC = re.compile(r"/lxc(?:\.payload)?[./]([^/]+)")


def read_text(path: str) -> str | None:
    """Contents of a small file, stripped; None where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


# --- PCI ----------------------------------------------------------------------------------------------------------


def pci_gpus(root: str = "/") -> list[dict[str, Any]]:
    """NVIDIA GPUs on the PCI bus, with or without a driver: [{"pci_bus_id", "pci_device_id", "kernel_driver"}]."""
    return [
        {
            "pci_bus_id": os.path.basename(path),
            "pci_device_id": (read_text(os.path.join(path, "device")) or "")[2:].upper() + "10DE",
            "kernel_driver": _link_name(os.path.join(path, "driver")),
        }
        for path in _nvidia_devices(root)
        if (read_text(os.path.join(path, "class")) or "").startswith(GPU_CLASSES)
    ]


def nvswitch_count(root: str = "/") -> int:
    """Number of NVSwitches: as the driver lists them, else as the PCI bus does."""
    listed = glob.glob(os.path.join(root, "proc/driver/nvidia-nvswitch/devices/*"))
    devices = [read_text(os.path.join(path, "device")) for path in _nvidia_devices(root)]
    return len(listed) or len([device for device in devices if device in NVSWITCH_DEVICES])


def _nvidia_devices(root: str) -> list[str]:
    paths = sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*")))
    return [path for path in paths if read_text(os.path.join(path, "vendor")) == NVIDIA_VENDOR]


def _link_name(path: str) -> str | None:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def pci_locality(pci_bus_id: str | None, root: str = "/") -> dict[str, Any]:
    """{"numa_node", "cpu_affinity"} of a PCI device; None where the kernel knows none (it says -1)."""
    path = _pci_path(pci_bus_id, root)
    node = read_text(os.path.join(path, "numa_node")) if path else None
    return {
        "numa_node": int(node) if node and re.match(r"\d+$", node) else None,
        "cpu_affinity": (read_text(os.path.join(path, "local_cpulist")) if path else None) or None,
    }


def _pci_path(pci_bus_id: str | None, root: str) -> str | None:
    """The kernel writes four digits of the PCI domain, NVIDIA eight; Azure and GB10 use more than four."""
    match = re.match(r"([0-9A-Fa-f]+):(.+)$", pci_bus_id or "")
    if not match:
        return None
    name = f"{int(match.group(1), 16):04x}:{match.group(2).lower()}"
    path = os.path.join(root, "sys/bus/pci/devices", name)
    return path if os.path.isdir(path) else None


# --- driver files -------------------------------------------------------------------------------------------------


def kernel_module_version(root: str = "/") -> str | None:
    """Version of the NVIDIA kernel module that is loaded; None if none is."""
    text = read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else read_text(os.path.join(root, "sys/module/nvidia/version"))


def installed_library_version(root: str = "/") -> str | None:
    """Version of the NVIDIA driver library that is installed, by its file name; None if there is none."""
    for directory in ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/lib/*-linux-gnu/nvidia/current"):
        for path in sorted(glob.glob(os.path.join(root, directory, "libnvidia-ml.so.*.*")), reverse=True):
            return os.path.basename(path)[len("libnvidia-ml.so.") :]
    return None


def is_wsl(root: str = "/") -> bool:
    """Whether this is WSL2, where Windows owns the driver."""
    return "microsoft" in (read_text(os.path.join(root, "proc/sys/kernel/osrelease")) or "").lower()


def is_jetson(root: str = "/") -> bool:
    """Whether this is an NVIDIA Tegra board."""
    return "nvidia,tegra" in (read_text(os.path.join(root, "proc/device-tree/compatible")) or "")


def unit_is_active(unit: str, root: str = "/") -> bool:
    """Whether systemd runs a service, by its control group (v2 or v1), without starting systemctl."""
    groups = ("sys/fs/cgroup/system.slice", "sys/fs/cgroup/systemd/system.slice")
    return any(os.path.isdir(os.path.join(root, group, unit)) for group in groups)


def has_systemd(root: str = "/") -> bool:
    """Whether systemd runs this host (sd_booted(3) looks for the same directory)."""
    return os.path.isdir(os.path.join(root, "run/systemd/system"))


def is_running(program: str, root: str = "/") -> bool:
    """Whether a process of this name runs, in a container perhaps; the kernel keeps 15 characters of a name."""
    return any(read_text(path) == program[:15] for path in glob.glob(os.path.join(root, "proc/[0-9]*/comm")))


# --- memory -------------------------------------------------------------------------------------------------------


def memory(root: str = "/") -> dict[str, int | None]:
    """RAM and shared memory of the host in MiB."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text(os.path.join(root, "proc/meminfo")) or "", re.MULTILINE))
    return {
        "memory_total_mib": _kib_to_mib(fields.get("MemTotal")),
        "memory_available_mib": _kib_to_mib(fields.get("MemAvailable")),
        "swap_total_mib": _kib_to_mib(fields.get("SwapTotal")),
        "shm_size_mib": _file_system_mib(os.path.join(root, "dev/shm"), "f_blocks"),
        "shm_free_mib": _file_system_mib(os.path.join(root, "dev/shm"), "f_bavail"),
    }


def _kib_to_mib(text: str | None) -> int | None:
    return int(text) // 1024 if text else None


def _file_system_mib(path: str, field: str) -> int | None:
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return int(getattr(status, field)) * status.f_frsize >> 20


# --- disk ---------------------------------------------------------------------------------------------------------


def disk(path: str, root: str = "/") -> dict[str, Any]:
    """The disk that holds path, or that would hold it: the nearest directory that exists counts.

    {"path", "exists", "mount_point", "file_system", "source", "network", "rotational", "total_mib", "free_mib",
    "read_only"}; rotational is None where the kernel cannot tell (network, overlay, ZFS).
    """
    existing = _nearest_existing(path)
    mount = _mount_of(existing, root)
    return {
        "path": path,
        "exists": existing == os.path.realpath(path),
        "mount_point": mount.get("mount_point"),
        "file_system": mount.get("file_system"),
        "source": mount.get("source"),
        "network": mount.get("file_system") in NETWORK_FILE_SYSTEMS if mount else None,
        "rotational": _is_rotational(mount, root),
        "total_mib": _file_system_mib(existing, "f_blocks"),
        "free_mib": _file_system_mib(existing, "f_bavail"),
        "read_only": mount.get("read_only"),
    }


def _nearest_existing(path: str) -> str:
    path = os.path.realpath(path)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _mount_of(path: str, root: str) -> dict[str, Any]:
    """The last mount (later ones cover earlier ones) with the longest mount point above path."""
    best: dict[str, Any] = {}
    for line in (read_text(os.path.join(root, "proc/self/mountinfo")) or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 6 or len(tail) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), fields[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best.get("mount_point", "")):
            read_only = "ro" in fields[5].split(",") or "ro" in (tail[2].split(",") if len(tail) > 2 else ())
            best = {
                "mount_point": point,
                "file_system": tail[0],
                "source": tail[1],
                "device": fields[2],
                "read_only": read_only,
            }
    return best


def _is_rotational(mount: dict[str, Any], root: str) -> bool | None:
    """True if any disk below is rotational. Device mapper, RAID and partitions are followed down to their disks."""
    for device in (mount.get("device"), _device_number(mount.get("source"))):
        block = os.path.realpath(os.path.join(root, "sys/dev/block", device or "-"))
        if os.path.isdir(block):
            flags = _rotational_flags(block)
            return any(flags) if flags else None
    return None


def _device_number(source: str | None) -> str | None:
    """Btrfs gives its mounts numbers of their own; the device behind them is the source."""
    try:
        number = os.stat(source or "").st_rdev
    except OSError:
        return None
    return f"{os.major(number)}:{os.minor(number)}" if number else None


def _rotational_flags(block: str) -> list[bool]:
    slaves = glob.glob(os.path.join(block, "slaves", "*"))
    if slaves:
        return [flag for slave in slaves for flag in _rotational_flags(os.path.realpath(slave))]
    for directory in (block, os.path.dirname(block)):
        flag = read_text(os.path.join(directory, "queue", "rotational"))
        if flag is not None:
            return [flag == "1"]
    return []


# --- containers of processes --------------------------------------------------------------------------------------


def container_ids(cgroup_text: str | None) -> list[str]:
    """Container ids in the text of /proc/PID/cgroup, the outermost first; LXC containers by their name.

    Docker, containerd, CRI-O and Podman all name the control group by the 64 digits of the container, as a directory
    (cgroupfs driver) or in a scope (systemd driver: docker-ID.scope, libpod-ID.scope), with cgroup v1 and v2.
    """
    best: list[str] = []
    for line in (cgroup_text or "").splitlines():
        path = line.split(":", 2)[-1]
        found = _CONTAINER_ID.findall(path) or _LXC.findall(path)
        if len(found) > len(best):
            best = found
    return best


def process_container_ids(pid: int, root: str = "/") -> list[str]:
    """container_ids of a running process; none if it has ended or belongs to another process name space.

    Where this host is a container itself, that one does not count: it is what everything here runs in.
    """
    ids, own = (container_ids(read_text(os.path.join(root, "proc", str(name), "cgroup"))) for name in (pid, "self"))
    return ids[len(own) :] if ids[: len(own)] == own else ids


def name_containers(gpus: list[dict[str, Any]], names: Mapping[str, str], root: str = "/") -> None:
    """Set the container of each GPU process: its name where the engine knows it ({id: name}), else its short id."""
    cache: dict[int, str | None] = {}
    for process in (process for gpu in gpus for process in gpu["processes"]):
        pid = process["pid"]
        if pid not in cache:
            cache[pid] = container_name(process_container_ids(pid, root), names)
        process["container"] = cache[pid]


def container_name(ids: list[str], names: Mapping[str, str]) -> str | None:
    """The name of a process's container by its container_ids, the short id where the engine ({id: name}) has none."""
    # An engine inside a container knows the inner id, an engine on the host the outer one.
    for container_id in reversed(ids):
        if container_id in names:
            return names[container_id]
    return ids[-1][:12] if ids and _CONTAINER_ID.match(ids[-1]) else (ids[-1] if ids else None)

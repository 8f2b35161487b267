# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the profile of the simulated driver. The rules of lookup are those of ../libnvidia-ml/profile.c."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from typing import IO, Any, Iterator

DEFAULT_PROFILE = "/etc/gpufleet-driver/profile"
DEFAULT_VISIBLE = "/run/gpufleet-driver/visible-devices"
DEFAULT_ALLOCATIONS = "/run/gpufleet-driver/allocations"

# struct flock of 64-bit Linux: type, whence, start, length, pid
_FLOCK = "hhqqi"

# Names of errors in profiles -> (NVML return code, nvidia-smi's words for it)
ERRORS = {
    "not_supported": (3, "N/A"),
    "no_permission": (4, "Insufficient Permissions"),
    "not_loaded": (9, "Driver Not Loaded"),
    "timeout": (10, "Timeout"),
    "corrupted_inforom": (14, "infoROM is corrupted"),
    "gpu_is_lost": (15, "GPU is lost"),
    "reset_required": (16, "GPU requires reset"),
    "mismatch": (18, "Driver/library version mismatch"),
    "deprecated": (26, "Requested functionality has been deprecated"),
    "unknown": (999, "Unknown Error"),
}


class Problem(str):
    """What nvidia-smi prints in place of a value: N/A, GPU is lost, …"""


NOT_AVAILABLE = Problem("N/A")


def problem(name: str) -> Problem:
    return Problem(ERRORS.get(name, ERRORS["unknown"])[1])


def _follow(node: Any, path: str) -> Any:
    """The value at a.b.c; stops at null and {"error": …}; KeyError where the path is not there."""
    for key in path.split("."):
        if node is None or (isinstance(node, dict) and "error" in node):
            return node
        if not isinstance(node, dict):
            raise KeyError(path)
        node = node[key]
    return node


class Device:
    """One GPU of the profile, with the MIG devices that are visible."""

    def __init__(self, profile: Profile, data: dict[str, Any], profile_index: int, index: int):
        self.profile = profile
        self.data = data
        self.profile_index = profile_index
        self.index = index
        self.mig_devices: list[dict[str, Any]] = []

    def raw(self, path: str) -> Any:
        """The value from the GPU, else from gpu_defaults, else None."""
        for source in (self.data, self.profile.data.get("gpu_defaults") or {}):
            try:
                return _follow(source, path)
            except KeyError:
                continue
        return None

    def fault(self, at: str) -> str | None:
        """The name of the error that the GPU answers with, at "handle" or at "query"."""
        return self.raw("fault.what") if self.raw("fault.at") == at else None

    def identity(self, path: str) -> Any:
        """A value that is told even of a GPU that does not answer; a Problem where there is none."""
        value = self.raw(path)
        if isinstance(value, dict) and "error" in value:
            return problem(value["error"])
        return NOT_AVAILABLE if value is None else value

    def get(self, path: str) -> Any:
        """A value that the GPU has to answer for; a Problem where there is none."""
        fault = self.fault("query")
        return problem(fault) if fault else self.identity(path)

    @property
    def bus_id(self) -> tuple[int, int, int]:
        domain, bus, rest = str(self.raw("pci.bus_id")).split(":")
        return int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)

    @property
    def processes(self) -> list[dict[str, Any]]:
        """Those that nvidia-smi lists."""
        return [process for process in self._holders if process.get("type", "C")]

    @property
    def _holders(self) -> list[dict[str, Any]]:
        return list(self.raw("processes") or [])

    @property
    def mig_enabled(self) -> bool:
        return bool(self.raw("mig.mode") == "Enabled")

    def _memory_figure(self, mig: dict[str, Any] | None, key: str) -> int:
        return int((mig["memory"].get(key) if mig else self.raw("memory." + key)) or 0)

    def memory(self, mig: dict[str, Any] | None = None) -> dict[str, Any]:
        """total, reserved, used and free in MiB, of the GPU or of a MIG device; Problems where unsupported."""
        total = self.get("memory.total_mib") if mig is None or self.fault("query") else mig["memory"]["total_mib"]
        if isinstance(total, Problem):
            return dict.fromkeys(("total", "reserved", "used", "free"), total)
        reserved, used = (self._memory_figure(mig, key) for key in ("reserved_mib", "unlisted_mib"))
        used += sum(p.get("used_memory_mib") or 0 for p in self._holders if runs_on(p, mig))
        used = min(used, total - reserved)
        return {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used}


def runs_on(process: dict[str, Any], mig: dict[str, Any] | None) -> bool:
    """Does the process run on this MIG device? A whole GPU (None) has all of its processes."""
    return mig is None or (
        process.get("gpu_instance_id") == mig["gpu_instance_id"]
        and process.get("compute_instance_id", 0) == mig["compute_instance_id"]
    )


class Profile:
    """The driver and the GPUs that are visible here."""

    def __init__(self, data: dict[str, Any], visible: list[str] | None = None):
        self.data = data
        self.in_container = visible is not None
        self.gpus = list(self._visible_gpus(visible))

    def _visible_gpus(self, visible: list[str] | None) -> Iterator[Device]:
        index = 0
        for position, data in enumerate(self.data.get("gpus") or []):
            gpu = Device(self, data, position, index)
            whole = visible is None or data["uuid"] in visible
            gpu.mig_devices = [m for m in gpu.raw("mig.devices") or [] if whole or m["uuid"] in (visible or [])]
            if whole or gpu.mig_devices:
                yield gpu
                index += 1

    def driver(self, key: str, default: Any = None) -> Any:
        value = (self.data.get("driver") or {}).get(key)
        return default if value is None else value

    @property
    def version(self) -> str:
        return str(self.driver("version", ""))

    @property
    def version_tuple(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.version.split("."))

    @property
    def library_version(self) -> str:
        return str(self.driver("library_version", self.version))

    @property
    def error(self) -> str | None:
        """Why NVML does not start, as a key of ERRORS, or None."""
        state = self.driver("state", "loaded")
        if state != "loaded":
            return str(state)
        return "mismatch" if self.library_version != self.version else None

    def link(self, row: int, column: int) -> str:
        """The cell of nvidia-smi topo -m for two positions of the profile."""
        if row == column:
            return "X"
        links = self.data.get("links")
        if isinstance(links, str):
            return links
        if links:
            return str(links[row][column])
        nodes = [Device(self, self.data["gpus"][i], i, i).raw("numa_node") for i in (row, column)]
        return "NODE" if nodes[0] == nodes[1] and nodes[0] is not None else "SYS"


def _path(variable: str, default: str) -> str:
    return os.environ.get(variable) or default


def read_visible() -> list[str] | None:
    """UUIDs that this container may see, or None on the host itself."""
    try:
        with open(_path("GPUFLEET_DRIVER_VISIBLE", DEFAULT_VISIBLE), encoding="utf-8") as stream:
            return stream.read().split()
    except OSError:
        return None


def load(path: str | None = None) -> Profile | None:
    """The profile of this host, or None where there is no driver."""
    try:
        with open(path or _path("GPUFLEET_DRIVER_PROFILE", DEFAULT_PROFILE), encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return None
    held = read_allocations()
    for gpu in data.get("gpus") or []:
        if gpu.get("uuid") in held:
            gpu["processes"] = [*(gpu.get("processes") or []), *held[gpu["uuid"]]]
    return Profile(data, read_visible())


def read_allocations() -> dict[str, list[dict[str, Any]]]:
    """What engines of the lab hold of each GPU: they say so in a file that they keep locked. {UUID: processes}"""
    folder = _path("GPUFLEET_DRIVER_ALLOCATIONS", DEFAULT_ALLOCATIONS)
    held: dict[str, list[dict[str, Any]]] = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                for uuid, process in _allocation(stream):
                    held.setdefault(uuid, []).append(process)
        except (OSError, ValueError):
            continue
    return held


def _allocation(stream: IO[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The processes of one file, by UUID; none when it has ended and the time for its release is over."""
    told = json.load(stream)
    unlocked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _whence, _start, _length, pid = struct.unpack(_FLOCK, fcntl.fcntl(stream, fcntl.F_GETLK, unlocked))
    ended = kind == fcntl.F_UNLCK
    if ended and time.time() - os.fstat(stream.fileno()).st_mtime >= told.get("release_seconds", 0):
        return
    for uuid, mib in told["gpus"].items():
        process = {"pid": 0, "type": ""} if ended else {"pid": pid, "type": "C"}
        yield uuid, {**process, "name": told.get("name", ""), "used_memory_mib": mib}

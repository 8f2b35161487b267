# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated nvidia-container-runtime: before runc creates a container, the driver's files are mounted into it.

As with the real one, NVIDIA_VISIBLE_DEVICES of the container says which GPUs it sees; what the real one does with
device nodes is done here with a list of UUIDs that the simulated library and nvidia-smi read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any

from .profile import DEFAULT_ALLOCATIONS, DEFAULT_PROFILE, DEFAULT_VISIBLE, ERRORS, Device, Profile, load

LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
PACKAGE = "/usr/lib/gpufleet-driver"
CONFIGURATION = os.path.dirname(DEFAULT_PROFILE)
EXTRA_MOUNTS = os.path.join(CONFIGURATION, "mounts")
VISIBLE_IN_BUNDLE = "gpufleet-visible-devices"

# Global options of runc that take a value
VALUE_OPTIONS = ("--root", "--log", "--log-format", "--criu", "--rootless")


class HookError(Exception):
    """What nvidia-container-cli would print."""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    command, options = parse(arguments)
    if command in ("create", "run"):
        try:
            prepare(options.get("bundle", os.getcwd()))
        except HookError as error:
            report(str(error), options)
            return 1
    runc = shutil.which("runc") or "/usr/sbin/runc"
    os.execv(runc, [runc, *arguments])
    return 127


def parse(arguments: list[str]) -> tuple[str | None, dict[str, str]]:
    """The subcommand of runc, and the values of --bundle, --log and --log-format."""
    options: dict[str, str] = {}
    command = None
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        takes_value = name in VALUE_OPTIONS or (command and name in ("--bundle", "-b"))
        if takes_value:
            value = value if equals else (rest.pop(0) if rest else "")
            options["bundle" if name == "-b" else name.lstrip("-")] = value
        elif command is None and not name.startswith("-"):
            command = name
    return command, options


def prepare(bundle: str) -> None:
    """Edits the bundle's config.json, if its container asks for GPUs."""
    path = os.path.join(bundle, "config.json")
    with open(path, encoding="utf-8") as stream:
        config = json.load(stream)
    wanted = visible_devices(config)
    if wanted in (None, "", "void"):
        return
    uuids = resolve(connect(), str(wanted))
    with open(os.path.join(bundle, VISIBLE_IN_BUNDLE), "w", encoding="utf-8") as stream:
        stream.write("".join(uuid + "\n" for uuid in uuids))
    config.setdefault("mounts", []).extend(mounts(bundle, root_directory(bundle, config)))
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(config, stream)


def visible_devices(config: dict[str, Any]) -> str | None:
    """The last NVIDIA_VISIBLE_DEVICES wins: Docker appends that of --gpus to the image's."""
    prefix = "NVIDIA_VISIBLE_DEVICES="
    values = [entry[len(prefix) :] for entry in config.get("process", {}).get("env") or [] if entry.startswith(prefix)]
    return values[-1] if values else None


def connect() -> Profile:
    profile = load()
    error = "not_loaded" if profile is None else profile.error
    if profile is None or error:
        raise HookError(f"initialization error: nvml error: {ERRORS[error or 'unknown'][1].lower()}")
    for gpu in profile.gpus:
        fault = gpu.fault("handle")
        if fault:
            raise HookError(f"detection error: nvml error: {ERRORS[fault][1].lower()}")
    return profile


def resolve(profile: Profile, wanted: str) -> list[str]:
    """UUIDs of the devices of NVIDIA_VISIBLE_DEVICES: all, none, indexes, UUIDs, gpu:mig indexes."""
    if wanted == "none":
        return []
    if wanted == "all":
        return [str(gpu.identity("uuid")) for gpu in profile.gpus]
    known: dict[str, str] = {}
    for gpu in profile.gpus:
        known.update(_names(gpu))
    uuids = []
    for name in wanted.split(","):
        if name not in known:
            raise HookError(f"device error: {name}: unknown device")
        uuids.append(known[name])
    return uuids


def _names(gpu: Device) -> dict[str, str]:
    uuid = str(gpu.identity("uuid"))
    names = {str(gpu.index): uuid, uuid: uuid}
    for index, mig in enumerate(gpu.mig_devices):
        names[f"{gpu.index}:{index}"] = names[mig["uuid"]] = mig["uuid"]
    return names


def root_directory(bundle: str, config: dict[str, Any]) -> str:
    return os.path.join(bundle, config.get("root", {}).get("path", "rootfs"))


def mounts(bundle: str, root: str) -> list[dict[str, Any]]:
    """Bind mounts, read-only but for the folder in which engines say what they hold; absent sources are left out."""
    pairs = [
        (os.path.join(_library_directory("/"), LIBRARY), os.path.join(_library_directory(root), LIBRARY)),
        ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
        (PACKAGE, PACKAGE),
        (CONFIGURATION, CONFIGURATION),
        (os.path.join(bundle, VISIBLE_IN_BUNDLE), DEFAULT_VISIBLE),
        *_extra_mounts(),
    ]
    return [_bind(source, destination, "ro") for source, destination in pairs if os.path.exists(source)] + [
        _bind(_have_allocations(), DEFAULT_ALLOCATIONS, "rw")
    ]


def _bind(source: str, destination: str, mode: str) -> dict[str, Any]:
    options = ["rbind", mode, "nosuid", "nodev", "rprivate"]
    return {"destination": destination, "type": "bind", "source": source, "options": options}


def _have_allocations() -> str:
    """The folder on the host, which engines of any user may write to."""
    folder = os.environ.get("GPUFLEET_DRIVER_ALLOCATIONS") or DEFAULT_ALLOCATIONS
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o1777)
    return folder


def _library_directory(root: str) -> str:
    """Where a loader of this root directory looks for libraries."""
    present = [directory for directory in LIBRARY_DIRECTORIES if os.path.isdir(os.path.join(root, directory[1:]))]
    if root == "/":
        present = [directory for directory in present if os.path.exists(os.path.join(directory, LIBRARY))]
    return present[0] if present else LIBRARY_DIRECTORIES[-1]


def _extra_mounts() -> list[tuple[str, str]]:
    """Lines "source destination" of what the lab shares with every engine, such as the vLLM environment."""
    try:
        with open(EXTRA_MOUNTS, encoding="utf-8") as stream:
            rows = [line.split() for line in stream if line.strip() and not line.startswith("#")]
    except OSError:
        return []
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def report(message: str, options: dict[str, str]) -> None:
    """Docker shows the last error of runc's log; the words before ours are runc's when a hook fails."""
    text = (
        "runc create failed: unable to start container process: error during container init: "
        "error running prestart hook #0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
        f"nvidia-container-cli: {message}"
    )
    if options.get("log"):
        with open(options["log"], "a", encoding="utf-8") as stream:
            entry = {"level": "error", "msg": text, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            stream.write(json.dumps(entry) + "\n" if options.get("log-format") == "json" else text + "\n")
    sys.stderr.write(text + "\n")

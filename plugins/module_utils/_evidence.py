# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host can tell of an engine that failed or hangs. Private to the collection.

Nothing is changed. Secrets are taken out here, before anything leaves the host: the values of the engine's environment
file by their values, all others by their names and shapes. ``run`` is as in ``_engine_unit``.
"""

from __future__ import annotations

import json
import os

from ._redaction import redact

# Of a file that an engine or a person may have made endlessly long.
_MOST_BYTES = 4 << 20
_INSPECT = (
    '{"Id": {{json .Id}}, "State": {{json .State}}, "Image": {{json .Image}}, "HostConfig": {{json .HostConfig}}, '
    '"Args": {{json .Args}}, "RestartCount": {{json .RestartCount}}}'
)
_FILES = ("plan.json", "receipt.json", "ledger.jsonl")
# Variables of the environment file that are no secrets would be taken out of every log: on, 1, INFO, paths.
_SHORTEST_SECRET = 8


class Instance:
    """The places of one instance on this host. ``root`` is "/" except in tests."""

    def __init__(self, name, root="/"):
        self.name = name
        self.container = "vllm-" + name
        self.configuration = os.path.join(root, "etc/vllm", name)
        self.state = os.path.join(root, "var/lib/vllm", name)


def secrets_of(instance):
    """The values of the environment file that are secrets, to be taken out of everything that is read."""
    text, _error = _read(os.path.join(instance.configuration, "engine.env"))
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    secret = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "CREDENTIAL", "AUTH")
    return [
        value.strip().strip("'\"")
        for name, value in pairs
        if any(word in name.upper() for word in secret) and len(value.strip()) >= _SHORTEST_SECRET
    ]


def read_files(instance, secrets):
    """Returns ({name: text}, [errors]) of what a deployment left: plan, receipt, ledger."""
    files, errors = {}, []
    for name in _FILES:
        folder = instance.configuration if name == "plan.json" else instance.state
        text, error = _read(os.path.join(folder, name))
        if text:
            files[name] = redact(text, secrets)
        if error:
            errors.append(error)
    return files, errors


def read_failures(instance, most, secrets):
    """Returns the newest archived failures, newest first, as ``{"number", "files": {name: text}}``."""
    folder = os.path.join(instance.state, "failures")
    try:
        numbers = sorted((name for name in os.listdir(folder) if name.isdigit()), key=int, reverse=True)
    except OSError:
        return []
    return [_failure(os.path.join(folder, number), number, secrets) for number in numbers[:most]]


def _failure(folder, number, secrets):
    files = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not name.endswith(".env"):
            text, _error = _read(path)
            files[name] = redact(text, secrets)
    return {"number": number, "files": files}


def read_container(run, instance, secrets):
    """Returns Docker's state of the container, or None where there is none. Never its Config: Env holds the key."""
    rc, out, _err = run(["docker", "inspect", "--type", "container", "--format", _INSPECT, instance.container])
    if rc != 0:
        return None
    try:
        return json.loads(redact(out, secrets))
    except ValueError:
        return None


def read_host(run, secrets):
    """Returns ``{name: text}`` of what else explains a failure: disks, memory, what the kernel said of GPUs and OOM."""
    told = {}
    for name, command in (
        ("df.txt", ["df", "--human-readable", "--print-type"]),
        ("kernel.txt", ["journalctl", "--dmesg", "--no-pager", "--quiet", "--output=short-iso", "--lines=2000"]),
        ("nvidia-smi.txt", ["nvidia-smi"]),
        ("docker.txt", ["docker", "ps", "--all", "--no-trunc", "--format", "{{.Names}} {{.Image}} {{.Status}}"]),
    ):
        _rc, out, err = run(["timeout", "20"] + command)
        if name == "kernel.txt":
            words = ("oom", "out of memory", "killed process", "nvrm", "xid")
            out = "\n".join(line for line in out.splitlines() if any(word in line.lower() for word in words))
        told[name] = redact(out or err, secrets)
    text, _error = _read("/proc/meminfo")
    told["meminfo.txt"] = text
    return told


def _read(path):
    """Returns (text, error): of a file that is not there, nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES), None
    except FileNotFoundError:
        return "", None
    except OSError as error:
        return "", f"{path} cannot be read: {error}"

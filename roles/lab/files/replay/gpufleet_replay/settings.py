# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a test asks of the engine: environment variables REPLAY_*, and a file that wins over them and is read again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

# The lab's simulated NVIDIA runtime mounts this folder of the host into every container that has GPUs.
DEFAULT_FILE = "/etc/gpufleet-driver/replay.json"

DEFAULTS: dict[str, Any] = {
    "release": "0.33.0",
    "startup_seconds": 2.5,
    "phase_seconds": {},
    "hang_line_seconds": 60.0,
    "clock_rate": 1.0,
    "seconds_per_token": 0.0,
    "connect_timeout_seconds": 10.0,
    "heartbeat_timeout_seconds": 5.0,
    "gpus": None,
    "model": {},
    "faults": [],
    "metrics": {},
    "memory_release_seconds": 0.0,
    "state_directory": "~/.cache/vllm",
}


class Settings:
    """The settings of one engine. name: its served model name, under which the file may have settings of its own."""

    def __init__(self, environment: Mapping[str, str], name: str) -> None:
        self._environment = environment
        self._name = name
        self._path = environment.get("REPLAY_FILE", DEFAULT_FILE)
        self._stamp: tuple[int, int] | None = None
        self._file: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        self._read_again()
        if key in self._file:
            return self._file[key]
        text = self._environment.get("REPLAY_" + key.upper())
        if text is None and key == "state_directory":
            return self._environment.get("VLLM_CACHE_ROOT", DEFAULTS[key])
        if text is None:
            return DEFAULTS[key]
        try:
            return json.loads(text)
        except ValueError:
            return text

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The faults that are asked for, as {"fault": name, ...}; a text means the name, or "name when condition"."""
        asked = self["faults"]
        return [_fault(entry) for entry in (asked if isinstance(asked, list) else [asked])]

    def _read_again(self) -> None:
        """Reads the file if it is another one than before. While somebody is writing it, the one before counts."""
        try:
            status = os.stat(self._path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return
            with open(self._path, encoding="utf-8") as stream:
                content = json.load(stream)
            self._stamp = stamp
        except FileNotFoundError:
            self._stamp, content = None, {}
        except ValueError as error:
            if self._stamp is None:
                raise ValueError(f"{self._path} is not JSON: {error}") from error
            return
        own = content.pop("instances", {}).get(self._name, {})
        unknown = sorted({*content, *own} - set(DEFAULTS))
        if unknown:
            raise ValueError(f"{self._path}: unknown settings {', '.join(unknown)}. There are: {', '.join(DEFAULTS)}")
        self._file = {**content, **own}


def _fault(entry: Any) -> dict[str, Any]:
    if isinstance(entry, dict):
        return entry
    name, _when, condition = str(entry).partition(" when ")
    return {"fault": name, "when": condition} if condition else {"fault": name}

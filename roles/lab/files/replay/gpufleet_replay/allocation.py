# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells the simulated driver what the engine holds of its GPUs' memory; see ../../driver/README.md."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Mapping

DEFAULT_FOLDER = "/run/gpufleet-driver/allocations"
_BEAT_SECONDS = 0.2
# In one write of one page, so that the driver never reads a part of it.
_FILE_BYTES = 4096


class Allocation:
    """The memory of one engine. Where there is no folder for it, nobody asks.

    name: of the process; release_seconds: how long the memory stays in use after the engine has ended.
    """

    def __init__(self, folder: str, name: str, release_seconds: float) -> None:
        self._name = name
        self._release_seconds = release_seconds
        self._path = os.path.join(folder, uuid.uuid4().hex)
        self._file = -1
        if os.path.isdir(folder):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.lockf(self._file, fcntl.LOCK_EX)
        if release_seconds:
            threading.Thread(target=self._beat, daemon=True).start()

    def hold(self, mib: Mapping[str, int]) -> None:
        """Holds that much of each GPU: {UUID: MiB}."""
        if self._file >= 0:
            told = {"name": self._name, "release_seconds": self._release_seconds, "gpus": mib}
            os.pwrite(self._file, json.dumps(told).encode().ljust(_FILE_BYTES), 0)

    def close(self) -> None:
        """Gives the memory back, at once or late."""
        if self._file >= 0 and not self._release_seconds:
            os.unlink(self._path)

    def _beat(self) -> None:
        """The time of the last change is that of the end, however the engine ends."""
        while self._file >= 0:
            os.utime(self._file)
            time.sleep(_BEAT_SECONDS)

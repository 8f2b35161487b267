# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a large file from the controller to a host, part by part, over Ansible's own connection. Private.

The host needs nothing but Python, whatever the connection is. Each part is proven by its hash; a copy that broke off
goes on with the part that the host lacks.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ._follow import Follower

# Large enough that the two connections for each part do not count, small enough to see how it goes.
PART_BYTES = 64 << 20
_TOLERATED_FAILURES = 10
_PAUSE_SECONDS = 3.0


class UploadError(Exception):
    """What the module on the host said when it refused a part."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told.get("msg"))
        self.told = told


def key(path: Path) -> str:
    """Returns what a file is known by on the host: another one after any change of it."""
    state = path.stat()
    text = f"{path.resolve()}:{state.st_size}:{state.st_mtime_ns}"
    return "upload-" + hashlib.sha256(text.encode()).hexdigest()[:16]


class Upload:
    """Uses a module that has the option ``upload`` and tells ``received`` (gpufleet.vllm.image)."""

    def __init__(self, action: ActionBase, follower: Follower, arguments: dict[str, Any], path: Path) -> None:
        self._action = action
        self._follower = follower
        self._arguments = arguments
        self._path = path
        self._size = path.stat().st_size
        self._key = key(path)

    def send(self) -> str:
        """Returns the key of the file when all of it is on the host. Raises UploadError, AnsibleError."""
        received, failures = self._ask({}), 0
        while received < self._size:
            self._follower.tell(
                {"phase": "copying from the controller", "done_bytes": received, "total_bytes": self._size}
            )
            before = received
            try:
                received = self._send_part(received)
            except AnsibleError as error:
                failures += 1
                if failures > _TOLERATED_FAILURES:
                    raise
                self._follower.say(f"the copy broke off, trying again: {type(error).__name__}")
                time.sleep(_PAUSE_SECONDS)
                self._reconnect()
            else:
                failures = failures + 1 if received <= before else 0
                if failures > _TOLERATED_FAILURES:
                    raise UploadError(
                        {"failed": True, "msg": f"the parts of {self._path} arrive damaged, again and again"}
                    )
        return self._key

    def _send_part(self, offset: int) -> int:
        with self._path.open("rb") as stream, tempfile.NamedTemporaryFile(dir=constants.DEFAULT_LOCAL_TMP) as part:
            stream.seek(offset)
            content = stream.read(PART_BYTES)
            part.write(content)
            part.flush()
            remote = self._remote_path()
            self._action._transfer_file(part.name, remote)
        self._action._fixup_perms2((os.path.dirname(remote), remote))
        return self._ask({"part": remote, "offset": offset, "sha256": hashlib.sha256(content).hexdigest()})

    def _remote_path(self) -> str:
        shell = self._action._connection._shell
        if shell.tmpdir is None:
            self._action._make_tmp_path()
        return str(shell.join_path(shell.tmpdir, "part"))

    def _reconnect(self) -> None:
        try:
            self._action._connection.reset()
        except (AnsibleError, AttributeError, NotImplementedError):
            # The connection makes a new one by itself when it is used.
            return

    def _ask(self, part: dict[str, Any]) -> int:
        told = self._follower.run({**self._arguments, "upload": {"key": self._key, "size": self._size, **part}})
        if told.get("failed"):
            raise UploadError(told)
        return int(told["received"])

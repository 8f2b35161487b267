# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs programs, and code that may hang, with a time limit that also holds when the driver does not let go.

Private to the collection gpufleet.vllm.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, Sequence

#: Where NVIDIA's programs are when PATH, which is short over SSH and sudo, does not name it: WSL2, NixOS, GKE.
PROGRAM_DIRECTORIES = (
    "/usr/bin",
    "/usr/local/bin",
    "/usr/lib/wsl/lib",
    "/run/current-system/sw/bin",
    "/usr/local/nvidia/bin",
    "/opt/bin",
)

#: Seconds to wait for a killed process. One that hangs in the driver ends when the driver lets it, maybe never.
KILL_GRACE = 0.5


def find_program(name: str) -> str | None:
    """Full path of a program, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""),) + PROGRAM_DIRECTORIES))


def run(arguments: Sequence[str], timeout: float) -> tuple[int | None, str, str]:
    """(exit code, stdout, stderr) of a program in the C locale; the exit code is None if it did not end in time.

    stderr tells why where the program could not be started (exit code 126 or 127, as a shell has it).
    """
    environment = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        return code, "", f"{arguments[0]}: {error.strerror}"
    try:
        output = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, _kill(process), ""
    return process.returncode, output[0].decode("utf-8", "replace"), output[1].decode("utf-8", "replace")


def _kill(process: subprocess.Popen[bytes]) -> str:
    """Kill the program with its children; what it printed so far."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=KILL_GRACE)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        return ""


def call_in_child(function: Callable[[], Any], timeout: float) -> tuple[Any, str | None]:
    """(result of function(), None) or (None, why there is none: "timeout", or what ended the child).

    The result must be JSON data. The function runs in a forked child, because a call into a driver library may hang
    for ever or kill its process.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        _child(function, read_end, write_end)
    os.close(write_end)
    try:
        data, in_time = _read_until(read_end, time.monotonic() + timeout)
    finally:
        os.close(read_end)
    status = _reap(child, kill=not in_time)
    if not in_time:
        return None, "timeout"
    if not data:
        return None, f"the driver library ended its process (status {status})"
    result, failure = json.loads(data.decode("utf-8"))
    return result, failure


def _child(function: Callable[[], Any], read_end: int, write_end: int) -> None:
    """Write [result, failure] and leave, without the exit handlers that belong to the parent."""
    try:
        os.close(read_end)
        try:
            answer = [function(), None]
        except Exception as error:
            answer = [None, f"{type(error).__name__}: {error}"]
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(json.dumps(answer).encode("utf-8"))
    finally:
        os._exit(0)


def _read_until(read_end: int, deadline: float) -> tuple[bytes, bool]:
    """(everything that was written, whether the writer closed its end in time)."""
    chunks: list[bytes] = []
    while True:
        if not select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return b"", False
        chunk = os.read(read_end, 65536)
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)


def _reap(child: int, kill: bool) -> int | None:
    """The child's wait status; None if it does not end: a process that hangs in the driver cannot be killed."""
    if kill:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + KILL_GRACE
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    return None

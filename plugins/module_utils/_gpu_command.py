# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs programs, and code that may hang, with a time limit that also holds when the driver does not let go.

Private to the collection gpufleet.vllm.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time

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


def find_program(name):
    """Full path of a program, or None."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""),) + PROGRAM_DIRECTORIES))


def run(arguments, timeout):
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
        return code, "", "%s: %s" % (arguments[0], error.strerror)
    try:
        output = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return None, _kill(process), ""
    return (process.returncode,) + tuple(text.decode("utf-8", "replace") for text in output)


def _kill(process):
    """Kill the program with its children; what it printed so far."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        return process.communicate(timeout=KILL_GRACE)[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            pipe.close()
        return ""


def call_in_child(function, timeout):
    """(result of function(), None) or (None, "timeout" or "crash"); the result must be JSON data.

    The function runs in a forked child, because a call into a driver library may hang for ever or kill its process.
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
    _reap(child, kill=not in_time)
    if not in_time:
        return None, "timeout"
    return (json.loads(data.decode("utf-8")), None) if data else (None, "crash")


def _child(function, read_end, write_end):
    """Never returns; leaves without the parent's exit handlers. Nothing written means that it failed."""
    try:
        os.close(read_end)
        data = json.dumps(function()).encode("utf-8")
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)


def _read_until(read_end, deadline):
    chunks = []
    while True:
        ready = select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            return b"", False
        chunk = os.read(read_end, 65536)
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)


def _reap(child, kill):
    if kill:
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + KILL_GRACE
    while os.waitpid(child, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)

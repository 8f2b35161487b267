# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work on a host that goes on when the connection is lost. Private to the collection.

A job is a detached process that does one thing under one key: pull this image, copy that checkpoint. While it lives it
holds a lock, so a second call with the same key follows the job that runs instead of starting another. Its state is a
JSON file beside the lock. A job whose process is gone is "lost" and is started again, so the work must be able to
resume. Everything that the work needs must be imported before it starts: Ansible deletes the module's code when the
module ends.

A module attends to its job with ``attend`` and returns ``outcome["job"]`` as RV(job) while it runs; the action plugin
of the same name (plugin_utils/_follow.py) calls it again with that ``id`` until it has ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import signal
import time
import traceback
import uuid

FOLDER = "/var/lib/vllm/jobs"

# Whoever reads a state holds the lock for an instant: a lock that stays taken for longer is that of a job.
_LOCK_TRIES = 20
_SECONDS_BETWEEN_TRIES = 0.05
_SECONDS_BETWEEN_REPORTS = 0.5
# A job that is killed this often (by the OOM killer, say) will be killed again.
_TOLERATED_LOSSES = 3
# A state is written in whole blocks, so that the next one finds room in the same blocks on a disk that is full.
_BLOCK = 4096


class JobError(Exception):
    """What went wrong in a job (one sentence or more) and the next command to try."""

    def __init__(self, message, next_step=""):
        super().__init__(message)
        self.next_step = next_step


def attend(key, work, follow=None, wait=True, folder=FOLDER, interval=1.0):
    """Has the job of this key running or ended, and returns what ``read`` returns.

    ``work(report)`` runs in the job and returns its result, a dict; ``report({"phase": str, "done_bytes": int,
    "total_bytes": int or None})`` tells how far it is; a JobError ends it with a message for people.
    follow: ID of a job that an earlier call started. When that one has ended, its end is returned and nothing starts.
    wait: whether to return only when the job has ended.
    """
    now = read(key, folder)
    while True:
        followed = now["id"] is not None and now["id"] == follow
        if followed and now["state"] == "lost" and now["lost"] >= _TOLERATED_LOSSES:
            return _killed_too_often(key, now)
        if now["state"] != "running" and not (followed and now["state"] in ("done", "failed")):
            start(key, work, folder, now["lost"] + 1 if followed else 0)
            now = read(key, folder)
        if not wait or now["state"] in ("done", "failed"):
            return now
        follow = now["id"]
        time.sleep(interval)
        now = read(key, folder)


def start(key, work, folder=FOLDER, lost=0):
    """Starts the work in a process of its own, unless a job with this key runs.

    lost: how often this work was started in vain already. Raises JobError where the folder cannot be written.
    """
    path = _path(folder, key, "json")
    state = {"id": uuid.uuid4().hex, "state": "running", "lost": lost, "started": time.time(), "progress": {}}
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(_path(folder, key, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _locked(lock):
                _write(path, state)
                _detach(lambda: _run(path, state, work), lock)
        finally:
            # The job has the lock by its own descriptor of it.
            os.close(lock)
    except OSError as error:
        raise JobError(
            f"{path} cannot be written: {error.strerror or error}.", f"df -h {folder}; ls -ld {folder}"
        ) from error


def read(key, folder=FOLDER):
    """Returns {"id", "state": "absent|running|done|failed|lost", "lost", "progress", "result", "error", "next"}."""
    before = _state(folder, key)
    # The order matters: a job writes how it ended before it lets go of the lock.
    if before["state"] == "running" and not _is_held(_path(folder, key, "lock")):
        before = _state(folder, key)
        if before["state"] == "running":
            before["state"] = "lost"
    return before


def _killed_too_often(key, state):
    error = f"The process that did the work was killed {state['lost'] + 1} times; it got as far as {state['progress']}."
    return {**state, "state": "failed", "error": error, "next": "journalctl -k -n 100 --no-pager | grep -i oom"}


def _state(folder, key):
    state = {"id": None, "state": "absent", "lost": 0, "progress": {}, "result": {}, "error": "", "next": ""}
    for _attempt in range(_LOCK_TRIES):
        try:
            with open(_path(folder, key, "json"), encoding="utf-8") as stream:
                return {**state, **json.load(stream)}
        except FileNotFoundError:
            return state
        except ValueError:  # in the middle of being overwritten
            time.sleep(_SECONDS_BETWEEN_TRIES)
    return {**state, "state": "lost"}


def _path(folder, key, suffix):
    return os.path.join(folder, re.sub(r"[^A-Za-z0-9_.-]+", "_", key) + "." + suffix)


def _locked(descriptor):
    for _attempt in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_SECONDS_BETWEEN_TRIES)
    return False


def _is_held(path):
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _write(path, state):
    text = json.dumps(state).encode("utf-8")
    text += b" " * (-len(text) % _BLOCK)
    try:
        with open(path + ".new", "wb") as stream:
            stream.write(text)
        os.replace(path + ".new", path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not os.path.exists(path):
            raise
        _overwrite(path, text)


def _overwrite(path, text):
    """Writes into the blocks that the file has: the disk is full, and that is what the state has to say."""
    with contextlib.suppress(OSError):
        os.unlink(path + ".new")
    with open(path, "r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        stream.write(text + b" " * (size - len(text)))


def _detach(run, lock):
    """Runs a function in a process that neither the connection nor the caller can take along when they end."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.chdir("/")
            _let_go_of_descriptors(lock)
            run()
        status = 0
    finally:
        # Whatever happens here, nothing of the caller may run a second time: no handlers, no output.
        os._exit(status)


def _let_go_of_descriptors(kept):
    """SSH waits for its end of the output: nobody may keep it open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        if descriptor > 2 and descriptor != kept:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(descriptor)


def _run(path, state, work):
    reported = [0.0, None]

    def report(progress):
        now, phase = time.monotonic(), progress.get("phase")
        if phase == reported[1] and now - reported[0] < _SECONDS_BETWEEN_REPORTS:
            return
        reported[:] = now, phase
        state["progress"] = progress
        # How far it is matters less than that it goes on.
        with contextlib.suppress(OSError):
            _write(path, state)

    try:
        state.update(state="done", result=work(report) or {})
    except JobError as error:
        state.update(state="failed", error=str(error), next=error.next_step)
    except BaseException as error:
        state.update(state="failed", error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    _write(path, state)

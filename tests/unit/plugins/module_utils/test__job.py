# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _job

ROOT = pathlib.Path(__file__).parents[4]


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    return str(tmp_path / "jobs")


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


def released_by(path):
    """Work that goes on until the file exists."""

    def work(report):
        report({"phase": "copying", "done_bytes": 1, "total_bytes": 2})
        until(lambda: os.path.exists(path))
        return {"pid": os.getpid()}

    return work


def test_a_job_runs_in_a_process_of_its_own_and_tells_how_far_it_is(folder, tmp_path):
    _job.start("copy/a b", released_by(tmp_path / "go"), folder)
    until(lambda: _job.read("copy/a b", folder)["progress"])
    running = _job.read("copy/a b", folder)
    assert running["state"] == "running"
    assert running["progress"] == {"phase": "copying", "done_bytes": 1, "total_bytes": 2}
    (tmp_path / "go").touch()
    until(lambda: _job.read("copy/a b", folder)["state"] == "done")
    assert _job.read("copy/a b", folder)["result"]["pid"] != os.getpid()
    assert os.stat(folder).st_mode & 0o077 == 0


def test_a_second_call_follows_the_job_that_runs(folder, tmp_path):
    first = _job.attend("copy", released_by(tmp_path / "go"), wait=False, folder=folder)
    second = _job.attend("copy", lambda report: {"pid": "another"}, wait=False, folder=folder)
    assert (second["id"], second["state"]) == (first["id"], "running")
    (tmp_path / "go").touch()
    ended = _job.attend("copy", lambda report: {"pid": "another"}, follow=first["id"], folder=folder, interval=0.02)
    assert ended["state"] == "done"
    assert ended["result"]["pid"] != "another"


def test_a_job_of_another_day_is_not_taken_for_the_one_that_is_asked_for(folder):
    first = _job.attend("copy", lambda report: {"run": 1}, folder=folder, interval=0.02)
    again = _job.attend("copy", lambda report: {"run": 2}, folder=folder, interval=0.02)
    assert (first["result"], again["result"]) == ({"run": 1}, {"run": 2})
    assert _job.attend("copy", lambda report: {"run": 3}, follow=again["id"], folder=folder)["result"] == {"run": 2}


def test_what_people_must_know_of_a_failure_is_told(folder):
    def work(report):
        raise _job.JobError("The disk of gpu1 is full.", "df -h /srv")

    failed = _job.attend("copy", work, folder=folder, interval=0.02)
    assert (failed["state"], failed["error"], failed["next"]) == ("failed", "The disk of gpu1 is full.", "df -h /srv")


def test_an_unexpected_failure_is_told_with_its_kind(folder):
    failed = _job.attend("copy", lambda report: {}["there is no such thing"], folder=folder, interval=0.02)
    assert (failed["state"], failed["error"]) == ("failed", "KeyError: 'there is no such thing'")


def killed(report):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_whose_process_is_gone_is_lost_and_is_started_again(folder):
    _job.start("copy", killed, folder)
    until(lambda: _job.read("copy", folder)["state"] == "lost")
    lost = _job.read("copy", folder)["id"]
    again = _job.attend("copy", lambda report: {"resumed": True}, follow=lost, folder=folder, interval=0.02)
    assert (again["state"], again["result"]) == ("done", {"resumed": True})
    assert again["id"] != lost


def test_a_job_that_is_killed_again_and_again_is_given_up(folder):
    given_up = _job.attend("copy", killed, folder=folder, interval=0.05)
    assert given_up["state"] == "failed"
    assert "was killed 4 times" in given_up["error"]


def test_a_job_outlives_the_one_who_started_it_and_holds_none_of_its_output(folder, tmp_path):
    """As when SSH is lost: the session that started the job gets SIGHUP, and SSH waits for the output's end."""
    script = (
        "import sys, time, os\n"
        f"sys.path.insert(0, {str(ROOT / 'plugins')!r})\n"
        "from module_utils import _job\n"
        f"_job.start('copy', lambda report: time.sleep(0.4) or {{'session': os.getsid(0)}}, {folder!r})\n"
        "os.kill(os.getpid(), 1)\n"
    )
    began = time.monotonic()
    starter = subprocess.run([sys.executable, "-c", script], capture_output=True, start_new_session=True, check=False)
    assert starter.returncode == -signal.SIGHUP
    assert time.monotonic() - began < 5
    until(lambda: _job.read("copy", folder)["state"] == "done")
    assert _job.read("copy", folder)["result"]["session"] != os.getsid(0)


def test_a_full_disk_does_not_keep_a_job_from_saying_so(folder, monkeypatch):
    _job.attend("copy", lambda report: {}, folder=folder, interval=0.02)
    path = os.path.join(folder, "copy.json")
    blocks = os.stat(path).st_size

    def full(*_names):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_job.os, "replace", full)
    failed = _job.attend("copy", lambda report: full(), folder=folder, interval=0.02)
    assert (failed["state"], failed["error"]) == ("failed", "OSError: [Errno 28] No space left on device")
    assert os.stat(path).st_size == blocks
    assert json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["state"] == "failed"
    assert sorted(os.listdir(folder)) == ["copy.json", "copy.lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(_job.JobError, match=r"file/jobs/copy\.json cannot be written: Not a directory"):
        _job.start("copy", lambda report: {}, str(tmp_path / "file" / "jobs"))


def test_there_was_never_such_a_job(folder):
    assert _job.read("copy", folder)["state"] == "absent"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What archive.sh keeps of a failed engine, with systemd, Docker and the driver as small scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest

TEMPLATE = Path(__file__).resolve().parents[4] / "roles/vllm_instance/templates/archive.sh.j2"
CONTAINER = "c0ffee" * 10
RAN = {"Running": False, "OOMKilled": False, "Error": "", "ExitCode": 1}


class Host:
    """A host whose engine has ended. Its programs say what is in `says`."""

    def __init__(self, root):
        self.root = root
        self.says = {
            "job": "",
            "inspect": json.dumps({"Id": CONTAINER, "State": RAN}),
            "dmesg": "",
            "journal": "last words\n",
        }
        text = jinja2.Template(TEMPLATE.read_text(encoding="utf-8"), keep_trailing_newline=True).render(
            vllm_instance_plan={"name": "chat"}, ansible_managed="managed"
        )
        for folder in ("/var/lib/vllm", "/etc/vllm"):
            text = text.replace(folder, str(root) + folder)
        self.script = root / "archive.sh"
        self.script.write_text(text, encoding="utf-8")
        (root / "etc/vllm/chat").mkdir(parents=True)
        (root / "etc/vllm/chat/plan.json").write_text('{"verdict": "fits"}', encoding="utf-8")
        (root / "etc/vllm/chat/engine.env").write_text("VLLM_API_KEY=secret\n", encoding="utf-8")
        self.failures = root / "var/lib/vllm/chat/failures"
        self.release(1)
        self.program("systemctl", 'case $* in *InvocationID*) echo 1f ;; list-jobs*) cat "$SAYS/job" ;; esac')
        self.program("journalctl", 'case $* in *--dmesg*) cat "$SAYS/dmesg" ;; *1f*) cat "$SAYS/journal" ;; esac')
        self.program(
            "docker",
            'case $* in *"json .Config"* | *"json .}}"*) echo secret ;; inspect*) cat "$SAYS/inspect" ;; '
            'rm*) echo "$@" >>"$SAYS/removed" ;; esac',
        )
        self.program("nvidia-smi", "echo '<nvidia_smi_log/>'")

    def program(self, name, text):
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def release(self, number):
        releases = self.root / "var/lib/vllm/chat/releases"
        releases.mkdir(parents=True, exist_ok=True)
        (releases / "current").unlink(missing_ok=True)
        (releases / "current").symlink_to(f"{number:04d}")

    def state(self, **state):
        self.says["inspect"] = json.dumps({"Id": CONTAINER, "State": {**RAN, **state}})

    def ends(self, *arguments, **environment):
        """Runs the script as systemd does; the newest failure.json, or None."""
        for name, text in self.says.items():
            (self.root / name).write_text(text, encoding="utf-8")
        given = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "SAYS": str(self.root), "INVOCATION_ID": "1f"}
        result = subprocess.run(
            ["bash", str(self.script), *arguments],
            env={**given, "SERVICE_RESULT": "exit-code", "EXIT_CODE": "exited", "EXIT_STATUS": "1", **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert result.stderr == ""
        self.printed = result.stdout
        newest = self.kept()[-1:]
        return json.loads((self.failures / newest[0] / "failure.json").read_text("utf-8")) if newest else None

    def kept(self):
        return sorted(path.name for path in self.failures.iterdir()) if self.failures.is_dir() else []

    def removed(self):
        return (self.root / "removed").is_file()


@pytest.fixture(name="host")
def make_host(tmp_path):
    return Host(tmp_path)


def test_everything_is_kept_and_the_container_removed(host):
    failure = host.ends()
    folder = host.failures / "0001"
    names = {path.name for path in folder.iterdir()}
    assert names == {"log", "inspect.json", "plan.json", "meminfo", "df", "kernel", "nvidia-smi.xml", "failure.json"}
    assert (folder / "log").read_text("utf-8") == "last words\n"
    assert failure["what"] == "The engine ended by itself with exit code 1."
    assert (failure["release"], failure["exit_code"], failure["signal"], failure["oom_killed"]) == (1, 1, None, False)
    assert host.printed == f"{failure['what']} Its traces are in {folder}\n"
    assert (folder.stat().st_mode & 0o777, host.removed()) == (0o700, True)


def test_the_key_is_in_nothing_that_is_kept(host):
    host.ends()
    assert not [path for path in host.failures.rglob("*") if path.is_file() and "secret" in path.read_text("utf-8")]


def test_a_stop_that_was_asked_for_is_no_failure(host):
    host.says["job"] = "4711 vllm-chat.service stop running\n"
    host.state(ExitCode=143)
    assert host.ends(EXIT_STATUS="143", SERVICE_RESULT="success") is None
    assert host.removed()


def test_a_start_that_is_asked_for_is_no_stop(host):
    host.says["job"] = "4711 vllm-chat.service start running\n"
    assert host.ends()["exit_code"] == 1


OOM_LINE = f"oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/system.slice/docker-{CONTAINER}.scope,task=python3\n"


@pytest.mark.parametrize(
    ("state", "kernel", "what", "code", "signal", "oom"),
    [
        ({"ExitCode": 0}, "", "ended by itself with exit code 0, although nobody stopped it", 0, None, False),
        (
            {"ExitCode": 137},
            "",
            "ended by signal 9 (SIGKILL); the kernel's OOM killer left no trace",
            None,
            "SIGKILL",
            False,
        ),
        (
            {"ExitCode": 137},
            OOM_LINE,
            "because main memory, not that of the GPU, ran out (OOM)",
            None,
            "SIGKILL",
            True,
        ),
        ({"ExitCode": 137, "OOMKilled": True}, "", "ran out (OOM)", None, "SIGKILL", True),
        ({"ExitCode": 1}, OOM_LINE.replace("c0ffee", "decade"), "exit code 1.", 1, None, False),
        ({"ExitCode": 139}, "", "ended by signal 11 (SIGSEGV).", None, "SIGSEGV", False),
        ({"ExitCode": 128, "Error": "port is already allocated"}, "", "not run the engine: port is", 128, None, False),
    ],
)
def test_the_end_is_told_in_words(host, state, kernel, what, code, signal, oom):
    host.state(**state)
    host.says["dmesg"] = kernel
    failure = host.ends(EXIT_STATUS=str(state["ExitCode"]))
    assert what in failure["what"]
    assert (failure["exit_code"], failure["signal"], failure["oom_killed"]) == (code, signal, oom)


@pytest.mark.parametrize(
    ("environment", "what", "signal"),
    [
        ({"EXIT_STATUS": "125"}, "exit code 125", None),
        ({"EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}, "signal 9 (SIGKILL)", "SIGKILL"),
        ({"EXIT_CODE": "", "EXIT_STATUS": "", "SERVICE_RESULT": "timeout"}, "The unit failed (timeout)", None),
    ],
)
def test_without_a_container_the_unit_tells(host, environment, what, signal):
    host.says["inspect"] = "Error: No such object: vllm-chat\n"
    failure = host.ends(**environment)
    assert what in failure["what"]
    assert failure["signal"] == signal


def test_a_long_log_is_kept_with_its_start_and_its_end(host):
    host.says["journal"] = "first words\n" + "x" * 99 * 60000 + "\nlast words\n"
    host.ends()
    log = (host.failures / "0001" / "log").read_text("utf-8")
    assert log.startswith("first words\n") and log.endswith("last words\n")
    assert "not kept" in log and len(log) < 4.1 * 2**20


def test_the_first_of_each_release_and_the_newest_stay(host):
    template = {"time": "", "what": "earlier"}
    for number in range(1, 21):
        folder = host.failures / f"{number:04d}"
        folder.mkdir(parents=True)
        release = 1 if number < 4 else 2
        (folder / "failure.json").write_text(json.dumps({**template, "release": release}), encoding="utf-8")
    host.release(2)
    host.ends()
    assert host.kept() == ["0001", *(f"{number:04d}" for number in range(3, 22))]
    for _again in range(3):
        host.ends()
    assert host.kept() == ["0001", "0004", *(f"{number:04d}" for number in range(7, 25))]


def test_by_hand_it_keeps_the_traces_of_what_runs(host):
    host.state(Running=True, ExitCode=0)
    failure = host.ends("It did not serve within 20 minutes.", INVOCATION_ID="", EXIT_CODE="", EXIT_STATUS="")
    assert (failure["what"], failure["exit_code"]) == ("It did not serve within 20 minutes.", None)
    assert (host.failures / "0001" / "log").read_text("utf-8") == "last words\n"
    assert not host.removed()


def test_where_nothing_can_be_kept_the_container_is_still_removed(host):
    host.failures.parent.mkdir(parents=True, exist_ok=True)
    host.failures.write_text("", encoding="utf-8")
    environment = {"PATH": f"{host.root}/bin:{os.environ['PATH']}", "SAYS": str(host.root)}
    (host.root / "job").write_text("", encoding="utf-8")
    result = subprocess.run(["bash", str(host.script)], env=environment, capture_output=True, check=False, timeout=60)
    assert (result.returncode, host.removed()) == (0, True)


def test_shellcheck_finds_nothing(host):
    if not shutil.which("shellcheck"):
        print("skipped: there is no shellcheck")
        pytest.skip("there is no shellcheck")
    result = subprocess.run(["shellcheck", str(host.script)], capture_output=True, text=True, check=False)
    assert result.stdout == ""

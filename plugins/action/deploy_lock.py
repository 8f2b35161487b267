# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One deployment at a time on a host: the part that knows which run this is; documented beside the module."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
    "wait": {"type": "int", "default": 0},
    "break_lock": {"type": "bool", "default": False},
    "path": {"type": "str", "default": "/run/vllm/deploy.lock"},
}
# Between two looks at a lock that another run holds.
_INTERVAL = 5.0


class ActionModule(ActionBase):
    """Asks the host for the lock until this run has it, or has waited long enough."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, self._arguments = self.validate_argument_spec(_ARGUMENTS)
        self._task_vars = task_vars or {}
        self._host = str(self._task_vars.get("inventory_hostname", "host"))
        # The process that runs this is a worker, forked from ansible-playbook for one task.
        self._owner = describe_run(os.getppid())
        told = self._ask()
        if self._arguments["state"] == "held":
            told = self._take(told)
        return {**result, **told}

    def _take(self, told: dict[str, Any]) -> dict[str, Any]:
        """Until the lock is this run's."""
        deadline = time.monotonic() + self._arguments["wait"]
        waits = False
        while not told["held"]:
            holder = told["holder"]
            if self._arguments["break_lock"] or is_gone(holder, self._owner):
                told = self._ask(take_over=holder)
                if told["held"]:
                    self._display.warning(f"{self._host}: {taken_over_message(holder, self._arguments['break_lock'])}")
                continue
            if time.monotonic() >= deadline:
                raise AnsibleActionFail(held_message(self._host, holder, self._owner), result=told)
            if not waits:
                waits = True
                self._display.display(f"{self._host}: waits for {who(holder)}, up to {self._arguments['wait']} s")
            time.sleep(_INTERVAL)
            told = self._ask()
        return told

    def _ask(self, take_over: dict[str, Any] | None = None) -> dict[str, Any]:
        arguments = {"state": self._arguments["state"], "path": self._arguments["path"], "owner": self._owner}
        told: dict[str, Any] = self._execute_module(
            module_name="gpufleet.vllm.deploy_lock",
            module_args={**arguments, "take_over": take_over},
            task_vars=self._task_vars,
        )
        if told.get("failed"):
            raise AnsibleActionFail(f"{self._host}: {told.get('msg')}", result=told)
        return {name: value for name, value in told.items() if name != "invocation"}


def describe_run(pid: int) -> dict[str, Any]:
    """Returns the run of ansible-playbook with that process ID: {"controller", "pid_namespace", "user", "pid",
    "started"}."""
    return {
        "controller": socket.gethostname(),
        "pid_namespace": _pid_namespace(),
        "user": _user(),
        "pid": pid,
        "started": process_started(pid),
    }


def is_gone(holder: dict[str, Any], owner: dict[str, Any]) -> bool:
    """Whether the run that holds the lock is known to have ended: it ran where this run would see it, and does not."""
    here = all(holder.get(key) == owner[key] for key in ("controller", "pid_namespace"))
    return here and process_started(int(holder.get("pid") or 0)) != holder.get("started")


def process_started(pid: int) -> str | None:
    """Returns when a process of this machine was started, None if there is none. Two starts are never the same."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        # proc(5): starttime, in ticks since the boot, is field 22, and field 3 is the first behind the name.
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='utf-8').strip()} {fields[19]}"
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    # No /proc (macOS).
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or None


def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for this user, as in a container
        return str(os.getuid())


def who(holder: dict[str, Any]) -> str:
    """Returns the holder in words."""
    if not holder:
        return "a lock file that names nobody"
    return (
        f"{holder.get('user')} on {holder.get('controller')} (ansible-playbook, process {holder.get('pid')}), "
        f"since {holder.get('since')}"
    )


def held_message(host: str, holder: dict[str, Any], owner: dict[str, Any]) -> str:
    """Returns who deploys on the host, and what to do."""
    here = all(holder.get(key) == owner[key] for key in ("controller", "pid_namespace"))
    look = f"ps -fp {holder.get('pid')}" if here else f"on {holder.get('controller')}: ps -fp {holder.get('pid')}"
    return (
        f"{host}: another deployment holds this host: {who(holder)}. Nothing was changed here. Wait until it has ended "
        f"and run the same command again. Next, to see whether it still runs, {look if holder else 'ask who deploys'}. "
        "If it is gone for certain: the same command with -e vllm_break_lock=true"
    )


def taken_over_message(holder: dict[str, Any], broken: bool) -> str:
    """Returns whose lock this run has now."""
    why = "by vllm_break_lock" if broken else "as that run is gone. What it left unfinished is finished or undone now"
    return f"took the lock of {who(holder)}, {why}."

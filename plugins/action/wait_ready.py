# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows a start-up until it serves or has failed; documented beside the module of the same name."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ..plugin_utils import _startup as startup
from ..plugin_utils._diagnosis import diagnose

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "address": {"type": "str", "default": "127.0.0.1"},
    "port": {"type": "int", "default": 8000},
    "timeout": {"type": "int"},
    "bytes_to_read": {"type": "int"},
    "read_mib_per_second": {"type": "int", "default": 100},
    "load_seconds": {"type": "float", "default": 0},
    "interval": {"type": "float", "default": 3},
    "context": {"type": "dict", "default": {}},
    "member": {"type": "bool", "default": False},
}
# Lines of the log that go to diagnose: the cause stands above the last words of every rank.
_DIAGNOSED_LINES = 4000
# A long phase says now and then that it goes on.
_SECONDS_BETWEEN_LINES = 30
# A host that does not answer some times in a row may be back at the next: the engine starts on without us.
_TOLERATED_DISCONNECTIONS = 5


class ActionModule(ActionBase):
    """Runs boot_info on the host again and again. Nothing else is asked of the host."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, self._arguments = self.validate_argument_spec(_ARGUMENTS)
        self._task_vars = task_vars or {}
        self._host = str(self._task_vars.get("inventory_hostname", "host"))
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "msg": "Check mode starts no engine to wait for."}
        return {**result, "changed": False, **self._follow()}

    def _follow(self) -> dict[str, Any]:
        began = phase_began = time.monotonic()
        allowed = startup.deadlines(
            *(self._arguments[name] for name in ("bytes_to_read", "read_mib_per_second", "load_seconds"))
        )
        first = before = boot = self._boot_info(lines=1)
        shown, self._told_at = "", 0.0
        while True:
            now = time.monotonic()
            shown = self._show(boot, shown, now - began)
            end = startup.ending(first["unit"], boot, self._arguments["member"])
            if end == "serving":
                return boot
            if end:
                # systemd may have begun the next activation in the meantime: the cause is in the one before.
                return self._failure(end, before if end in ("restarted", "followed") else boot)
            if self._is_late(boot["phase"], now - began, now - phase_began, allowed):
                return self._timeout(now - began, now - phase_began)
            time.sleep(self._arguments["interval"])
            before, boot = boot, self._boot_info(lines=1)
            if boot["phase"] != before["phase"]:
                phase_began = time.monotonic()

    def _is_late(self, phase: str, waited: float, in_phase: float, allowed: dict[str, float]) -> bool:
        if self._arguments["timeout"] is not None:
            return bool(waited > self._arguments["timeout"])
        return in_phase > allowed[phase]

    def _show(self, boot: dict[str, Any], shown: str, waited: float) -> str:
        """Prints what is new or has lasted, and returns it. Hosts print side by side, so each line names its host."""
        told = startup.phase_line(boot)
        if told != shown or waited - self._told_at >= _SECONDS_BETWEEN_LINES:
            self._display_line(f"{told} ({startup.duration(waited)})")
            self._told_at = waited
        return told

    def _failure(self, end: str, boot: dict[str, Any]) -> dict[str, Any]:
        unit = boot["unit"]
        failed = self._boot_info(lines=_DIAGNOSED_LINES, invocation_id=unit["invocation_id"])
        findings = diagnose(failed["log"], {**self._arguments["context"], "unit": unit})
        message = startup.failure_message(self._host, self._arguments["name"], unit, end, findings, failed["log"])
        log = startup.last_lines(failed["log"])
        told = {"ending": end, "findings": findings, "msg": message}
        return {**failed, "unit": unit, "log": log, "failed": True, **told}

    def _timeout(self, waited: float, in_phase: float) -> dict[str, Any]:
        boot = self._boot_info(lines=_DIAGNOSED_LINES)
        findings = diagnose(boot["log"], self._arguments["context"])
        log = startup.last_lines(boot["log"])
        message = startup.timeout_message(self._host, self._arguments["name"], boot, waited, in_phase, findings, log)
        return {**boot, "log": log, "failed": True, "findings": findings, "msg": message}

    def _boot_info(self, **options: Any) -> dict[str, Any]:
        asked = {name: self._arguments[name] for name in ("name", "address", "port", "member")}
        for _attempt in range(_TOLERATED_DISCONNECTIONS):
            try:
                return self._run_boot_info({**asked, **options})
            except AnsibleConnectionFailure as error:
                self._display_line(f"connection lost, trying again: {error}")
                time.sleep(self._arguments["interval"])
        return self._run_boot_info({**asked, **options})

    def _run_boot_info(self, arguments: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = self._execute_module(
            module_name="gpufleet.vllm.boot_info", module_args=arguments, task_vars=self._task_vars
        )
        if told.get("failed"):
            raise AnsibleActionFail(f"boot_info failed on {self._host}: {told.get('msg')}", result=told)
        # What the module was called with is of no use to the reader of the result.
        told = {name: value for name, value in told.items() if name != "invocation"}
        return startup.as_seen(told, self._arguments["member"])

    def _display_line(self, text: str) -> None:
        self._display.display(startup.shorten(f"{self._host}: vllm-{self._arguments['name']}: {text}"))

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has each host run its part of an all-reduce; documented beside the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils._launch import HostProblem, all_reduce_run

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "plan": {"type": "dict", "required": True},
    "image": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 180},
}


class ActionModule(ActionBase):
    """Says what the host runs, and has it run."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)
        variables = task_vars or {}
        plan, host = arguments["plan"], str(variables.get("inventory_hostname"))
        folder = f"/run/vllm/{plan['name']}.all-reduce"
        try:
            command = all_reduce_run(plan, folder, host, arguments["image"])
        except HostProblem as error:
            raise AnsibleActionFail(
                f"all_reduce on {host}: {error}. Give it a plan of an engine on this host."
            ) from error
        told: dict[str, Any] = self._execute_module(
            module_name="gpufleet.vllm.all_reduce",
            module_args={**arguments, "command": command, "folder": folder},
            task_vars=variables,
        )
        return {**result, **{name: value for name, value in told.items() if name != "invocation"}}

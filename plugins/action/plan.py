# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans on the controller and tells faults without a trace; documented beside the module of the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._planning import InstanceError, plan_instances, refused_pin

SPECIFICATION: dict[str, dict[str, Any]] = {
    "instances": {"type": "list", "elements": "dict", "required": True},
    "hosts": {"type": "list", "elements": "dict", "required": True},
    "checkpoints": {"type": "dict", "required": True},
    "inventory_hosts": {"type": "list", "elements": "str", "default": []},
    "current_plans": {"type": "dict", "default": {}},
    "receipts": {"type": "dict", "default": {}},
    "next_command": {"type": "str", "required": True},
}


class ActionModule(ActionBase):
    """Does what the filter of the same name does, and touches no host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(SPECIFICATION)
        next_command = arguments.pop("next_command")
        try:
            plans = plan_instances(**arguments)
        except InstanceError as error:
            return _refused(result, error.errors, next_command)
        refused = [
            refused_pin(str(item["name"]), error).on(item["hosts"]) for item in plans for error in item["errors"]
        ]
        return _refused(result, refused, next_command) if refused else {**result, "changed": False, "plans": plans}


def _refused(result: dict[str, Any], faults: Sequence[object], next_command: str) -> dict[str, Any]:
    told = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = [
        f"There is no plan: {told} in the inventory.",
        *(f"  {fault}" for fault in faults),
        f"Next: {next_command}",
    ]
    return {**result, "changed": False, "failed": True, "msg": "\n".join(lines)}

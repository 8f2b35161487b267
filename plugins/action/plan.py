# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans on the controller and tells faults without a trace; documented beside the module of the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._planning import InstanceError, plan_instances, refused_pin
from ..plugin_utils._planning.checks import check_trust
from ..plugin_utils._planning.errors import Faults
from ..plugin_utils._planning.spans import judge_spans, plan_host, together, with_warnings

SPECIFICATION: dict[str, dict[str, Any]] = {
    "instances": {"type": "list", "elements": "dict", "required": True},
    "hosts": {"type": "list", "elements": "dict", "required": True},
    "checkpoints": {"type": "dict", "required": True},
    "inventory_hosts": {"type": "list", "elements": "str", "default": []},
    "current_plans": {"type": "dict", "default": {}},
    "receipts": {"type": "dict", "default": {}},
    "next_command": {"type": "str", "required": True},
    "host": {"type": "str"},
    "member_fact": {"type": "str"},
    "reach_fact": {"type": "str"},
}


class ActionModule(ActionBase):
    """Does what the filter of the same name does, and touches no host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(SPECIFICATION)
        next_command = arguments.pop("next_command")
        host, member_fact, reach_fact = (arguments.pop(name) for name in ("host", "member_fact", "reach_fact"))
        variables = task_vars or {}
        checks: list[dict[str, Any]] = []
        unasked = _unasked(arguments)
        try:
            if member_fact:
                plans, checks = _plan_host(str(host), member_fact, str(reach_fact), variables)
            else:
                plans = plan_instances(**arguments)
        except InstanceError as error:
            return _refused(result, [*unasked, *error.errors], next_command)
        refused = unasked + [
            refused_pin(str(item["name"]), error).on(item["hosts"]) for item in plans for error in item["errors"]
        ]
        if refused:
            return _refused(result, refused, next_command)
        return {**result, "changed": False, "plans": plans, "member_checks": checks}


def _unasked(arguments: Mapping[str, Any]) -> list[InstanceError]:
    """A deployment lists the code of a checkpoint before it runs, where the instance itself says that it may."""
    faults = Faults()
    for instance in arguments["instances"]:
        faults.attempt(check_trust, instance)
    return [error.on(arguments["inventory_hosts"]) for error in faults.found]


def _plan_host(
    host: str, member_fact: str, reach_fact: str, variables: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The plans of a host with engines that span it, and what the members' checks of each other found.

    The facts of the other members are taken from theirs: only of those hosts that engines chain to this one.
    """
    hostvars, groups = variables["hostvars"], variables.get("groups") or {}

    def told(name: str) -> Any:
        return hostvars[name].get(member_fact) if name in hostvars else None

    members = together(host, told, groups)
    plans = plan_host(host, members, groups)
    reach = {name: hostvars[name].get(reach_fact) or {} for name in members}
    judged = judge_spans(plans, members, reach)
    return with_warnings(plans, judged), [check for checks in judged.values() for check in checks]


def _refused(result: dict[str, Any], faults: Sequence[object], next_command: str) -> dict[str, Any]:
    told = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = [
        f"There is no plan: {told} in the inventory.",
        *(f"  {fault}" for fault in faults),
        f"Next: {next_command}",
    ]
    return {**result, "changed": False, "failed": True, "msg": "\n".join(lines)}

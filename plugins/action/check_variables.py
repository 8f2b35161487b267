# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks a host's variables on the controller; documented beside the module of the same name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ..plugin_utils._variables import SECRET, Fault, faults_of, slips

ROLES = Path(__file__).resolve().parents[2] / "roles"
PREFIX = "vllm_"


class ActionModule(ActionBase):
    """Compares the variables with the role's argument specification and touches no host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        spec = {name: {"type": "str", "required": True} for name in ("role", "entry_point", "next_command")}
        _validation, arguments = self.validate_argument_spec(spec)
        options = _options(arguments["role"], arguments["entry_point"])
        given, undefined = self._given(options, variables)
        found = [*undefined, *faults_of(options, given)]
        slipped = slips(_known(), [name for name in variables if name.startswith(PREFIX)])
        told = [
            f"{name} is no variable of gpufleet.vllm and changes nothing; did you mean {known}?"
            for name, known in slipped
        ]
        if told:
            result["warnings"] = told
        if found:
            host = variables.get("inventory_hostname", "localhost")
            result.update(failed=True, msg=_message(str(host), found, arguments["next_command"]))
        return {**result, "changed": False}

    def _given(self, options: Mapping[str, Any], variables: Mapping[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
        """The values of the variables, and those that cannot be worked out."""
        given, faults = {}, []
        for name in options:
            if name not in variables:
                continue
            try:
                given[name] = self._templar.template(variables[name])
            except AnsibleError as error:
                faults.append(_not_worked_out(name, error))
        return given, faults


def _not_worked_out(name: str, error: AnsibleError) -> Fault:
    """Ansible's message holds the text, which may be a secret with braces in it."""
    if SECRET.search(name):
        remedy = "Keep it in a vault, or write !unsafe before it if the braces are part of it."
        return Fault(name, "cannot be worked out: its value is taken for a template", remedy)
    return Fault(name, f"cannot be worked out: {' '.join(str(error).split())}", "Define it.")


def _options(role: str, entry_point: str) -> Mapping[str, Any]:
    options: Mapping[str, Any] = _specification(ROLES / role)[entry_point]["options"]
    return options


def _specification(role: Path) -> Mapping[str, Any]:
    text = (role / "meta/argument_specs.yml").read_text(encoding="utf-8")
    specification: Mapping[str, Any] = yaml.safe_load(text)["argument_specs"]
    return specification


def _known() -> list[str]:
    """Every public variable of the collection's roles."""
    specifications = (_specification(file.parents[1]) for file in sorted(ROLES.glob("*/meta/argument_specs.yml")))
    entries = (entry for specification in specifications for entry in specification.values())
    return list(dict.fromkeys(name for entry in entries for name in entry.get("options") or ()))


def _message(host: str, found: Sequence[Fault], command: str) -> str:
    return "\n".join(
        [f"{host}: {_counted(len(found))}; nothing was read or changed.", *_lines(found), f"Next: {command}"]
    )


def _counted(number: int) -> str:
    return "1 variable cannot be used" if number == 1 else f"{number} variables cannot be used"


def _lines(found: Sequence[Fault]) -> Iterator[str]:
    for fault in found:
        yield f"  {fault.variable}: {fault.fault}."
        if fault.remedy:
            yield f"      {fault.remedy}"

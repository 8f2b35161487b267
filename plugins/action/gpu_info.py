# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says of a host's Python that is too old that it is; documented beside the module of the same name.

It is the first module on a host. What an old Python says of its text is a traceback of a syntax error.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

_MODULE = "gpufleet.vllm.gpu_info"
#: What Python 3.6 and older say of `from __future__ import annotations`.
_TOO_OLD = "future feature annotations is not defined"


class ActionModule(ActionBase):
    """Runs the module and nothing else."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        told: dict[str, Any] = self._execute_module(module_name=_MODULE, task_vars=variables)
        text = f"{told.get('module_stdout', '')}{told.get('module_stderr', '')}{told.get('msg', '')}"
        if told.get("failed") and _TOO_OLD in text:
            return {**result, "failed": True, "changed": False, "msg": _message(variables)}
        return {**result, **told}


def _message(variables: dict[str, Any]) -> str:
    facts = variables.get("ansible_facts") or {}
    used = variables.get("ansible_python_interpreter") or facts.get("discovered_interpreter_python") or "that was found"
    host = variables.get("inventory_hostname", "host")
    return (
        f"{host}: the Python {used} is older than 3.8, which is what hosts need. "
        "Nothing was changed. Install a newer one (RHEL 8: dnf install python3.11) and set ansible_python_interpreter "
        "of the host, e.g. to /usr/bin/python3.11. Next, on the host: ls /usr/bin/python3*"
    )

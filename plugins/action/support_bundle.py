# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a support bundle on the controller; documented beside the module of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ..plugin_utils._diagnosis.bundle import bundle_files, write_bundle

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "files": {"type": "dict", "required": True},
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
}


class ActionModule(ActionBase):
    """Writes a file on the controller and touches no host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)
        path = Path(arguments["path"]).expanduser()
        files = bundle_files(arguments["files"], arguments["secrets"])
        if not self._task.check_mode:
            try:
                write_bundle(path, files)
            except OSError as error:
                raise AnsibleActionFail(
                    f"The support bundle cannot be written: {error}. Next: give another place with -e "
                    "vllm_support_bundle=PATH.tar.gz"
                ) from error
        return {**result, "changed": True, "path": str(path), "names": sorted(files)}

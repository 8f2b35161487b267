# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets another host fetch an image and prints how far its archive is; documented beside the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._follow import Follower

_MODULE = "gpufleet.vllm.image_share"


class ActionModule(ActionBase):
    """Follows the job that saves the image. As a rule it is delegated to the host that has the image."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = self._task.delegate_to or variables.get("inventory_hostname", "host")
        subject = f"image {str(self._task.args.get('name')).partition('@')[0]} from {host}"
        told = Follower(self, _MODULE, variables, subject).follow(dict(self._task.args))
        if told.get("failed"):
            advice = f" Next: {told['next']}" if told.get("next") else ""
            told["msg"] = f"{host}: {told.get('msg')}{advice}"
        elif told.get("offer"):
            told["offer"]["host"] = str(host)
        return {**result, **told}

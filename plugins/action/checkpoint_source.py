# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows the module of the same name, beside which it is documented."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._follow import Follower

_MODULE = "gpufleet.vllm.checkpoint_source"


class ActionModule(ActionBase):
    """Runs the module on the host that has the checkpoint, and follows its job."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        source = self._task.args.get("source") or {}
        place = str(self._task.delegate_to or (task_vars or {}).get("inventory_hostname", "host"))
        name = os.path.basename(str(source.get("path") or source.get("repository") or "").rstrip("/"))
        follower = Follower(self, _MODULE, task_vars or {}, f"checkpoint {name} on {place}")
        told = follower.follow(dict(self._task.args))
        if told.get("failed") and told.get("next"):
            told = {**told, "msg": f"{place}: {told['msg']} Next: {told['next']}"}
        return {**result, **told}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Follows the module of the same name, beside which it is documented, while it hashes."""

from __future__ import annotations

import os
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._follow import Follower

_MODULE = "gpufleet.vllm.checkpoint_info"


class ActionModule(ActionBase):
    """Runs the module and shows how far its job is."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        name = os.path.basename(str(self._task.args.get("path", "")).rstrip("/"))
        follower = Follower(self, _MODULE, task_vars or {}, f"checkpoint {name}")
        return {**result, **follower.follow(dict(self._task.args))}

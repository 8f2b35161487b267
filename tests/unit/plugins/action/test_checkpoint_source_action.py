# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the plugin gets its words from; with the module it is tested in test_checkpoint.py."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from ansible_collections.gpufleet.vllm.plugins.action.checkpoint_source import ActionModule


@pytest.mark.parametrize(("delegate_to", "place"), [("gpu9", "gpu9"), (None, "gpu1")])
def test_a_failure_names_the_host_that_it_is_on(delegate_to, place):
    task = MagicMock(async_val=False, check_mode=False, diff=False, delegate_to=delegate_to)
    task.args = {"source": {"path": "/srv/models/tiny/"}}
    action = ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._display = MagicMock()
    action._execute_module = lambda **call: {"failed": True, "msg": "It is gone.", "next": "ls /srv/models"}
    told = action.run(task_vars={"inventory_hostname": "gpu1"})
    assert told["msg"] == f"{place}: It is gone. Next: ls /srv/models"

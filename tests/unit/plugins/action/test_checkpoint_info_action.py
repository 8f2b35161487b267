# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest.mock import MagicMock

from ansible_collections.gpufleet.vllm.plugins.action import checkpoint_info


def test_hashing_is_shown_and_its_end_returned(monkeypatch):
    running = {"job": {"id": "1", "state": "running", "progress": {"phase": "hashing", "done_bytes": 1 << 30}}}
    told = iter([running, {"changed": False, "checkpoint": {"complete": True}}])
    asked = []
    task = MagicMock(async_val=False, check_mode=False, diff=False)
    task.args = {"path": "/srv/models/Qwen3-8B/", "hash": True}
    action = checkpoint_info.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._display = MagicMock()
    action._execute_module = lambda **call: asked.append(call["module_args"]) or next(told)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    result = action.run(task_vars={"inventory_hostname": "gpu1"})
    assert result["checkpoint"] == {"complete": True}
    assert [(call["wait"], call.get("job")) for call in asked] == [(False, None), (False, "1")]
    (line,) = [call.args[0] for call in action._display.display.call_args_list]
    assert line.startswith("gpu1: checkpoint Qwen3-8B: hashing, 1.0 GiB")

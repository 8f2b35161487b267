# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from ansible_collections.gpufleet.vllm.plugins.action import gpu_info


def run(told, **variables):
    task = MagicMock(async_val=False, check_mode=False, diff=False, args={})
    action = gpu_info.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._execute_module = lambda **_call: told
    return action.run(task_vars={"inventory_hostname": "gpu1", **variables})


@pytest.mark.parametrize("where", ["module_stderr", "module_stdout"])
def test_a_python_that_is_too_old_is_named(where):
    text = "SyntaxError: future feature annotations is not defined"
    result = run({"failed": True, "msg": "MODULE FAILURE", where: text}, ansible_python_interpreter="/usr/bin/python3")
    assert result["failed"]
    assert result["msg"].startswith("gpu1: the Python /usr/bin/python3 is older than 3.8")
    assert "ansible_python_interpreter" in result["msg"] and "Next" in result["msg"]


@pytest.mark.parametrize("told", [{"gpus": [], "changed": False}, {"failed": True, "msg": "no driver"}])
def test_all_else_is_told_as_it_is(told):
    assert run(told) == told

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from unittest.mock import MagicMock, patch

import pytest
from ansible.errors import AnsibleActionFail, AnsibleError

from ansible_collections.gpufleet.vllm.plugins.action.show import ActionModule


def run(arguments):
    task = MagicMock(async_val=False, check_mode=False, diff=False, args=arguments)
    action = ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._load_name = "gpufleet.vllm.show"  # the plugin loader sets it
    with patch.object(ActionModule, "_display", create=True) as display:
        action._display = display
        result = action.run(task_vars={})
    return result, [call.args[0] for call in display.display.call_args_list]


def test_the_text_is_printed_as_it_is_and_nothing_changes():
    result, printed = run({"text": "a table\n  with lines\n"})
    assert printed == ["a table\n  with lines"]
    assert result["changed"] is False


@pytest.mark.parametrize("arguments", [{}, {"text": "x", "colour": "red"}])
def test_a_wrong_call_is_refused(arguments):
    with pytest.raises((AnsibleActionFail, AnsibleError)):
        run(arguments)

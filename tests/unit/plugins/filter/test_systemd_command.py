# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.systemd_command import FilterModule

systemd_command = FilterModule().filters()["systemd_command"]


def test_a_list_becomes_the_value_of_exec_start():
    assert systemd_command(["/bin/echo", "--word", "two words"]) == '/bin/echo \\\n    --word "two words"'


@pytest.mark.parametrize("wrong", ["/bin/echo hello", [], ["/bin/echo", 1], None])
def test_anything_else_is_refused(wrong):
    with pytest.raises(AnsibleFilterError, match="a list of strings is needed"):
        systemd_command(wrong)

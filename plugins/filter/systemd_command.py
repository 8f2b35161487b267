# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import _launch

DOCUMENTATION = r"""
name: systemd_command
short_description: Write a command as the value of ExecStart in a systemd unit
description:
  - Quotes each word so that systemd takes it literally, and puts each option on a line of its own, so that a person can
    read the unit and a difference shows one line.
author:
  - gpufleet maintainers
positional: _input
options:
  _input:
    description: The command and its arguments.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
# => /usr/bin/docker run \
#        --env "GREETING=hello world"
exec_start: "{{ ['/usr/bin/docker', 'run', '--env', 'GREETING=hello world'] | gpufleet.vllm.systemd_command }}"
"""

RETURN = r"""
_value:
  description: The value for ExecStart, over several lines.
  type: str
"""


def systemd_command(argv: list[str]) -> str:
    """Checks the input of _launch.systemd_command."""
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        raise AnsibleFilterError(f"systemd_command: a list of strings is needed, with the program first; got: {argv!r}")
    return _launch.systemd_command(argv)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"systemd_command": systemd_command}

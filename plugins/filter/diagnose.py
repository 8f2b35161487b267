# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnose
short_description: Find the cause of a failure in a log of vLLM
description:
  - Names the causes of failure that a log shows, most probable first, each with the line that proves it and at most one
    change of one variable. A healthy log has none.
  - Takes the journal, the output of C(docker logs) or a pasted traceback of any release from 0.6 on, with the lines of
    several ranks mixed.
  - C(Engine core initialization failed) is never a cause. The cause stands above it.
positional: _input
options:
  _input:
    description: The log.
    type: str
    required: true
  context:
    description:
      - What is known beside the log. C(instance), C(plan), C(hosts) (what M(gpufleet.vllm.gpu_info) returned, in rank
        order) and C(unit) (from M(gpufleet.vllm.boot_info)), each optional.
    type: dict
    default: {}
seealso:
  - module: gpufleet.vllm.boot_info
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Read the log
  gpufleet.vllm.boot_info:
    name: chat
    lines: 4000
  register: boot

- name: Say why the engine does not start
  ansible.builtin.debug:
    msg: "{{ boot.log | gpufleet.vllm.diagnose }}"
"""

RETURN = r"""
_value:
  description:
    - Findings with C(class), C(title), C(evidence) (C(line) and C(line_number)), C(explanation), C(change)
      (C(variable), C(from) and C(to), or none), C(confidence) from 0 to 1, and C(reference).
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._diagnosis import diagnose as find_causes


def diagnose(log: str, context: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The findings. Raises AnsibleFilterError if the log is not text."""
    if not isinstance(log, str):
        raise AnsibleFilterError(
            f"gpufleet.vllm.diagnose: the log must be a text, not {type(log).__name__}; join its lines with newlines."
        )
    return find_causes(log, context)


class FilterModule:
    """Ansible filter: a log to its findings."""

    def filters(self) -> dict[str, Any]:
        return {"diagnose": diagnose}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: explain_diagnoses
short_description: Show what is wrong with instances as text
description:
  - A table first, then each instance with the line that proves the cause, plain words and its one change, then the next
    command. At most 100 columns.
positional: _input
options:
  _input:
    description: Diagnoses, as P(gpufleet.vllm.diagnose_evidence#filter) returns them.
    type: list
    elements: dict
    required: true
  bundle:
    description: Where the support bundle was written, if it was.
    type: str
    default: ""
  commands:
    description: What to type next.
    type: list
    elements: str
    default: []
seealso:
  - plugin: gpufleet.vllm.diagnose_evidence
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Read a log that was pasted
  gpufleet.vllm.show:
    text: "{{ [lookup('ansible.builtin.file', 'engine.log') | gpufleet.vllm.diagnose_evidence]
              | gpufleet.vllm.explain_diagnoses }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._diagnosis import explain_diagnoses as explain


def explain_diagnoses(diagnoses: list[dict[str, Any]], bundle: str = "", commands: list[str] | None = None) -> str:
    """The text. Raises AnsibleFilterError if the input is no list of diagnoses."""
    if not isinstance(diagnoses, list) or any("findings" not in one for one in diagnoses):
        raise AnsibleFilterError(
            "gpufleet.vllm.explain_diagnoses: the input must be a list of what gpufleet.vllm.diagnose_evidence gave."
        )
    return explain(diagnoses, bundle, commands)


class FilterModule:
    """Ansible filter: diagnoses to text."""

    def filters(self) -> dict[str, Any]:
        return {"explain_diagnoses": explain_diagnoses}

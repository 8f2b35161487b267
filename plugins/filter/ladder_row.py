# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ladder_row
short_description: Write down what came of a step of the ladder
description:
  - Makes the row of the ledger for a step of P(gpufleet.vllm.ladder#filter) that was tried.
  - A pure function. It writes no file.
positional: _input
options:
  _input:
    description: The step, as P(gpufleet.vllm.ladder#filter) returned it.
    type: dict
    required: true
  outcome:
    description: What the engine did with the change. V(refused) is what the plan does not allow.
    type: str
    choices: [serves, failed, refused]
    required: true
  minutes:
    description: How long the start took.
    type: float
    required: true
  findings:
    description: What P(gpufleet.vllm.diagnose#filter) found after the start, if it failed.
    type: list
    elements: dict
    default: []
seealso:
  - plugin: gpufleet.vllm.ladder
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Remember what came of it
  ansible.builtin.set_fact:
    my_ledger: "{{ my_ledger + [my_step | gpufleet.vllm.ladder_row('failed', 3.5, boot.findings)] }}"
"""

RETURN = r"""
_value:
  description:
    - C(step), C(class), C(variable), C(from), C(to), C(why) and C(probe) of the step; C(outcome), C(minutes),
      C(finding) (what went wrong then, or none) and C(kept), which says whether the change stays in the next start.
  type: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._diagnosis import ladder_row as row_of


def ladder_row(
    step: dict[str, Any], outcome: str, minutes: float, findings: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The row. Raises AnsibleFilterError if there is no change in the step, or no such outcome."""
    if not isinstance(step, dict) or not step.get("change"):
        raise AnsibleFilterError(
            "gpufleet.vllm.ladder_row: the input must be a step with a change; pass what gpufleet.vllm.ladder returned "
            "while its verdict was try."
        )
    if outcome not in ("serves", "failed", "refused"):
        raise AnsibleFilterError(f"gpufleet.vllm.ladder_row: outcome must be serves, failed or refused, not {outcome}.")
    return row_of(step, outcome, minutes, findings)


class FilterModule:
    """Ansible filter: a step that was tried to its row in the ledger."""

    def filters(self) -> dict[str, Any]:
        return {"ladder_row": ladder_row}

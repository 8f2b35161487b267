# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ladder
short_description: Choose the next single change after a failed start
description:
  - Takes the findings of a failed start and gives the next change to try, one variable at a time. What costs least
    comes first; for memory it is vLLM's own order.
  - What was tried already is not proposed again, and after O(max_steps) changes the ladder ends.
  - A pure function. It changes nothing.
positional: _input
options:
  _input:
    description: What P(gpufleet.vllm.diagnose#filter) found, most probable first.
    type: list
    elements: dict
    required: true
  context:
    description:
      - What is known beside the log. C(instance), C(plan) and C(hosts), as for P(gpufleet.vllm.diagnose#filter). They
        must be those of the start that failed.
    type: dict
    default: {}
  ledger:
    description: The changes that were tried so far, oldest first, each with C(variable), C(from) and C(to).
    type: list
    elements: dict
    default: []
  max_steps:
    description: How many changes to try at most.
    type: int
    default: 8
seealso:
  - plugin: gpufleet.vllm.diagnose
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: What to try next
  ansible.builtin.debug:
    msg: "{{ boot.findings | gpufleet.vllm.ladder(context={'plan': my_plan}, ledger=my_ledger) }}"
"""

RETURN = r"""
_value:
  description:
    - C(class) of the failure, C(change) (C(variable), C(from) and C(to), or none), C(why), C(probe) (whether the change
      is to be taken back when the engine serves), C(step) and C(steps_left).
    - C(verdict) is V(try) while there is a change, V(exhausted) when none is left, V(look) where no change helps.
  type: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._diagnosis import ladder as next_change


def ladder(
    findings: list[dict[str, Any]],
    context: dict[str, Any] | None = None,
    ledger: list[dict[str, Any]] | None = None,
    max_steps: int = 8,
) -> dict[str, Any]:
    """The next change. Raises AnsibleFilterError if the findings are none."""
    if not isinstance(findings, list) or any("class" not in finding for finding in findings):
        raise AnsibleFilterError(
            "gpufleet.vllm.ladder: the input must be a list of findings; pass the result of gpufleet.vllm.diagnose, or "
            "the findings that gpufleet.vllm.wait_ready returned."
        )
    return next_change(findings, context, ledger, max_steps)


class FilterModule:
    """Ansible filter: findings to the next change."""

    def filters(self) -> dict[str, Any]:
        return {"ladder": ladder}

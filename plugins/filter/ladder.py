# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ladder
short_description: Choose the next single change after a failed start
description:
  - Takes the findings of a failed start and gives the next change to try, one variable at a time. What costs least
    comes first; for memory it is vLLM's own order, and the allocation that failed decides where it begins.
  - What was tried already is not proposed again. After O(max_steps) changes or O(max_minutes) the ladder ends.
  - Changes of memory add up. A switch that did not help is taken back, and a probe (C(enforce_eager) after an obscure
    error of CUDA) is taken back in any case; where nothing else helps, a probe that served is what stays.
  - A pure function. It changes nothing.
positional: _input
options:
  _input:
    description: What P(gpufleet.vllm.diagnose#filter) found, most probable first. Of a start that serves, none.
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
    description: The rows of this climb, oldest first, as P(gpufleet.vllm.ladder_row#filter) makes them.
    type: list
    elements: dict
    default: []
  max_steps:
    description: How many changes to try at most.
    type: int
    default: 8
  max_minutes:
    description: How many minutes all starts together may take.
    type: float
    default: 60
  serves:
    description: Whether the last start serves. After a probe that serves the ladder goes on.
    type: bool
    default: false
seealso:
  - plugin: gpufleet.vllm.diagnose
    plugin_type: filter
  - plugin: gpufleet.vllm.ladder_row
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: What to try next
  ansible.builtin.set_fact:
    my_step: "{{ boot.findings | gpufleet.vllm.ladder(context={'plan': my_plan, 'instance': my_instance},
                                                      ledger=my_ledger) }}"
"""

RETURN = r"""
_value:
  description:
    - C(class) of the failure, C(change) (C(variable), C(from) and C(to), or none), C(why), C(probe) (whether the change
      only shows where the trouble is), C(step), C(steps_left) and C(minutes_left).
    - C(changes) are all changes that the next start has, by variable, such as
      V({"engine_args.gpu_memory_utilization":0.85}). C(held) is what the last plan chose beside them. With both the
      next start differs from the last one by the change alone. C(proven) is both of an engine that serves, for the
      inventory.
    - C(verdict) is V(try) while there is a change, V(serves) when the engine serves and nothing is left to do,
      V(exhausted) when nothing on the ladder is left, with the hardware that would help in C(needs), V(look) where no
      change helps.
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
    max_minutes: float = 60.0,
    serves: bool = False,
) -> dict[str, Any]:
    """The next change. Raises AnsibleFilterError if the findings are none."""
    if not isinstance(findings, list) or any("class" not in finding for finding in findings):
        raise AnsibleFilterError(
            "gpufleet.vllm.ladder: the input must be a list of findings; pass the result of gpufleet.vllm.diagnose, or "
            "the findings that gpufleet.vllm.wait_ready returned."
        )
    return next_change(findings, context, ledger, max_steps, max_minutes, serves)


class FilterModule:
    """Ansible filter: findings to the next change."""

    def filters(self) -> dict[str, Any]:
        return {"ladder": ladder}

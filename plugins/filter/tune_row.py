# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_row
short_description: Write down what came of a start of an engine that is tuned
description:
  - Makes the row of the ledger for a step of P(gpufleet.vllm.tune_step#filter), with the verdict on its change.
  - A pure function. It writes no file.
positional: _input, problem, ledger, result
options:
  _input:
    description: The step, as P(gpufleet.vllm.tune_step#filter) returned it.
    type: dict
    required: true
  problem:
    description: The input of P(gpufleet.vllm.tune_step#filter).
    type: dict
    required: true
  ledger:
    description: The rows before this one.
    type: list
    elements: dict
    required: true
  result:
    description:
      - C(outcome) is V(serves), V(failed) (it did not start, or ended under the load) or V(refused) (by the plan).
      - C(runs) as M(gpufleet.vllm.bench) returns them, C(minutes), C(finding) of a failure, C(receipt) of the start.
    type: dict
    required: true
seealso:
  - plugin: gpufleet.vllm.tune_step
    plugin_type: filter
  - module: gpufleet.vllm.bench
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Remember what came of it
  ansible.builtin.set_fact:
    my_ledger: "{{ my_ledger + [my_step | gpufleet.vllm.tune_row(my_problem, my_ledger, my_result)] }}"
  vars:
    my_result:
      outcome: serves
      runs: "{{ bench.runs }}"
      minutes: 3.5
"""

RETURN = r"""
_value:
  description:
    - C(kind) (V(tune)), C(basis), C(number), C(stage), C(change), C(changes) and C(why) of the step, C(outcome),
      C(runs), C(minutes), C(finding) and C(receipt) of the result.
    - C(kept) says whether the change stays, C(verdict) says why in words.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._tuning import TuningError, row_of

OUTCOMES = ("serves", "failed", "refused")


def tune_row(
    step: dict[str, Any], problem: Mapping[str, Any], ledger: Sequence[dict[str, Any]], result: Mapping[str, Any]
) -> dict[str, Any]:
    """The row. Raises AnsibleFilterError for a step that is none to try, or a result that is none."""
    if not isinstance(step, dict) or step.get("verdict") != "try":
        raise AnsibleFilterError(
            "gpufleet.vllm.tune_row: the input must be a step to try; pass what gpufleet.vllm.tune_step returned while "
            "its verdict was try."
        )
    if result.get("outcome") not in OUTCOMES:
        raise AnsibleFilterError(
            f"gpufleet.vllm.tune_row: outcome must be one of {', '.join(OUTCOMES)}, not {result.get('outcome')}."
        )
    try:
        return row_of(problem, ledger, step, result)
    except TuningError as error:
        raise AnsibleFilterError(f"gpufleet.vllm.tune_row: {error}.") from error


class FilterModule:
    """Ansible filter: a start that was tried to its row in the ledger."""

    def filters(self) -> dict[str, Any]:
        return {"tune_row": tune_row}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tune_step
short_description: Choose the next start of an engine that is tuned
description:
  - Replays the ledger of a tuning through the procedure and gives the next start to look at, or where the tuning ends.
  - First the engine as it is, several times, to know the noise. Then small. C(max_model_len) is raised up to what is
    asked for or to the boundary, and 10 % back. Then, under load, memory, C(max_num_seqs), C(max_num_batched_tokens),
    C(enable_prefix_caching), C(kv_cache_dtype), and two cards against one, one parameter at a time.
  - A change stays only if it is better by more than the noise and keeps all bounds.
  - A pure function. An interrupted tuning goes on where its ledger ends.
positional: _input, ledger
options:
  _input:
    description:
      - What is tuned and for what. C(instance) as in the inventory, C(plan) (of the instance as it is), C(hosts) (what
        M(gpufleet.vllm.gpu_info) returned), C(checkpoint) (its description).
      - C(maximize), C(bounds), C(load), C(parameters), C(start), C(max_model_len), C(max_steps), C(max_minutes) and
        C(window) (with C(now), the time of day) are the variables C(vllm_tune_*) of the role
        P(gpufleet.vllm.vllm#role).
    type: dict
    required: true
  ledger:
    description: The rows of the ledger of the instance, oldest first. Rows of anything else are passed over.
    type: list
    elements: dict
    required: true
seealso:
  - plugin: gpufleet.vllm.tune_row
    plugin_type: filter
  - plugin: gpufleet.vllm.explain_tuning
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: What to start next
  ansible.builtin.set_fact:
    my_step: "{{ my_problem | gpufleet.vllm.tune_step(my_ledger) }}"
"""

RETURN = r"""
_value:
  description:
    - C(verdict) is V(try) while there is a start to look at, then V(done), or V(stuck) where nothing serves or nothing
      can be measured. Outside of the window it is V(paused).
    - C(number), C(stage), C(change) (C(variable), C(from), C(to), or none), C(why), C(measure) (whether to send the
      load), C(load), and C(changes), all that the start has beside the inventory, by variable.
    - At the end C(changes) is what the best start has, none where the engine stays as it is, with C(why), C(notes) and
      C(noise).
    - C(basis) and C(case) say which tuning it belongs to.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._tuning import TuningError, next_step


def tune_step(problem: Mapping[str, Any], ledger: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The next start. Raises AnsibleFilterError for what nobody can tune."""
    try:
        return next_step(problem, ledger)
    except TuningError as error:
        raise AnsibleFilterError(f"gpufleet.vllm.tune_step: {error}.") from error
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.tune_step: the input lacks {error}; it needs instance, plan, hosts and checkpoint."
        ) from error


class FilterModule:
    """Ansible filter: a ledger to the next start."""

    def filters(self) -> dict[str, Any]:
        return {"tune_step": tune_step}

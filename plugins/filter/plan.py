# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan
short_description: Plan vLLM engines on the hosts' GPUs
description:
  - Predicts what vLLM will do with the memory of every GPU and chooses what the instances leave open, in a fixed order.
    The model is fitted first, then the length follows the load, then room is left, and the batch comes last.
  - A pure function. The same input gives the same plan; nothing is read and nothing is changed.
  - The instances are planned one after the other, so that two of them on one card see each other.
positional: _input
options:
  _input:
    description:
      - The instances, as the variable C(vllm_instances) holds them. Each needs C(name), C(image) with the tag of a
        release (V(latest) is refused) and C(checkpoint).
      - C(workload) promises C(context) (tokens per request), C(sequences) (requests at once) and C(typical_context);
        C(prefer) (V(context) or V(sequences)) says which is kept where both do not fit.
      - C(engine_args) pins arguments by vLLM's own names. Every pin is obeyed; what is not pinned is planned.
      - An instance can also have C(extra_args), C(environment), C(task), C(gpus) (indices or UUIDs), C(headroom_mib),
        C(receipt) (what an earlier start measured) and C(trust_remote_code).
    type: list
    elements: dict
    required: true
  hosts:
    description: What M(gpufleet.vllm.gpu_info) returned for each host of the instances, in rank order.
    type: list
    elements: dict
    required: true
  checkpoints:
    description:
      - What M(gpufleet.vllm.checkpoint_info) returned for each checkpoint, by its path on the host.
      - The C(config.json) of a model as it is published does, too. Then the weights are counted, not read.
    type: dict
    required: true
  inventory_hosts:
    description: The inventory names of the hosts, in the same order.
    type: list
    elements: str
    default: []
  current_plans:
    description:
      - The plans that run now, by the name of the instance.
      - While what is asked for is the same and still has room, a plan stays as it is. Nothing is restarted because a
        few MiB more or less are free.
    type: dict
    default: {}
  receipts:
    description:
      - What vLLM measured at earlier starts, by the name of the instance, as P(gpufleet.vllm.receipt#filter) gives it.
      - A receipt of the same release, card, model and parallel sizes replaces the prediction, one of another model
        narrows it. Any other is refused with a line in the plan's warnings.
    type: dict
    default: {}
seealso:
  - plugin: gpufleet.vllm.explain
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Plan this host's engines
  ansible.builtin.set_fact:
    my_plans: >-
      {{ vllm_instances | gpufleet.vllm.plan(hosts=[my_gpus], checkpoints={'/models/qwen3-8b': my_checkpoint},
                                             inventory_hosts=[inventory_hostname]) }}

- name: Say what was planned, and why
  ansible.builtin.debug:
    msg: "{{ my_plans | gpufleet.vllm.explain }}"
"""

RETURN = r"""
_value:
  description:
    - One plan an instance, in the order of the instances.
    - A plan has C(name), C(image), C(served_model_name), C(address), C(port), C(verdict) (V(fits), V(fits_reduced),
      V(unverified), V(does_not_fit) or V(unsupported)), C(release), C(parallel), C(devices) (the UUIDs
      of the chosen GPUs, by host), C(budget) (the memory of each GPU in GiB, each term with value, low, high and
      source), C(kv), C(arguments) (each with name, value, why, step and cost), C(environment), C(decisions),
      C(warnings) and C(needs) (what would make it fit).
    - An engine with the verdict V(fits), V(fits_reduced) or V(unverified) may be started. V(unverified) says that the
      memory of the model is not understood; then the low end of the prediction keeps what C(workload) says.
  type: list
  elements: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._planning import InstanceError, plan_instances, refused_pin

NEXT_COMMAND = "ansible-playbook gpufleet.vllm.plan_vllm"


def plan(
    instances: Sequence[Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    inventory_hosts: Sequence[str] = (),
    current_plans: Mapping[str, Mapping[str, Any]] | None = None,
    receipts: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The plans of the instances. Raises AnsibleFilterError with everything that is wrong, and the next command."""
    if isinstance(instances, Mapping) or not isinstance(instances, Sequence) or isinstance(instances, str):
        raise refusal([f"vllm_instances {instances!r} is not a list; write '- name: ...' for each instance."])
    try:
        plans = plan_instances(instances, hosts, checkpoints, inventory_hosts, current_plans, receipts)
    except InstanceError as error:
        raise refusal(error.errors) from error
    refused = [refused_pin(str(item["name"]), error).on(item["hosts"]) for item in plans for error in item["errors"]]
    if refused:
        raise refusal(refused)
    return plans


def refusal(faults: Sequence[object]) -> AnsibleFilterError:
    """All faults, one a line, and what to do next."""
    lines = [f"gpufleet.vllm.plan: {faults[0]}", *(f"  {fault}" for fault in faults[1:])]
    return AnsibleFilterError("\n".join([*lines, f"Next: correct the inventory, then {NEXT_COMMAND}"]))


class FilterModule:
    """Ansible filter: from instances and facts to plans."""

    def filters(self) -> dict[str, Any]:
        return {"plan": plan}

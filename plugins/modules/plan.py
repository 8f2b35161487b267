#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan vLLM engines on the hosts' GPUs, as a task
description:
  - Does what the filter P(gpufleet.vllm.plan#filter) does; the filter's page says what goes in and what comes out.
  - Where the instances cannot be planned, the task fails with all faults, one a line, and the next command. Of a filter
    that fails, Ansible tells several times over, with the files and lines of the role.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
options:
  instances:
    description: The instances, as the variable C(vllm_instances) holds them.
    type: list
    elements: dict
    required: true
  hosts:
    description: What M(gpufleet.vllm.gpu_info) returned for each host of the instances, in rank order.
    type: list
    elements: dict
    required: true
  checkpoints:
    description: What M(gpufleet.vllm.checkpoint_info) returned for each checkpoint, by its path on the host.
    type: dict
    required: true
  inventory_hosts:
    description: The inventory names of the hosts, in the same order.
    type: list
    elements: str
    default: []
  current_plans:
    description: The plans that run now, by the name of the instance.
    type: dict
    default: {}
  receipts:
    description: What vLLM measured at earlier starts, by the name of the instance.
    type: dict
    default: {}
  host:
    description: Inventory name of the host, where O(member_fact) is given.
    type: str
  member_fact:
    description:
      - For a host with instances that span several, the name of a fact that every member holds. It has C(instances),
        C(facts) (C(gpu_info), C(checkpoints), C(plans), C(receipts)) and C(network), what
        M(gpufleet.vllm.member_info) returned.
      - If given, these facts are planned with, and not O(instances), O(hosts) and what follows. Each member computes
        the same plan of an engine that spans them.
    type: str
  reach_fact:
    description: Name of the fact with what M(gpufleet.vllm.member_info) returned about the peers of each member.
    type: str
  next_command:
    description: The command to try after the instances were corrected.
    type: str
    required: true
notes:
  - It runs on the controller and never connects to a host.
seealso:
  - plugin: gpufleet.vllm.plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Plan the engines of the host
  gpufleet.vllm.plan:
    instances: "{{ vllm_instances }}"
    hosts: ["{{ my_gpus }}"]
    checkpoints: {"/models/qwen3-8b": "{{ my_checkpoint }}"}
    inventory_hosts: ["{{ inventory_hostname }}"]
    next_command: "{{ lookup('gpufleet.vllm.next_command', 'plan_vllm') }}"
  register: planned

- name: Say what was planned, and why
  gpufleet.vllm.show:
    text: "{{ planned.plans | gpufleet.vllm.explain }}"
"""

RETURN = r"""
plans:
  description: One plan an instance, in the order of the instances; see P(gpufleet.vllm.plan#filter).
  returned: success
  type: list
  elements: dict
member_checks:
  description:
    - What the members of the engines that span this host found of each other, as P(gpufleet.vllm.preflight#filter)
      returns checks. Empty for a host without such engines.
  returned: success
  type: list
  elements: dict
"""

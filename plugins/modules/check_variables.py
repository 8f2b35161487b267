#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Check the variables of a host and name all faults at once
description:
  - Compares the variables of the host with the argument specification of a role of this collection. Each fault is told
    with the variable, its value and what would be right; values of keys and of the environment are not shown.
  - M(ansible.builtin.validate_argument_spec) finds the same faults, and prints the whole specification for each host.
  - Warns of variables whose name looks like a slip of a known one.
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
  role:
    description: Name of the role, for example V(vllm).
    type: str
    required: true
  entry_point:
    description: Entry point of the role, for example V(plan).
    type: str
    required: true
  next_command:
    description: The command to try after the variables were corrected.
    type: str
    required: true
notes:
  - It runs on the controller and never connects to a host.
"""

EXAMPLES = r"""
- name: Check the variables
  gpufleet.vllm.check_variables:
    role: vllm
    entry_point: plan
    next_command: "{{ lookup('gpufleet.vllm.next_command', 'plan_vllm') }}"
"""

RETURN = r""" # """

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: show
short_description: Print a text as it is
description:
  - Prints a text, such as a plan's explanation, to whoever runs the playbook, line by line and without quotes.
  - M(ansible.builtin.debug) prints a text as a YAML or JSON value, in which tables and pictures cannot be read.
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
  text:
    description: What to print.
    type: str
    required: true
notes:
  - It runs on the controller and never connects to a host.
"""

EXAMPLES = r"""
- name: Show the plans
  gpufleet.vllm.show:
    text: "{{ plans | gpufleet.vllm.explain }}"
"""

RETURN = r""" # """

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: next_command
short_description: The next command, as the user types it
description:
  - Writes the command line for a playbook of this collection in the form in which the running one was started. The
    inventories, the limit, the way of asking for passwords and files of variables are repeated.
  - A playbook that was started by its path gets a path, one that was started as V(gpufleet.vllm.plan_vllm) gets such a
    name.
  - Single variables (C(-e name=value)) are not repeated. They can be secret, and they belong to the last command.
options:
  _terms:
    description:
      - Names of playbooks of the collection, without C(.yml), for example V(deploy_vllm).
      - V(reach) is the command that tries whether O(hosts) can be reached.
    type: list
    elements: str
    required: true
  extra_vars:
    description: Further words for C(-e).
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to reach, as a pattern.
    type: str
    default: vllm
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Say how to go on
  ansible.builtin.fail:
    msg: >-
      Correct the inventory. Next: {{ lookup('gpufleet.vllm.next_command', 'plan_vllm') }}

- name: Say how to deploy although the plan is of recorded facts
  ansible.builtin.debug:
    msg: "{{ lookup('gpufleet.vllm.next_command', 'deploy_vllm', extra_vars=['vllm_facts_directory=']) }}"
"""

RETURN = r"""
_raw:
  description: One command line for each term.
  type: list
  elements: str
"""

from typing import Any

from ansible import constants, context
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._command import next_command, reach_command


class LookupModule(LookupBase):  # type: ignore[misc]  # ansible-core has no types
    """Ansible lookup: command lines in the user's form."""

    def run(self, terms: list[str], variables: Any = None, **options: Any) -> list[str]:
        self.set_options(var_options=variables, direct=options)
        return [self._command(str(term)) for term in terms]

    def _command(self, term: str) -> str:
        given, default = dict(context.CLIARGS), constants.DEFAULT_HOST_LIST
        if term == "reach":
            return reach_command(self.get_option("hosts"), given, default)
        return next_command(term, given, default, self.get_option("extra_vars"))

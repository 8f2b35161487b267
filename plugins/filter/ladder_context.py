# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ladder_context
short_description: Say what is known beside the log of a failed start
description:
  - Makes the context of P(gpufleet.vllm.ladder#filter) and P(gpufleet.vllm.diagnose#filter). The GPU memory that the
    engine itself held when the host was read counts as free, as a new start takes its place.
  - A pure function.
positional: _input
options:
  _input:
    description: The instance of the start, with all its changes.
    type: dict
    required: true
  plan:
    description: The plan of the start.
    type: dict
  hosts:
    description: What M(gpufleet.vllm.gpu_info) returned.
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
- name: What to try next
  ansible.builtin.set_fact:
    my_step: >-
      {{ my_findings
         | gpufleet.vllm.ladder(context=my_instance | gpufleet.vllm.ladder_context(my_plan, hosts=[my_gpu_info])) }}
"""

RETURN = r"""
_value:
  description: C(instance), C(plan) and C(hosts).
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._changes import ladder_context as context_of


def ladder_context(
    instance: Mapping[str, Any], plan: Mapping[str, Any] | None = None, hosts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The context. Raises AnsibleFilterError if the instance has no name."""
    if not isinstance(instance, Mapping) or "name" not in instance:
        raise AnsibleFilterError(
            "gpufleet.vllm.ladder_context: the input must be an entry of vllm_instances with its name."
        )
    return context_of(instance, plan, hosts)


class FilterModule:
    """Ansible filter: an instance to the context of a failed start."""

    def filters(self) -> dict[str, Any]:
        return {"ladder_context": ladder_context}

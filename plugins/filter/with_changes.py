# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: with_changes
short_description: Give an instance other values
description:
  - Returns an instance with the changes that P(gpufleet.vllm.ladder#filter) or P(gpufleet.vllm.tune_step#filter)
    proposes.
  - A pure function. The instance itself stays as it is.
positional: _input, changes
options:
  _input:
    description: An entry of C(vllm_instances).
    type: dict
    required: true
  changes:
    description: Values by variable, such as C(engine_args.max_num_seqs). None takes the variable away.
    type: dict
    required: true
seealso:
  - plugin: gpufleet.vllm.ladder
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Take fewer sequences
  ansible.builtin.set_fact:
    my_instance: "{{ vllm_instances[0] | gpufleet.vllm.with_changes({'engine_args.max_num_seqs': 64}) }}"
"""

RETURN = r"""
_value:
  description: The instance with the changes.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._changes import with_changes as changed


def with_changes(instance: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The instance. Raises AnsibleFilterError if one of both is no dictionary."""
    if not isinstance(instance, Mapping) or not isinstance(changes, Mapping):
        raise AnsibleFilterError(
            "gpufleet.vllm.with_changes: the input must be an entry of vllm_instances, and changes a dictionary such "
            "as {'engine_args.max_num_seqs': 64}."
        )
    return changed(instance, changes)


class FilterModule:
    """Ansible filter: an instance to one with other values."""

    def filters(self) -> dict[str, Any]:
        return {"with_changes": with_changes}

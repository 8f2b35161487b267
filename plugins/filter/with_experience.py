# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: with_experience
short_description: Give instances without a receipt that of their nearest neighbour
description:
  - Takes the receipts of a host and adds, for each instance that has none, the nearest one of an experience file. It
    must be of the same release, card and architecture. The same model comes first, then the same division over GPUs,
    then the nearest size of the weights.
  - The planner takes a receipt of the same model for measured, and one of a neighbour with half the doubt of its own
    prediction.
  - A pure function.
positional: _input, text
options:
  _input:
    description: The receipts of the host, by name of the instance.
    type: dict
    required: true
  text:
    description: Text of the experience file.
    type: str
    required: true
  instances:
    description: The instances of the host.
    type: list
    elements: dict
    required: true
  checkpoints:
    description: Descriptions of their checkpoints, by path.
    type: dict
    required: true
  hosts:
    description: What M(gpufleet.vllm.gpu_info) returned.
    type: list
    elements: dict
    required: true
seealso:
  - plugin: gpufleet.vllm.experience
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Plan with what another fleet taught
  ansible.builtin.set_fact:
    my_receipts: >-
      {{ my_receipts | gpufleet.vllm.with_experience(lookup('ansible.builtin.file', 'experience.json'),
                                                     instances=vllm_instances, checkpoints=my_checkpoints,
                                                     hosts=[my_gpu_info]) }}
"""

RETURN = r"""
_value:
  description: The receipts, by name of the instance, for P(gpufleet.vllm.plan#filter).
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._experience import ExperienceError, read_experience
from ..plugin_utils._experience import with_experience as add_neighbours


def with_experience(
    receipts: Mapping[str, Mapping[str, Any]],
    text: str,
    instances: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
) -> dict[str, Mapping[str, Any]]:
    """The receipts. Raises AnsibleFilterError if the text is no experience."""
    try:
        return add_neighbours(receipts, read_experience(text), instances, checkpoints, hosts)
    except ExperienceError as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.with_experience: vllm_experience names no experience file: {error}. "
            "Name one that tune_vllm wrote, or none."
        ) from error


class FilterModule:
    """Ansible filter: receipts to receipts with those of neighbours."""

    def filters(self) -> dict[str, Any]:
        return {"with_experience": with_experience}

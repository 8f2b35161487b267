# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: deployed_by
short_description: The instances that serve what one rollout deployed
description:
  - Names the instances of a host whose current release was made for the given reason. A rollout that gives every
    deployment the same reason, and no other rollout the same, finds what it has to undo.
  - An instance that went back by itself, or that the rollout did not reach, serves another release and is not named.
positional: _input, why
options:
  _input:
    description: What M(gpufleet.vllm.instance_info) returned as C(releases).
    type: dict
    required: true
  why:
    description: The reason that was given to the deployment as C(vllm_why).
    type: str
    required: true
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Show what is to be undone
  ansible.builtin.debug:
    msg: "{{ deployed.releases | gpufleet.vllm.deployed_by('change 4711') }}"
"""

RETURN = r"""
_value:
  description: Names of instances, sorted.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError


def deployed_by(releases: Mapping[str, Sequence[Mapping[str, Any]]], why: str) -> list[str]:
    """The names of the instances. Raises AnsibleFilterError without a reason: all that gave none would match."""
    if not why:
        raise AnsibleFilterError("gpufleet.vllm.deployed_by: give the reason that the rollout gave as vllm_why.")
    return sorted(
        name for name, kept in releases.items() if any(each["current"] and each["why"] == why for each in kept)
    )


class FilterModule:
    """Ansible filter: from releases to the instances that a rollout left."""

    def filters(self) -> dict[str, Any]:
        return {"deployed_by": deployed_by}

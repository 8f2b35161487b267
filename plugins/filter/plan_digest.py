# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_digest
short_description: The digest of plans, for somebody to approve
description:
  - Names what starts on which card and what is promised to clients. Whoever approves the digest approves that, and
    C(vllm_approved_digest) holds a deployment to it.
  - A pure function. It does not change with the time, with the memory that is free at the moment, with what earlier
    starts measured, or with the order of the plans; nor because the plans were deployed.
  - A plan that was cut to the free memory, V(fits_reduced), promises what the memory of the moment holds. Its digest
    changes with that promise. Pin what the plan says, and it stays.
positional: _input
options:
  _input:
    description: Plans as P(gpufleet.vllm.plan#filter) gives them, of any number of hosts.
    type: list
    elements: dict
    required: true
seealso:
  - plugin: gpufleet.vllm.unapproved
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Hand the digest of the plans on, for example to the next node of a workflow
  ansible.builtin.set_stats:
    data:
      vllm_plan_digest: "{{ my_plans | gpufleet.vllm.plan_digest }}"
"""

RETURN = r"""
_value:
  description: C(fleet), the digest of all plans, and C(hosts), the digest of the plans of each host by its name.
  type: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..plugin_utils import _approval


def plan_digest(plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The digest of the fleet and those of its hosts."""
    return _approval.plan_digest(plans)


class FilterModule:
    """Ansible filter: from plans to what is approved."""

    def filters(self) -> dict[str, Any]:
        return {"plan_digest": plan_digest}

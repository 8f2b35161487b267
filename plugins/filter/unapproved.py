# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: unapproved
short_description: The hosts whose plans are not the approved ones
description:
  - Compares plans with a digest that somebody approved; see P(gpufleet.vllm.plan_digest#filter).
positional: _input, approved
options:
  _input:
    description: Plans as P(gpufleet.vllm.plan#filter) gives them.
    type: list
    elements: dict
    required: true
  approved:
    description:
      - The digest of a fleet. Then the plans must be exactly those of that fleet.
      - Or the whole result of P(gpufleet.vllm.plan_digest#filter). Then the plans may be those of some of its hosts.
      - If empty, every plan is approved.
    type: raw
    required: true
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Check that the plans are the approved ones
  ansible.builtin.assert:
    that: my_plans | gpufleet.vllm.unapproved(my_digest) | length == 0
"""

RETURN = r"""
_value:
  description: Names of the hosts, sorted.
  type: list
  elements: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import _approval


def unapproved(plans: Sequence[Mapping[str, Any]], approved: Any) -> list[str]:
    """The hosts whose plans are not approved. Raises AnsibleFilterError for what is no digest."""
    try:
        return _approval.unapproved(plans, approved)
    except _approval.ApprovalError as error:
        raise AnsibleFilterError(
            f"vllm_approved_digest {approved!r} {error}. Next: ansible-playbook gpufleet.vllm.plan_vllm"
        ) from error


class FilterModule:
    """Ansible filter: from plans and what was approved to the hosts that were not."""

    def filters(self) -> dict[str, Any]:
        return {"unapproved": unapproved}

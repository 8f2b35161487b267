# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: spans
short_description: Name the hosts of the instances that span several
description:
  - Resolves C(span) of the instances of a fleet, lists of hosts or names of groups.
positional: _input, groups
options:
  _input:
    description: The instances, of one host or of all hosts.
    type: list
    elements: dict
    required: true
  groups:
    description: The groups of the inventory, Ansible's variable C(groups).
    type: dict
    required: true
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
# => {"large": ["gpu1", "gpu2"]}
spans: "{{ [{'name': 'large', 'span': 'pair'}, {'name': 'small'}] | gpufleet.vllm.spans(groups) }}"
"""

RETURN = r"""
_value:
  description: The hosts in rank order, by the name of the instance. Instances on one host are left out.
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._planning import InstanceError
from ..plugin_utils._planning.spans import spans_of


def spans(instances: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The spans. Raises AnsibleFilterError for one that cannot be read."""
    try:
        return spans_of(instances, groups)
    except InstanceError as error:
        raise AnsibleFilterError(f"gpufleet.vllm.spans: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"spans": spans}

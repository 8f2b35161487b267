# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import _rollout

DOCUMENTATION = r"""
name: replicas
short_description: Write instances out that are wanted several times on a host
description:
  - An instance with C(replicas) becomes that many instances, with numbered names and ports in a row. They serve the
    same model name. The planner gives each its own GPUs where there are enough.
author:
  - gpufleet maintainers
positional: _input
options:
  _input:
    description: The instances of a host.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
# => chat-1 on port 8000 and chat-2 on port 8001
instances: "{{ [{'name': 'chat', 'port': 8000, 'replicas': 2}] | gpufleet.vllm.replicas }}"
"""

RETURN = r"""
_value:
  description: The instances, none with C(replicas). A replica has C(replica_of), the name that it was made from.
  type: list
  elements: dict
"""


def replicas(instances: Any) -> list[dict[str, Any]]:
    """Checks the input of _rollout.replicas."""
    if not isinstance(instances, list) or not all(isinstance(instance, dict) for instance in instances):
        raise AnsibleFilterError("vllm_instances is not a list of instances; write '- name: ...' for each.")
    for instance in instances:
        count = instance.get("replicas")
        if count is not None and (isinstance(count, bool) or not str(count).isdecimal() or int(count) < 1):
            raise AnsibleFilterError(
                f"vllm_instances[{instance.get('name')}].replicas is {count!r}; write a number from 1 on."
            )
    return _rollout.replicas(instances)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"replicas": replicas}

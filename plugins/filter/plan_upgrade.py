# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_upgrade
short_description: Tell what an upgrade means for the instances of a host
description:
  - Gives for each instance the report of P(gpufleet.vllm.upgrade_report#filter), and plans it on both releases.
    A promise that would no longer be kept and a KV cache that shrinks are findings, too.
  - A pure function. Nothing is pulled and nothing is changed.
positional: _input, target
options:
  _input:
    description: The instances, as P(gpufleet.vllm.plan#filter) takes them.
    type: list
    elements: dict
    required: true
  target:
    description: The release to upgrade to, as a tag, a version or an image.
    type: str
    required: true
  hosts:
    description: What M(gpufleet.vllm.gpu_info) returned for each host of the instances, in rank order.
    type: list
    elements: dict
    required: true
  checkpoints:
    description: What M(gpufleet.vllm.checkpoint_info) returned for each checkpoint, by its path on the host.
    type: dict
    required: true
  inventory_hosts:
    description: The inventory names of the hosts, in the same order.
    type: list
    elements: str
    default: []
  current_plans:
    description: The plans that run now, by the name of the instance.
    type: dict
    default: {}
  receipts:
    description: What vLLM measured at earlier starts, by the name of the instance.
    type: dict
    default: {}
seealso:
  - plugin: gpufleet.vllm.upgrade_report
    plugin_type: filter
  - plugin: gpufleet.vllm.explain
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Say what v0.33.0 would change on this host
  ansible.builtin.debug:
    msg: >-
      {{ vllm_instances | gpufleet.vllm.plan_upgrade('v0.33.0', hosts=[my_gpus], inventory_hosts=[inventory_hostname],
                                                     checkpoints={'/models/qwen3-8b': my_checkpoint})
         | gpufleet.vllm.explain }}
"""

RETURN = r"""
_value:
  description:
    - One report an instance, as P(gpufleet.vllm.upgrade_report#filter) gives it, with C(hosts), and with C(memory),
      which has C(verdict), C(needs) and the C(tokens) of the KV cache under C(now) and C(then).
  type: list
  elements: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._catalogue import UnknownRelease
from ..plugin_utils._planning import InstanceError
from ..plugin_utils._upgrade import upgrade_reports


def plan_upgrade(
    instances: Sequence[Mapping[str, Any]],
    target: str,
    hosts: Sequence[Mapping[str, Any]],
    checkpoints: Mapping[str, Mapping[str, Any]],
    inventory_hosts: Sequence[str] = (),
    current_plans: Mapping[str, Mapping[str, Any]] | None = None,
    receipts: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The reports of the instances. Raises AnsibleFilterError with instance, variable, value and remedy."""
    try:
        return upgrade_reports(instances, str(target), hosts, checkpoints, inventory_hosts, current_plans, receipts)
    except UnknownRelease as error:
        raise AnsibleFilterError(f"gpufleet.vllm.plan_upgrade: vllm_target {target!r}: {error}") from error
    except InstanceError as error:
        raise AnsibleFilterError(f"gpufleet.vllm.plan_upgrade: {error}") from error


class FilterModule:
    """Ansible filter: from instances and facts to what an upgrade means for them."""

    def filters(self) -> dict[str, Any]:
        return {"plan_upgrade": plan_upgrade}

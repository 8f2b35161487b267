# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight
short_description: Judge whether a host runs the pinned images
description:
  - Judges what M(gpufleet.vllm.gpu_info) returned for a host, before anything is changed or pulled there.
  - A pure function. Nothing is read and nothing is changed.
  - What the facts do not tell is not judged.
positional: _input
options:
  _input:
    description: What M(gpufleet.vllm.gpu_info) returned for the host, with all of its subsets.
    type: dict
    required: true
  plans:
    description:
      - The plans of P(gpufleet.vllm.plan#filter) for this host, or the entries of C(vllm_instances) before anything is
        planned. Without a plan, all GPUs count that an instance does not exclude by its C(gpus).
    type: list
    elements: dict
    default: []
  host:
    description: The inventory name of the host, for the commands.
    type: str
    default: ''
  fixes:
    description:
      - The variables of the role P(gpufleet.vllm.vllm_host#role) that allow it to fix something, with their values.
    type: dict
    default: {}
  tolerate:
    description: Names of checks whose failure is only a warning.
    type: list
    elements: str
    default: []
  image_gib:
    description: GiB that an image takes on Docker's disk while it is pulled. The default is that of the official image.
    type: float
  commands:
    description: The command lines of the playbooks that are proposed, by the names V(plan) and V(deploy).
    type: dict
    default: {}
seealso:
  - plugin: gpufleet.vllm.preflight_table
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Know the host
  gpufleet.vllm.gpu_info:
    path: /srv/models
  register: hardware

- name: Stop where the host cannot run the images
  ansible.builtin.assert:
    that: checks | selectattr('status', 'eq', 'failed') | length == 0
    fail_msg: "{{ checks | gpufleet.vllm.preflight_table(inventory_hostname) }}"
  vars:
    checks: "{{ hardware | gpufleet.vllm.preflight(vllm_instances, inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description:
    - One dictionary a check, in the order in which one depends on the other.
    - C(check) is one of V(driver), V(gpu), V(fabric_manager), V(persistence_mode), V(unified_memory), V(release),
      V(driver_for_image), V(card_for_image), V(docker), V(nvidia_toolkit), V(nvidia_runtime), V(cgroup_driver),
      V(systemd), V(commands), V(image_disk), V(model_disk), V(memory), V(port).
    - C(status) is V(ok), V(warning) or V(failed); C(what) is the case, C(where) it is, C(fix) what would be right and
      C(next) the command to try; the last two are empty where the status is V(ok).
    - C(fixed_by) is the variable with which the role fixes it, or none; C(will_be_fixed) tells whether it is set.
  type: list
  elements: dict
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.module_utils.parsing.convert_bool import boolean

from ..plugin_utils._preflight import CHECK_NAMES
from ..plugin_utils._preflight import preflight as judge


def preflight(
    facts: Mapping[str, Any],
    plans: Sequence[Mapping[str, Any]] = (),
    host: str = "",
    fixes: Mapping[str, Any] | None = None,
    tolerate: Sequence[str] = (),
    image_gib: float | None = None,
    commands: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The checks. Raises AnsibleFilterError for facts that are none and for names that no check has."""
    if not isinstance(facts, Mapping) or "gpus" not in facts:
        raise AnsibleFilterError(
            "gpufleet.vllm.preflight: these are no facts; give the result of gpufleet.vllm.gpu_info."
        )
    unknown = sorted(set(tolerate) - set(CHECK_NAMES))
    if unknown:
        raise AnsibleFilterError(
            f"gpufleet.vllm.preflight: tolerate names {', '.join(unknown)}, which no check is called; "
            f"the checks are {', '.join(CHECK_NAMES)}."
        )
    allowed = {name: _value(value) for name, value in (fixes or {}).items()}
    return judge(facts, plans, host, allowed, tolerate, image_gib, commands)


def _value(value: Any) -> Any:
    """What --extra-vars gives is text: "false" is not true."""
    try:
        return boolean(value)
    except TypeError:
        return value


class FilterModule:
    """Ansible filter: the facts of a host judged."""

    def filters(self) -> dict[str, Any]:
        return {"preflight": preflight}

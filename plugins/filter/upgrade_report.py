# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter gpufleet.vllm.upgrade_report."""

from __future__ import annotations

DOCUMENTATION = r"""
name: upgrade_report
short_description: Tell what an upgrade to another vLLM release breaks or changes
description:
  - Compares an instance as it runs now with the same instance on another release, before any image is pulled.
  - It finds arguments that vanish or are refused, defaults that change, hosts that cannot run the image, architectures
    that are gained or lost, and routes that answer without the API key.
positional: _input, target
options:
  _input:
    description:
      - The instance, one entry of C(vllm_instances). C(image) is needed; C(engine_args), C(extra_args) and
        C(environment) are checked; C(checkpoint) is checked where it is the description that
        M(gpufleet.vllm.checkpoint_info) returns.
    type: dict
    required: true
  target:
    description: The release to upgrade to, as a tag, a version or an image.
    type: str
    required: true
  hosts:
    description:
      - What M(gpufleet.vllm.gpu_info) returned for the hosts of the instance, each perhaps with its C(name).
      - Without it, drivers and cards are not checked.
    type: list
    elements: dict
    default: []
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: What does v0.33.0 change for this instance?
  ansible.builtin.debug:
    msg: "{{ vllm_instances[0] | gpufleet.vllm.upgrade_report('v0.33.0', hosts=[gpu_facts]) }}"
  vars:
    gpu_facts: "{{ gpu_info_result | combine({'name': inventory_hostname}) }}"
"""

RETURN = r"""
_value:
  description: The report.
  type: dict
  contains:
    instance:
      description: Name of the instance.
      type: str
    from:
      description: The release that runs now.
      type: str
    to:
      description: The target.
      type: str
    verdict:
      description:
        - V(blocked) when the instance would not start, V(attention) when it starts and something that it relies on
          changes, V(ready) otherwise.
      type: str
    findings:
      description:
        - The worst first, each with C(severity) (blocker, change or notice), C(subject) and C(message).
      type: list
      elements: dict
    changes:
      description: Everything that differs between the two releases, by kind.
      type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._catalogue import UnknownRelease, upgrade_report


def report(instance: Mapping[str, Any], target: str, hosts: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The filter; see its documentation."""
    if not isinstance(instance, Mapping) or not (instance.get("image") or instance.get("release")):
        raise AnsibleFilterError("upgrade_report: it takes an instance, a dictionary with at least name and image")
    try:
        return upgrade_report(instance, str(target), hosts)
    except UnknownRelease as error:
        raise AnsibleFilterError(f"upgrade_report: {error}") from error


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"upgrade_report": report}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: receipt
short_description: Put what vLLM measured at boot beside what the plan predicted
description:
  - Compares a plan with what the engine logged when it started. Memory, tokens of the KV cache, concurrency.
  - A pure function without a clock. The receipt of a start is always the same, so writing it again changes nothing.
positional: _input, boot
options:
  _input:
    description: The plan of the instance, an item of what P(gpufleet.vllm.plan#filter) returns.
    type: dict
    required: true
  boot:
    description: What M(gpufleet.vllm.boot_info) or M(gpufleet.vllm.wait_ready) returned for the engine.
    type: dict
    required: true
seealso:
  - module: gpufleet.vllm.boot_info
  - plugin: gpufleet.vllm.plan
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Write the receipt
  ansible.builtin.copy:
    content: "{{ my_plan | gpufleet.vllm.receipt(boot) | to_nice_json }}"
    dest: /var/lib/vllm/chat/receipt.json
    mode: "0644"
"""

RETURN = r"""
_value:
  description:
    - C(release), C(engine_version), C(image), C(card), C(tensor_parallel_size), C(pipeline_parallel_size) and
      C(arguments) tell which start this is.
    - C(planned) and C(measured) with sizes in GiB per GPU, C(kv_tokens), C(max_concurrency) and C(max_model_len), and
      C(difference) with C(value) (measured less planned) and C(percent) for each figure that both know.
    - C(warnings) of figures that cannot be right or are far off.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._receipt import receipt as make_receipt


def receipt(plan: Mapping[str, Any], boot: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt. Raises AnsibleFilterError if one of both is not what it should be."""
    if not isinstance(boot, Mapping) or not isinstance(boot.get("measured"), Mapping):
        raise AnsibleFilterError(
            "gpufleet.vllm.receipt: boot has no key 'measured'; register the result of gpufleet.vllm.wait_ready or "
            "gpufleet.vllm.boot_info and pass it."
        )
    if not isinstance(plan, Mapping) or "version" not in (plan.get("release") or {}):
        raise AnsibleFilterError(
            "gpufleet.vllm.receipt: the input is not a plan; pass an item of the result of gpufleet.vllm.plan."
        )
    return make_receipt(plan, boot)


class FilterModule:
    """Ansible filter: a plan and a boot to a receipt."""

    def filters(self) -> dict[str, Any]:
        return {"receipt": receipt}

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reads what deployments left on a host: plans, receipts and releases of instances."""

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_info
short_description: Reads the plans, receipts and releases that deployments left on a host
description:
  - Reads C(/etc/vllm/NAME/plan.json), C(/var/lib/vllm/NAME/receipt.json) and C(/var/lib/vllm/NAME/releases).
  - A file that is missing is left out. One that cannot be read or is no JSON object is left out, too, and a warning
    says so; the host is planned as if it were not there.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
options:
  names:
    description: Names of the instances.
    type: list
    elements: str
    required: true
seealso:
  - module: gpufleet.vllm.instance_release
"""

EXAMPLES = r"""
- name: Know what runs here
  gpufleet.vllm.instance_info:
    names: [chat, embedding]
  register: deployed

- name: Show the length that was deployed
  ansible.builtin.debug:
    msg: "{{ deployed.plans.chat.kv.max_model_len }}"
"""

RETURN = r"""
others:
  description: Names of instances of this collection that are on the host and not among O(names).
  returned: always
  type: list
  elements: str
plans:
  description: The plans that were deployed last, by the name of the instance.
  returned: always
  type: dict
receipts:
  description: What vLLM measured at the last start, by the name of the instance.
  returned: always
  type: dict
releases:
  description: The releases that are kept, oldest first, by the name of the instance, as far as it has any.
  returned: always
  type: dict
  sample: {chat: [{number: 1, state: served, current: true, image: "vllm/vllm-openai:v0.32.0", image_id: null,
    made: "2026-05-30T18:55:07Z", previous: null, reasons: [there is no unit yet (restart)], why: "", failure: ""}]}
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._release import Instance, current_release, read_releases

FILES = {"plans": "/etc/vllm/{name}/plan.json", "receipts": "/var/lib/vllm/{name}/receipt.json"}
RELEASE_KEYS = ("number", "state", "image", "image_id", "made", "previous", "reasons", "why", "failure")


def instance_info(names, files, warn):
    """Returns {"plans": {name: plan}, "receipts": {name: receipt}}; warn is called with a line for each broken file."""
    return {kind: _read_all(names, pattern, warn) for kind, pattern in files.items()}


def others(names, root="/"):
    """Returns the names of the instances with a plan and a unit that are not among the names."""
    folder = os.path.join(root, "etc/vllm")
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    instances = [Instance(name, root) for name in found if name not in names]
    return [instance.name for instance in instances if _is_deployed(instance)]


def _is_deployed(instance):
    return all(os.path.exists(instance.files[name][0]) for name in ("plan.json", instance.unit))


def _read_all(names, pattern, warn):
    found = {}
    for name in names:
        path = pattern.format(name=name)
        try:
            found[name] = _read(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            warn(f"{path} is not used: {error}. The next deployment writes it again.")
    return found


def _read(path):
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    return content


def releases(names, root="/"):
    """Returns {name: [release]} of the instances that have any."""
    kept = {name: _releases(Instance(name, root)) for name in names}
    return {name: found for name, found in kept.items() if found}


def _releases(instance):
    current = current_release(instance)
    return [
        dict({key: release[key] for key in RELEASE_KEYS}, current=release == current)
        for _number, release in sorted(read_releases(instance).items())
    ]


def main():
    module = AnsibleModule(
        argument_spec={"names": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    names = module.params["names"]
    found = instance_info(names, FILES, module.warn)
    module.exit_json(changed=False, releases=releases(names), others=others(names), **found)


if __name__ == "__main__":
    main()

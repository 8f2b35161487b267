#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Describe a model checkpoint on a host and tell whether it is complete
description:
  - Reads the directory of a checkpoint, its C(config.json) and the headers of its safetensors files, and returns the
    shape of the model, the bytes of its weights by group, and what is missing or damaged.
  - Only headers are read, so a checkpoint of hundreds of GiB takes seconds. Nothing is changed, nothing is executed.
author:
  - gpufleet maintainers (@gpufleet)
options:
  path:
    description:
      - Directory of the checkpoint. A Hugging Face cache folder (C(models--org--name)) and a ModelScope folder are
        followed to the newest snapshot.
    type: path
    required: true
attributes:
  check_mode:
    description: Can run in check mode and return the same as without it.
    support: full
"""

EXAMPLES = r"""
- name: Describe a checkpoint
  gpufleet.vllm.checkpoint_info:
    path: /srv/models/Qwen3-8B
  register: checkpoint

- name: Show its architecture
  ansible.builtin.debug:
    msg: "{{ checkpoint.checkpoint.architecture }}"
"""

RETURN = r"""
checkpoint:
  description: The normal form of the model, as the planner takes it.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._checkpoint import describe_checkpoint


def main():
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    try:
        module.exit_json(changed=False, checkpoint=describe_checkpoint(module.params["path"]))
    except ValueError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()

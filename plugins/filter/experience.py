# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: experience
short_description: Add receipts to the experience that the next fleet is planned with
description:
  - Takes the text of an experience file and gives the text with the receipts of one model added. Of equal starts the
    newest counts, so that the file does not grow without limit.
  - A pure function. It reads and writes no file.
positional: _input, receipts
options:
  _input:
    description: Text of the experience file; empty where there is none yet.
    type: str
    required: true
  receipts:
    description: Receipts, as P(gpufleet.vllm.receipt#filter) makes them.
    type: list
    elements: dict
    required: true
  path:
    description: Folder of the checkpoint of which they are.
    type: str
    required: true
  checkpoint:
    description: Its description, as M(gpufleet.vllm.checkpoint_info) returns it.
    type: dict
    required: true
  time:
    description: When they were written.
    type: str
    required: true
seealso:
  - plugin: gpufleet.vllm.with_experience
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Remember the receipt for the next fleet
  ansible.builtin.copy:
    content: >-
      {{ lookup('ansible.builtin.file', 'experience.json')
         | gpufleet.vllm.experience([my_receipt], path='/data/models/Qwen3-8B', checkpoint=my_description,
                                    time=now(utc=true).isoformat()) }}
    dest: experience.json
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description:
    - The text, as JSON. C(receipts) are objects with C(model) (C(architecture), C(checkpoint), C(weights_bytes)),
      C(time) and C(receipt). There are no host names, addresses or keys in it.
  type: str
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._experience import ExperienceError, add_receipts, model_of, read_experience


def experience(
    text: str, receipts: Sequence[Mapping[str, Any]], path: str, checkpoint: Mapping[str, Any], time: str
) -> str:
    """The text. Raises AnsibleFilterError if there was another kind of text before."""
    try:
        found = read_experience(text)
    except ExperienceError as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.experience: this is no experience file: {error}. Name another file, or remove this one."
        ) from error
    return json.dumps(add_receipts(found, receipts, model_of(path, checkpoint), time), indent=2) + "\n"


class FilterModule:
    """Ansible filter: an experience file to one with more receipts."""

    def filters(self) -> dict[str, Any]:
        return {"experience": experience}

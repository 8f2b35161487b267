# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ledger
short_description: Read the ledger of an instance
description:
  - Makes the rows of the text of a ledger, which has one JSON object a line. A line that was cut is passed over.
  - A pure function. It reads no file.
positional: _input
options:
  _input:
    description: Text of C(/var/lib/vllm/NAME/ledger.jsonl).
    type: str
    required: true
seealso:
  - plugin: gpufleet.vllm.tune_step
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Read what was changed
  ansible.builtin.set_fact:
    my_rows: "{{ my_file.content | b64decode | gpufleet.vllm.ledger }}"
"""

RETURN = r"""
_value:
  description: The rows, oldest first.
  type: list
  elements: dict
"""

from typing import Any

from ..plugin_utils._tuning import read_rows


def ledger(text: str) -> list[dict[str, Any]]:
    """The rows of the text."""
    return read_rows(str(text))


class FilterModule:
    """Ansible filter: the text of a ledger to its rows."""

    def filters(self) -> dict[str, Any]:
        return {"ledger": ledger}

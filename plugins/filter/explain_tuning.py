# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: explain_tuning
short_description: Tell what a tuning tried and found
description:
  - Shows the newest tuning of a ledger as text in 100 columns, or as one self-contained page with curves.
  - It ends with the C(engine_args) to put into the inventory.
positional: _input
options:
  _input:
    description: The rows of the ledger of the instance, oldest first.
    type: list
    elements: dict
    required: true
  host:
    description: Name of the host.
    type: str
    required: true
  name:
    description: Name of the instance.
    type: str
    required: true
  format:
    description: V(text) for a terminal of 100 columns, V(html) for a page without scripts and without network.
    type: str
    choices: [text, html]
    default: text
  command:
    description: The command that deploys what was put into the inventory, for the text.
    type: str
    default: ""
seealso:
  - plugin: gpufleet.vllm.tune_step
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Write the report
  ansible.builtin.copy:
    content: "{{ my_ledger | gpufleet.vllm.explain_tuning(inventory_hostname, 'chat', format='html') }}"
    dest: "{{ playbook_dir }}/tuning.html"
    mode: "0644"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: The text, or the page.
  type: str
"""

from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._report import explain_tuning as text_of
from ..plugin_utils._report import read_tuning, tuning_page
from ..plugin_utils._tuning import rows_of_last_run

FORMATS = ("text", "html")


def explain_tuning(
    ledger: Sequence[dict[str, Any]], host: str, name: str, format: str = "text", command: str = ""
) -> str:
    """The text or page of the newest tuning. Raises AnsibleFilterError where there is none."""
    if format not in FORMATS:
        raise AnsibleFilterError(f"gpufleet.vllm.explain_tuning: format {format!r} is unknown; write text or html.")
    try:
        tuning = read_tuning(rows_of_last_run(ledger), host, name)
        return tuning_page(tuning) if format == "html" else text_of(tuning, command)
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.explain_tuning: {error}; give the rows of a ledger that gpufleet.vllm.tune_row made."
        ) from error


class FilterModule:
    """Ansible filter: a ledger as a report."""

    def filters(self) -> dict[str, Any]:
        return {"explain_tuning": explain_tuning}

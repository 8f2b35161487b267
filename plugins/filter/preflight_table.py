# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight_table
short_description: Show the preflight of a host as text
description:
  - Shows the checks of P(gpufleet.vllm.preflight#filter) in 100 columns.
  - The verdict comes first, then the checks that are not V(ok), failures before warnings, then the next command.
positional: _input
options:
  _input:
    description: What P(gpufleet.vllm.preflight#filter) returned.
    type: list
    elements: dict
    required: true
  host:
    description: The inventory name of the host.
    type: str
    required: true
seealso:
  - plugin: gpufleet.vllm.preflight
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Say whether the host runs the images
  gpufleet.vllm.show:
    text: "{{ hardware | gpufleet.vllm.preflight(vllm_instances) | gpufleet.vllm.preflight_table(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._preflight import table


def preflight_table(checks: Sequence[Mapping[str, Any]], host: str) -> str:
    """The text. Raises AnsibleFilterError for anything but checks."""
    try:
        return table(checks, host)
    except (KeyError, TypeError, AttributeError) as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.preflight_table: these are no checks ({error!r}); "
            "give the result of gpufleet.vllm.preflight."
        ) from error


class FilterModule:
    """Ansible filter: checks as text."""

    def filters(self) -> dict[str, Any]:
        return {"preflight_table": preflight_table}

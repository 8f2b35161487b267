# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils import _rollout

DOCUMENTATION = r"""
name: rollout
short_description: Sort the hosts of a fleet into the batches of a rolling deployment
description:
  - Gives the order and the sizes of the batches for the keywords C(hosts) and C(serial) of a play.
  - Hosts that one engine spans are never torn apart; a size counts them as one.
author:
  - gpufleet maintainers
positional: _input, sizes
options:
  _input:
    description: The hosts, in the order of the inventory.
    type: list
    elements: str
    required: true
  sizes:
    description:
      - Sizes of the batches, as in Ansible's C(serial), numbers or percentages. The last is repeated.
      - The first is the canary.
    type: list
    elements: str
    required: true
  spans:
    description: The hosts of each engine that runs on several, by its name.
    type: dict
    default: {}
"""

EXAMPLES = r"""
# => {"hosts": ["gpu1", "gpu2", "gpu3"], "serial": [1, 2], "batches": [["gpu1"], ["gpu2", "gpu3"]],
#     "batch_of": {"gpu1": 0, "gpu2": 1, "gpu3": 1}, "rounds": []}
batches: "{{ ['gpu1', 'gpu2', 'gpu3'] | gpufleet.vllm.rollout([1, '100%']) }}"
"""

RETURN = r"""
_value:
  description:
    - C(hosts), sorted by batch, C(serial), the number of hosts in each batch, C(batches), the hosts of each, and
      C(batch_of), the index of the batch of each host.
    - C(rounds), in which the engines that span hosts can be deployed side by side. Each round has, by host, the name of
      its engine.
  type: dict
"""


def rollout(hosts: Sequence[str], sizes: Any, spans: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Checks the input of _rollout.rollout. A single size may stand without a list around it."""
    try:
        return _rollout.rollout(list(hosts), sizes if isinstance(sizes, list | tuple) else [sizes], spans)
    except _rollout.BatchError as error:
        raise AnsibleFilterError(f"vllm_batches: {error}.") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rollout": rollout}

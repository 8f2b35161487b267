# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: member_faults
short_description: Say why the members of an engine over several hosts cannot go on
description:
  - Compares what the members have told of themselves in this run. One that met a fault stops all, as does another image
    or checkpoint on one of them.
positional: _input, members
options:
  _input:
    description: The plan of the engine, as P(gpufleet.vllm.plan#filter) gives it.
    type: dict
    required: true
  members:
    description:
      - What each member told, by host. C(name) of the instance, C(fault) in words, C(followed) if that fault is only
        that another member ended, and C(image) (what equal images have in common) and C(model_manifest).
    type: dict
    required: true
  here:
    description: The hosts that still take part in the play.
    type: list
    elements: str
    required: true
  lost_is_fault:
    description: Whether a host that the play has lost stops the others where none of them met a fault.
    type: bool
    default: true
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Check that all members are ready
  ansible.builtin.assert:
    that: faults | length == 0
    fail_msg: "{{ faults | join('\n') }}"
  vars:
    faults: "{{ plan | gpufleet.vllm.member_faults(members, here=ansible_play_hosts) }}"
"""

RETURN = r"""
_value:
  description: The faults, one a text; none if all can go on.
  type: list
  elements: str
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..plugin_utils._catalogue.serve_args import as_boolean
from ..plugin_utils._members import check_content


def member_faults(
    plan: Mapping[str, Any],
    members: Mapping[str, Mapping[str, Any]],
    here: Sequence[str],
    lost_is_fault: bool | str = True,
) -> list[str]:
    """The faults: those that members met first, then what follows from them only if nothing else is known."""
    told = {host: member for host, member in members.items() if member.get("name") == plan["name"]}
    met = {host: member for host, member in told.items() if member.get("fault")}
    first = [f"{host}: {_once(host, member)}" for host, member in met.items() if not as_boolean(member["followed"])]
    # A host that was lost while the engine serves is none; of one that does not, it may be the cause.
    lost = list(_lost(plan, told, here)) if as_boolean(lost_is_fault) or met else []
    followed = [f"{host}: {_once(host, member)}" for host, member in met.items()]
    return [*first, *lost] or followed or list(_different(plan, told))


def _once(host: str, member: Mapping[str, Any]) -> str:
    """A fault mostly names its host already."""
    return str(member["fault"]).removeprefix(f"{host}: ")


def _lost(plan: Mapping[str, Any], told: Mapping[str, Any], here: Sequence[str]) -> Iterator[str]:
    for host in plan["hosts"]:
        if host not in here:
            yield f"{host}: the connection was lost, or it failed before. Next: ansible {host} -m ansible.builtin.ping"
        elif host not in told:
            yield f"{host}: did not come so far; its own error stands above"


def _different(plan: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if set(told) != set(plan["hosts"]) or any("image" not in member for member in told.values()):
        return
    for check in check_content(plan, told):
        yield f"{check['where']}: {check['what']}. Right would be: {check['fix']}. Next, on each: {check['next']}"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"member_faults": member_faults}

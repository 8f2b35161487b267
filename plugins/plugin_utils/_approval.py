# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The digest of plans that somebody approves, and the hosts whose plans are not the approved ones. Private.

What is approved is what starts on which card and what is promised to clients. It is the same in the plan that was
shown, in the one that the deployment makes, and in the one after the deployment. So all is left out that changes by
itself: the memory that is free now and what follows it, measurements of earlier starts, wording.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

APPROVED = (
    "name",
    "hosts",
    "image",
    "checkpoint",
    "served_model_name",
    "replica_of",
    "task",
    "address",
    "port",
    "exposure",
    "extra_args",
    "force_args",
    "environment",
    "verdict",
    "parallel",
    "devices",
    "workload",
    "basis",
)
"""What counts of a plan, beside its arguments. `workload` is what it promises, `basis` the planner's fingerprint of
what was asked for, with all pins."""

FOLLOW_FREE_MEMORY = ("gpu_memory_utilization", "kv_cache_memory_bytes", "max_num_batched_tokens", "max_num_seqs")
"""Arguments that split the memory which is free at the moment, and the batch that fits into the rest. What they hold
counts as the promise of `workload`; where they are pinned, the pin counts as part of `basis`."""


class ApprovalError(ValueError):
    """What was given as approved is no digest."""


def plan_digest(plans: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns {"fleet": digest of all plans, "hosts": {host: digest of the plans that use the host}}.

    A digest is a SHA-256 in hexadecimal. The order of the plans does not count, nor how often one is given: an engine
    over several hosts may come once from each of them.
    """
    lines = {(host, _line(item)) for item in plans for host in item["hosts"]}
    hosts = sorted({host for host, _line in lines})
    return {
        "fleet": _digest({line for _host, line in lines}),
        "hosts": {name: _digest({line for host, line in lines if host == name}) for name in hosts},
    }


def unapproved(plans: Sequence[Mapping[str, Any]], approved: Any) -> list[str]:
    """Returns the hosts whose plans are not the approved ones.

    approved: nothing, then all is; the digest of the fleet, then the plans must be exactly those of that fleet; or the
    whole result of plan_digest(), then they may be those of some of its hosts. Raises ApprovalError for anything else.
    """
    planned = plan_digest(plans)
    if not approved:
        return []
    if isinstance(approved, str):
        return [] if approved.strip() == planned["fleet"] else list(planned["hosts"])
    hosts = approved.get("hosts") if isinstance(approved, Mapping) else None
    if not isinstance(hosts, Mapping):
        raise ApprovalError("is neither the digest that plan_vllm prints nor what it leaves in vllm_plan_digest")
    return [host for host, digest in planned["hosts"].items() if hosts.get(host) != digest]


def _line(item: Mapping[str, Any]) -> str:
    arguments = {
        argument["name"]: argument["value"]
        for argument in item.get("arguments") or ()
        if argument["name"] not in FOLLOW_FREE_MEMORY
    }
    approved = {key: item[key] for key in APPROVED if item.get(key) is not None}
    return json.dumps({**approved, "arguments": arguments}, sort_keys=True, default=str)


def _digest(lines: set[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

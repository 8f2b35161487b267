# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of single variables of an instance, and what the ladder must know of one. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ._planning.hosts import CONTAINER_PREFIX, own_memory_mib


def with_changes(instance: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the instance with other values; neither is touched.

    changes: by variable, "engine_args.max_num_seqs", "environment.NCCL_P2P_DISABLE" or "port". None takes the
    variable away.
    """
    changed = {name: dict(value) if isinstance(value, Mapping) else value for name, value in instance.items()}
    for variable, value in changes.items():
        section, _dot, name = variable.rpartition(".")
        place = changed.setdefault(section, {}) if section else changed
        if value is None:
            place.pop(name, None)
        else:
            place[name] = value
    return changed


def ladder_context(
    instance: Mapping[str, Any], plan: Mapping[str, Any] | None, hosts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the context of diagnose and ladder for a start of the instance.

    hosts: what gpu_info returned while the engine ran. The memory that it held counts as free: a new start takes its
    place.
    """
    container = f"{CONTAINER_PREFIX}{instance['name']}"
    freed = [{**host, "gpus": [_freed(gpu, container) for gpu in host.get("gpus") or ()]} for host in hosts]
    return {"instance": dict(instance), "plan": plan, "hosts": freed}


def _freed(gpu: Mapping[str, Any], container: str) -> dict[str, Any]:
    free = gpu.get("memory_free_mib")
    if free is None:
        return dict(gpu)
    total = int(gpu.get("memory_total_mib") or 0)
    return {**gpu, "memory_free_mib": min(total, int(free) + own_memory_mib(gpu, container))}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which order the hosts of a fleet get a deployment. Private to the collection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class BatchError(ValueError):
    """A size of a batch that is neither a number from 1 on nor a percentage."""


def rollout(
    hosts: Sequence[str], sizes: Sequence[Any], spans: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Any]:
    """Returns the batches of a rolling deployment.

    hosts: in the order of the inventory. sizes: of the batches, as in Ansible's `serial`: numbers of engines' homes (a
    host, or all the hosts that an engine spans) or percentages of them; the last is repeated. spans: the hosts of
    each engine that runs on several, by its name. Hosts that an engine spans, or that two engines chain together, share
    a batch. Shape: {"hosts": [...], "serial": [hosts in each batch], "batches": [[...]], "batch_of": {host: index of
    its batch}, "rounds": [{host: name of an engine that spans it}]}; hosts are sorted by batch; the engines of one
    round have no host in common, so that they can be deployed side by side. Raises BatchError.
    """
    homes = _homes(hosts, list((spans or {}).values()))
    batches = [[host for home in batch for host in home] for batch in _cut(homes, sizes)]
    return {
        "hosts": [host for batch in batches for host in batch],
        "serial": [len(batch) for batch in batches],
        "batches": batches,
        "batch_of": {host: index for index, batch in enumerate(batches) for host in batch},
        "rounds": _rounds(spans or {}),
    }


def _rounds(spans: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Each engine in the first round in which none of its hosts is taken."""
    rounds: list[dict[str, str]] = []
    for name, hosts in sorted(spans.items()):
        free = next((one for one in rounds if not set(one) & set(hosts)), None)
        if free is None:
            rounds.append(free := {})
        free.update(dict.fromkeys(hosts, name))
    return rounds


def _homes(hosts: Sequence[str], spans: Sequence[Sequence[str]]) -> list[list[str]]:
    """The hosts in groups that must be deployed together, each where its first host stands in the inventory."""
    home_of = {host: {host} for host in hosts}
    for span in spans:
        together: set[str] = set().union(*(home_of.get(host, {host}) for host in span))
        home_of.update(dict.fromkeys(together, together))
    homes: list[list[str]] = []
    seen: set[str] = set()
    for host in hosts:
        if host not in seen:
            homes.append([member for member in hosts if member in home_of[host]])
            seen |= home_of[host]
    return homes


def _cut(homes: Sequence[list[str]], sizes: Sequence[Any]) -> Iterator[Sequence[list[str]]]:
    if not sizes:
        raise BatchError("there is no size of a batch; write for example [1, '25%']")
    counts = [_count(size, len(homes)) for size in sizes]
    begin = number = 0
    while begin < len(homes):
        count = counts[min(number, len(counts) - 1)]
        yield homes[begin : begin + count]
        begin, number = begin + count, number + 1


def _count(size: Any, total: int) -> int:
    """A size as a number of homes, at least one."""
    text = str(size).strip()
    is_percentage = text.endswith("%")
    digits = text.removesuffix("%")
    if isinstance(size, bool) or not digits.isdecimal() or int(digits) < 1 or (is_percentage and int(digits) > 100):
        raise BatchError(f"{size!r} is no size of a batch; write a number from 1 on, or a percentage such as '25%'")
    return max(1, math.floor(total * int(digits) / 100)) if is_percentage else int(digits)


def replicas(instances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the instances with each that has `replicas` written out.

    `{"name": "chat", "port": 8000, "replicas": 2}` becomes chat-1 on port 8000 and chat-2 on port 8001, which serve the
    same model name and have "replica_of": "chat". What is no number from 1 on is left for the planner's checks.
    """
    return [one for instance in instances for one in _written_out(instance)]


def _written_out(instance: Mapping[str, Any]) -> list[dict[str, Any]]:
    one = {key: value for key, value in instance.items() if key != "replicas"}
    count = instance.get("replicas")
    if count is None:
        return [one]
    name, first_port = instance["name"], int(instance.get("port") or 8000)
    common = {**one, "served_model_name": instance.get("served_model_name") or name, "replica_of": name}
    return [{**common, "name": f"{name}-{index + 1}", "port": first_port + index} for index in range(int(count))]

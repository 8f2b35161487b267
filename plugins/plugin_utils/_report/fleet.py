# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the page of a fleet shows: its cards with who takes them, its plans, what needs attention. Private."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .text import VERDICTS, needs_title

Plan = Mapping[str, Any]

RUNNING = ("fits", "fits_reduced")
SEVERITY = ("unsupported", "does_not_fit", "fits_reduced", "fits")
"""Verdicts, the worst first."""

MIB_IN_GIB = 1024
BUSY_SHARE = 0.05
"""A card of which others hold more than that is not idle, though no instance takes it."""


@dataclass
class Card:
    """One GPU of the fleet: its memory in GiB, and the plans that take a part of it with their budgets."""

    host: str
    index: int | None
    name: str
    total_gib: float
    others_gib: float
    takers: list[tuple[Plan, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not self.takers and self.others_gib <= BUSY_SHARE * self.total_gib


@dataclass
class Group:
    """Plans that differ only in the host and the card that they are for: replicas."""

    plan: Plan
    hosts: list[str]
    anchor: str

    @property
    def name(self) -> str:
        return str(self.plan.get("name") or "instance")


@dataclass(frozen=True)
class Attention:
    """One thing that somebody has to look at: how bad it is, what is concerned, where, what it is, the texts."""

    level: str
    subject: str
    hosts: tuple[str, ...]
    title: str
    texts: tuple[str, ...]


def hosts_of(plan: Plan) -> list[str]:
    return list(plan["devices"]) or [str(host) for host in plan.get("hosts") or ()]


def groups_of(plans: Iterable[Plan]) -> list[Group]:
    """The plans without repetition, in their order."""
    found: dict[str, Group] = {}
    for plan in plans:
        key = _key(plan)
        if key in found:
            found[key].hosts += hosts_of(plan)
        else:
            found[key] = Group(plan, hosts_of(plan), f"plan-{len(found) + 1}")
    return list(found.values())


def _key(plan: Plan) -> str:
    """Equal for plans whose figures and arguments are the same, wherever they are."""
    where = ("host", "gpu", "uuid")
    budgets = [{key: value for key, value in budget.items() if key not in where} for budget in plan["budget"]]
    told = ("name", "image", "verdict", "arguments", "kv", "needs", "warnings", "workload")
    return json.dumps(
        [budgets, {key: plan.get(key) for key in told}, len(plan["devices"])], sort_keys=True, default=str
    )


def cards_of(plans: Iterable[Plan], hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Card]]:
    """The cards of every host, in the driver's order: those that the facts tell of, and those that plans tell of."""
    cards: dict[str, dict[str, Card]] = {host: _known_cards(host, facts) for host, facts in hosts.items()}
    for plan in plans:
        for host in hosts_of(plan):
            cards.setdefault(host, {})
        for budget in plan["budget"] if plan["verdict"] in RUNNING else ():
            key = str(budget["uuid"] or budget["gpu"])
            card = cards.setdefault(str(budget["host"]), {}).setdefault(key, _planned_card(budget))
            if not card.takers:
                # What the first instance sees of others is theirs; a second one counts the first among them.
                card.others_gib = budget["others_gib"]["value"]
            card.takers.append((plan, budget))
    return {host: list(known.values()) for host, known in cards.items()}


def _known_cards(host: str, facts: Mapping[str, Any]) -> dict[str, Card]:
    """The GPUs of a host by UUID; of a divided one its MIG devices, which are what an engine takes."""
    known = {}
    for gpu in facts.get("gpus") or ():
        name, others = str(gpu.get("name") or "GPU"), gpu.get("memory_used_by_others_mib")
        for device in (gpu.get("mig") or {}).get("instances") or ():
            whole = " ".join([name, "MIG", *([str(device["profile"])] if device.get("profile") else [])])
            key = str(device.get("uuid"))
            known[key] = _known_card(host, gpu, whole, device.get("memory_total_mib"), device.get("memory_used_mib"))
        if not (gpu.get("mig") or {}).get("instances"):
            key = str(gpu.get("uuid") or gpu.get("index"))
            known[key] = _known_card(host, gpu, name, gpu.get("memory_total_mib"), others)
    return known


def _known_card(host: str, gpu: Mapping[str, Any], name: str, total_mib: int | None, others_mib: int | None) -> Card:
    return Card(host, gpu.get("index"), name, (total_mib or 0) / MIB_IN_GIB, (others_mib or 0) / MIB_IN_GIB)


def _planned_card(budget: Mapping[str, Any]) -> Card:
    return Card(str(budget["host"]), budget["gpu"], str(budget["name"]), budget["total_gib"]["value"], 0.0)


def attention_of(groups: Iterable[Group], hosts: Mapping[str, Mapping[str, Any]]) -> list[Attention]:
    """Hosts that could not be read, GPUs with errors, instances that cannot run as asked, warnings: the worst first."""
    found = [*_unread(hosts), *_broken(hosts)]
    for verdict in SEVERITY[:2]:
        for group in groups:
            if group.plan["verdict"] == verdict:
                found.append(_needs(group, "bad"))
    found += [_needs(group, "fair") for group in groups if group.plan["verdict"] == "fits_reduced"]
    for group in groups:
        if group.plan["warnings"]:
            found.append(Attention("fair", group.name, tuple(group.hosts), "", tuple(group.plan["warnings"])))
    return found


def _needs(group: Group, level: str) -> Attention:
    title = f"{VERDICTS[group.plan['verdict']].lower()}. {needs_title(group.plan)}:"
    return Attention(level, group.name, tuple(group.hosts), title, tuple(group.plan["needs"]))


def _unread(hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[Attention]:
    unread = tuple(host for host, facts in hosts.items() if not facts)
    if unread:
        yield Attention("bad", "No plan", unread, "not reached, or not planned; the output of the run says why.", ())


def _broken(hosts: Mapping[str, Mapping[str, Any]]) -> Iterator[Attention]:
    for host, facts in hosts.items():
        texts = tuple(
            f"{error.get('message')} {error.get('next_step') or ''}".strip() for error in facts.get("errors") or ()
        )
        if texts:
            yield Attention("bad", "Driver or GPU", (host,), "not in order.", texts)


def verdicts_of(plans: Sequence[Plan]) -> dict[str, int]:
    """How many plans have each verdict, the worst first; without those that none has."""
    counted = {verdict: sum(plan["verdict"] == verdict for plan in plans) for verdict in SEVERITY}
    return {verdict: number for verdict, number in counted.items() if number}

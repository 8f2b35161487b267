# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reports of a fleet show: its cards with who takes them, its plans, what needs attention. Private."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .failures import reason_of
from .words import RUNNING, SEVERITY, VERDICTS, Budget, Plan, count, merged, needs_title, rounded

MIB_IN_GIB = 1024
BUSY_SHARE = 0.05
"""A card of which others hold more than that is not idle, though no instance takes it."""

NOT_PLANNED = "there is no plan, and it is not known why; the output of the run says more"


@dataclass
class Card:
    """One GPU of the fleet: its memory in GiB, and the plans that take a part of it with their budgets."""

    host: str
    index: int | None
    name: str
    total_gib: float
    others_gib: float
    takers: list[tuple[Plan, Budget]] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not self.takers and self.others_gib <= BUSY_SHARE * self.total_gib


@dataclass
class Group:
    """Plans that differ only in the hosts and the cards that they are for: replicas."""

    plans: list[Plan]
    hosts: list[str]
    anchor: str

    @property
    def plan(self) -> Plan:
        """The plan that is shown for all: the one with the smallest KV cache."""
        return min(self.plans, key=lambda plan: int(plan["kv"].get("tokens") or 0))

    @property
    def name(self) -> str:
        return str(self.plan.get("name") or "instance")

    @property
    def verdict(self) -> str:
        return str(self.plan["verdict"])

    @property
    def budgets(self) -> list[Budget]:
        return [budget for plan in self.plans for budget in plan["budget"]]


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


def once(plans: Iterable[Plan]) -> list[Plan]:
    """The plans, those of engines over several hosts once: each of these hosts tells of them."""
    found: dict[object, Plan] = {}
    for number, plan in enumerate(plans):
        spans = len(plan.get("hosts") or ()) > 1
        found.setdefault((plan.get("name"), *plan["hosts"]) if spans else number, plan)
    return list(found.values())


def groups_of(plans: Iterable[Plan], also: Sequence[object] = ()) -> list[Group]:
    """The plans without repetition, in their order. also: for each plan what else has to be the same."""
    found: dict[str, Group] = {}
    for number, plan in enumerate(plans):
        key = _key(plan, also[number] if also else None)
        group = found.setdefault(key, Group([], [], f"plan-{len(found) + 1}"))
        group.plans.append(plan)
        group.hosts += hosts_of(plan)
    return list(found.values())


def _key(plan: Plan, also: object) -> str:
    """Equal for plans whose verdict, arguments and (nearly) figures are the same, wherever they are."""
    told = {key: plan.get(key) for key in ("name", "image", "checkpoint", "verdict", "workload")}
    arguments = [(argument["name"], argument["value"]) for argument in plan["arguments"]]
    texts = [*plan["needs"], *plan["warnings"]]
    for number, host in enumerate(hosts_of(plan)):
        texts = [f"{number} {anywhere(text, host)}" for text in texts]
    figures = [rounded(budget) for budget in plan["budget"]]
    return json.dumps([told, arguments, texts, figures, len(plan["devices"]), also], sort_keys=True, default=str)


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


def _planned_card(budget: Budget) -> Card:
    return Card(str(budget["host"]), budget["gpu"], str(budget["name"]), budget["total_gib"]["value"], 0.0)


def alike_hosts(cards: Mapping[str, Sequence[Card]], also: Mapping[str, object]) -> list[list[str]]:
    """Hosts whose cards look the same and are used in the same way. also: what else has to be the same, by host."""
    found: dict[str, list[str]] = {}
    for host, several in cards.items():
        found.setdefault(json.dumps([list(map(_card_key, several)), also.get(host)], default=str), []).append(host)
    return list(found.values())


def _card_key(card: Card) -> list[object]:
    takers = [[plan.get("name"), rounded(budget)] for plan, budget in card.takers]
    return [card.index, card.name, round(card.total_gib, 1), round(card.others_gib, 1), takers]


def alike_cards(cards: Iterable[Card]) -> list[list[Card]]:
    """Neighbours on a host that look the same and are used by the same instances."""
    return [list(several) for _key, several in itertools.groupby(cards, lambda card: _card_key(card)[1:])]


def _planned(plans: Iterable[Plan]) -> set[str]:
    return {host for plan in plans for host in (*hosts_of(plan), *map(str, plan.get("hosts") or ()))}


def unplanned(
    plans: Iterable[Plan], hosts: Mapping[str, Mapping[str, Any]], failures: Mapping[str, Any]
) -> dict[str, str]:
    """Hosts without a plan, with the reason. failures: what Ansible returned for the task that failed, by host."""
    planned = _planned(plans)
    reasons = {host: reason_of(failures[host]).removeprefix(f"{host}: ") for host in failures if host not in planned}
    for host, facts in hosts.items():
        if not facts and host not in planned:
            reasons.setdefault(host, NOT_PLANNED)
    return reasons


def without_instance(
    plans: Iterable[Plan], hosts: Mapping[str, Mapping[str, Any]], failures: Mapping[str, Any]
) -> list[str]:
    """Hosts that were read and have no instance."""
    planned = _planned(plans)
    return [host for host, facts in hosts.items() if facts and host not in planned and host not in failures]


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Reasons with the hosts that they are of; the name of the host in a reason does not make it another one."""
    found: dict[str, list[str]] = {}
    for host, reason in reasons.items():
        found.setdefault(anywhere(reason, host), []).append(host)
    return {reason if len(hosts) > 1 else reasons[hosts[0]]: hosts for reason, hosts in found.items()}


def anywhere(text: str, host: str) -> str:
    """A text about a host as it would be about any."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "the host", text)


def attention_of(
    groups: Sequence[Group], hosts: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]
) -> list[Attention]:
    """Hosts without a plan, GPUs with errors, instances that cannot run as asked, warnings: the worst first.

    reasons: why hosts have no plan, as unplanned() tells it.
    """
    found = [Attention("bad", "No plan", tuple(names), reason, ()) for reason, names in by_reason(reasons).items()]
    found += _broken(hosts)
    for verdict in SEVERITY:
        level = "bad" if verdict not in RUNNING else "fair"
        found += [_needs(group, level) for group in groups if group.verdict == verdict != "fits"]
    for group in groups:
        if group.plan["warnings"]:
            texts = tuple(merged(group.plan["warnings"], group.plan["budget"]))
            found.append(Attention("fair", group.name, tuple(group.hosts), "", texts))
    return found


def _needs(group: Group, level: str) -> Attention:
    verdict, needs = VERDICTS[group.verdict].lower(), tuple(merged(group.plan["needs"], group.plan["budget"]))
    title = f"{verdict}. {needs_title(group.plan)}:" if needs else f"{verdict}."
    return Attention(level, group.name, tuple(group.hosts), title, needs)


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


def replicas_told(group: Group) -> str:
    """That a plan is one of several equal ones; nothing where it is alone."""
    if len(group.plans) == 1:
        return ""
    return f"The same {len(group.plans):,} times, on {count(len(dict.fromkeys(group.hosts)), 'host')}"

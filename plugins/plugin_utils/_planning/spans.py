# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines over several hosts among the instances of a fleet: the same plan on every member. Private.

A member tells {"instances": its vllm_instances, "facts": {"gpu_info", "checkpoints", "plans", "receipts"}, "network":
what member_info returned, or {}}. Hosts that engines chain together are planned together, the spanning engines first
and in the order of their names, so that each member computes the same.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._catalogue import UnknownRelease
from .._catalogue import release as find_release
from .._catalogue.releases import canonical_name
from .._members import LAUNCHES, MemberError, check_members, check_reach, describe_launch, ports_of
from .errors import Faults, InstanceError
from .fleet import check_unique, plan_instances, reserve
from .verdicts import FITTING

Member = Mapping[str, Any]
Plan = dict[str, Any]

MEMBERS = "members: "
"""How warnings about the members of an engine begin."""

LAUNCH_PINS = ("master_addr", "master_port")
"""Arguments of the launch that may be pinned: the plan's launch holds them, not its arguments."""

DEFAULT_PORT = 8000

PINS_OF_THE_SPAN = (
    "nnodes",
    "node_rank",
    "headless",
    "data_parallel_size_local",
    "data_parallel_start_rank",
    "data_parallel_rank",
    "data_parallel_address",
    "data_parallel_rpc_port",
    "data_parallel_backend",
    "distributed_executor_backend",
)
"""Arguments that follow from the span, differently on each member."""


def span_of(instance: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts that an instance spans, in rank order; empty where it runs on one. Raises InstanceError."""
    name, span = str(instance.get("name") or ""), instance.get("span")
    if span in (None, "", []):
        return []
    example = "Write the hosts in rank order, e.g. span: [gpu1, gpu2], or the name of a group of the inventory."
    if isinstance(span, str):
        if span not in groups:
            raise InstanceError(name, "span", span, "is no group of the inventory", example)
        span = list(groups[span])
    if not isinstance(span, Sequence):
        raise InstanceError(name, "span", span, "is no list of hosts", example)
    hosts = [str(host) for host in span]
    if len(set(hosts)) < len(hosts):
        raise InstanceError(name, "span", hosts, "names a host twice", "Name each host once, in rank order.")
    if len(hosts) == 1:
        raise InstanceError(name, "span", hosts, "is one host", "Name two at least, or leave span out.")
    return hosts


def spans_of(instances: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """{name: hosts in rank order} of those instances that span hosts."""
    found = {str(instance.get("name") or ""): span_of(instance, groups) for instance in instances}
    return {name: hosts for name, hosts in found.items() if hosts}


def together(
    host: str, member: Callable[[str], Member | None], groups: Mapping[str, Sequence[str]]
) -> dict[str, Member]:
    """The host and all that engines chain it to, directly or through others, as far as they tell of themselves."""
    found: dict[str, Member] = {}
    waiting = [host]
    while waiting:
        name = waiting.pop()
        told = member(name) if name not in found else None
        if told:
            found[name] = told
            waiting += [other for hosts in spans_of(told["instances"], groups).values() for other in hosts]
    return found


def plan_host(host: str, members: Mapping[str, Member], groups: Mapping[str, Sequence[str]]) -> list[Plan]:
    """The plans of a host: of the engines that span it, by name, then of its own instances, in their order.

    members: what together() returned. Raises InstanceError with all that is wrong.
    """
    _check_members(members, groups)
    entries: dict[str, Mapping[str, Any]] = {}
    for _name, told in sorted(members.items()):
        for instance in told["instances"]:
            if span_of(instance, groups):
                entries.setdefault(str(instance["name"]), instance)
    remaining = {name: _named(name, told["facts"]["gpu_info"]) for name, told in members.items()}
    plans = []
    for name, instance in sorted(entries.items()):
        hosts = span_of(instance, groups)
        planned = _plan_span(instance, hosts, members, [remaining[member] for member in hosts])
        if planned["verdict"] in FITTING:
            reserve([remaining[member] for member in hosts], name, planned)
        plans.append(planned)
    told = members[host]
    own = [instance for instance in told["instances"] if not span_of(instance, groups)]
    facts = told["facts"]
    mine = plan_instances(own, [remaining[host]], facts["checkpoints"], [host], facts["plans"], facts["receipts"])
    return [planned for planned in plans if host in planned["hosts"]] + mine


def _named(name: str, gpu_info: Mapping[str, Any]) -> dict[str, Any]:
    return {**copy.deepcopy(dict(gpu_info)), "name": name}


def judge_spans(
    plans: Sequence[Plan], members: Mapping[str, Member], reach: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """{name: checks} of the engines that span hosts, of which the members told of their network. reach: see
    check_reach."""
    found = {}
    for planned in plans:
        hosts = planned["hosts"]
        if planned.get("launch") and planned["devices"] and all(members[host].get("network") for host in hosts):
            facts = {
                host: {"network": members[host]["network"], "gpu_info": members[host]["facts"]["gpu_info"]}
                for host in hosts
            }
            found[str(planned["name"])] = [*check_members(planned, facts), *check_reach(planned, reach)]
    return found


def with_warnings(plans: Sequence[Plan], judged: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Plan]:
    """The plans with what is not as it should be between the members among their warnings."""
    return [_with_warnings(planned, judged.get(str(planned["name"]), ())) for planned in plans]


def _with_warnings(planned: Plan, checks: Sequence[Mapping[str, Any]]) -> Plan:
    # A plan that stays as it was brings the warnings of then.
    kept = [warning for warning in planned["warnings"] if not warning.startswith(MEMBERS)]
    told = [
        f"{MEMBERS}{check['where']}: {check['what']}; {check['fix']}" for check in checks if check["status"] != "ok"
    ]
    return {**planned, "warnings": [*kept, *told]}


# --- what may be wrong --------------------------------------------------------------------------------------------


def _check_members(members: Mapping[str, Member], groups: Mapping[str, Sequence[str]]) -> None:
    faults = Faults()
    for host, told in sorted(members.items()):
        for instance in told["instances"]:
            faults.attempt(_check_entry, host, instance, members, groups)
        check_unique(told["instances"], faults)
    _check_ports(members, groups, faults)
    faults.refuse()


def _check_ports(members: Mapping[str, Member], groups: Mapping[str, Sequence[str]], faults: Faults) -> None:
    """Engines that share a host share its ports, also those on which members meet: they use the host's network."""
    for host, told in sorted(members.items()):
        launch: dict[int, str] = {}
        asked = {
            str(instance.get("name") or ""): instance.get("port") or DEFAULT_PORT for instance in told["instances"]
        }
        listening = [item for instance in told["instances"] for item in _ports_on(host, instance, groups)]
        for name, what, port in sorted(listening, key=lambda item: item[1] == "port"):
            if port in launch:
                fault = f"gives it {port} as its {what}, which {launch[port]} has"
                remedy = (
                    "Choose another port: those between the members follow from it, or from engine_args.master_port."
                )
                faults.found.append(InstanceError(name, "port", asked[name], fault, remedy, [host]))
            # Endpoints are compared with each other elsewhere, with their addresses.
            if what != "port":
                launch.setdefault(port, f"{name} ({what})")


def _ports_on(
    host: str, instance: Mapping[str, Any], groups: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, int]]:
    """Name, kind and number of the ports that an instance listens on."""
    hosts, name = _readable_span(instance, groups), str(instance.get("name") or "")
    with contextlib.suppress(TypeError, ValueError):
        port = int(instance.get("port") or DEFAULT_PORT)
        pins = {canonical_name(str(key)): value for key, value in (instance.get("engine_args") or {}).items()}
        ports = ports_of(port, int(pins.get("master_port") or 0))
        if host in hosts:
            yield name, "watch_port", ports["watch_port"]
        if host in hosts[:1]:
            yield name, "master_port", ports["master_port"]
        if host in hosts[:1] or not hosts:
            yield name, "port", port


def _readable_span(instance: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> list[str]:
    try:
        return span_of(instance, groups)
    except InstanceError:
        return []


def _check_entry(
    host: str, instance: Mapping[str, Any], members: Mapping[str, Member], groups: Mapping[str, Sequence[str]]
) -> None:
    """A spanning instance must stand in the variables of all its members, and of no other host, with equal words."""
    hosts, name = span_of(instance, groups), str(instance.get("name") or "")
    if not hosts:
        return
    where = [host]
    if host not in hosts:
        remedy = f"Remove the instance from the variables of {host}, or add {host} to span."
        raise InstanceError(name, "span", hosts, f"does not name {host}, which has the instance too", remedy, where)
    if instance.get("replica_of"):
        remedy = "Write an instance with a span of its own for each."
        raise InstanceError(name, "replicas", "...", "and span exclude each other", remedy, where)
    _check_pins(name, instance, where)
    _check_words(name, instance, where)
    for other in hosts:
        _check_other(host, other, instance, members.get(other))


def _check_pins(name: str, instance: Mapping[str, Any], where: Sequence[str]) -> None:
    pins = instance.get("engine_args") or {}
    for pin in PINS_OF_THE_SPAN:
        value = pins.get(pin, pins.get(pin.replace("_", "-")))
        if value is not None:
            fault, remedy = "follows from span", "Leave it out; the plan sets it on each member."
            raise InstanceError(name, f"engine_args.{pin}", value, fault, remedy, where)
    launch = instance.get("launch")
    if launch not in (None, *LAUNCHES):
        remedy = f"Write one of {', '.join(LAUNCHES)}."
        raise InstanceError(name, "launch", launch, "is not known", remedy, where)


def _check_words(name: str, instance: Mapping[str, Any], where: Sequence[str]) -> None:
    """The same arguments among the raw words, which would stand on the command line beside the plan's."""
    words = instance.get("extra_args") or ()
    for word in words if isinstance(words, (list, tuple)) else ():
        pin = canonical_name(str(word).partition("=")[0]) if str(word).startswith("--") else ""
        if pin in PINS_OF_THE_SPAN:
            fault, remedy = "follows from span", "Leave it out; the plan sets it on each member."
            raise InstanceError(name, "extra_args", word, fault, remedy, where)
        if pin in LAUNCH_PINS:
            raise InstanceError(name, "extra_args", word, "is one of the plan", f"Set engine_args.{pin}.", where)


def _check_other(host: str, other: str, instance: Mapping[str, Any], told: Member | None) -> None:
    name = str(instance["name"])
    if told is None:
        fault = f"names {other}, which is not planned in this run, or cannot be reached"
        remedy = f"All its hosts must be there, in the group vllm and in --limit, as --limit {host},{other}."
        raise InstanceError(name, "span", instance["span"], fault, remedy, [host])
    entry = next((item for item in told["instances"] if item.get("name") == name), None)
    if entry is None:
        remedy = "Write the same entry in the variables of every host in span, best of a group of theirs."
        raise InstanceError(
            name, "span", instance["span"], f"names {other}, which has no such instance", remedy, [host]
        )
    for key in sorted({*entry, *instance}):
        if entry.get(key) != instance.get(key):
            fault, remedy = f"is {entry.get(key)!r} on {other}", "Write the same entry for every host in span."
            raise InstanceError(name, key, instance.get(key), fault, remedy, [host])


# --- one engine ---------------------------------------------------------------------------------------------------


def _plan_span(
    instance: Mapping[str, Any],
    hosts: Sequence[str],
    members: Mapping[str, Member],
    gpu_infos: Sequence[Mapping[str, Any]],
) -> Plan:
    """The plan of one engine on its hosts, with how they are started together."""
    name, facts = str(instance["name"]), members[hosts[0]]["facts"]
    pins = {str(key).replace("-", "_"): value for key, value in (instance.get("engine_args") or {}).items()}
    launch_pins = {pin: pins.pop(pin) for pin in LAUNCH_PINS if pin in pins}
    whole = {**instance, "engine_args": pins, "span": list(hosts), **launch_pins}
    running = [members[host]["facts"]["plans"].get(name) for host in hosts]
    # Hosts that run different plans are no engine: it is planned anew.
    current = {name: running[0]} if running[0] and all(plan == running[0] for plan in running) else {}
    (planned,) = plan_instances([whole], gpu_infos, facts["checkpoints"], hosts, current, facts["receipts"])
    try:
        launch = describe_launch(
            {**whole, "port": planned["port"]},
            planned,
            find_release(planned["release"]["version"]),
            {host: members[host].get("network") or {} for host in hosts},
        )
    except (MemberError, UnknownRelease) as error:
        raise _of_instance(name, error, hosts) from error
    # A plan that stays as it was brings the decisions of then.
    decisions = [decision for decision in planned["decisions"] if not decision.get("launch")] + _decisions(launch)
    return {**planned, "launch": launch, "decisions": sorted(decisions, key=lambda decision: int(decision["step"]))}


def _of_instance(name: str, error: Exception, hosts: Sequence[str]) -> InstanceError:
    if isinstance(error, MemberError):
        return InstanceError(name, error.variable, error.value, error.fault, error.remedy, hosts)
    return InstanceError(name, "image", "...", str(error), "", hosts)


def _decisions(launch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The launch and the network in words; step 1, for they follow from the fit."""
    cost = "the engine is as fast as the network between its hosts, and ends when one of them does"
    told = [(f"the hosts are started together by {launch['method']}", launch["why"], cost)]
    ways = ", ".join(f"{member['host']} {_way(member)}" for member in launch["members"])
    if launch["network_why"]:
        told.append((f"they talk over {ways}", launch["network_why"], "none that the plan knows of"))
    told += [
        (f"{reason['variable']} is set on every host", reason["why"], "none; environment of the instance wins over it")
        for reason in launch["reasons"]
    ]
    return [
        {"step": 1, "decision": decision, "why": why, "cost": costs, "launch": True} for decision, why, costs in told
    ]


def _way(member: Mapping[str, Any]) -> str:
    speed, rdma = member.get("speed_mbps"), member.get("rdma")
    rate = f", {speed / 1000:g} Gbit/s" if speed else ""
    return f"{member['interface']} ({member['address']}{rate}{', ' + ' and '.join(rdma) if rdma else ''})"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Over which network the members of an engine talk to each other. Private to gpufleet.vllm."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Facts = Mapping[str, Any]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class MemberError(ValueError):
    """What keeps hosts from being members of one engine: what is wrong, and what would be right."""

    def __init__(self, variable: str, value: object, fault: str, remedy: str) -> None:
        super().__init__(f"{variable} {value!r} {fault}. {remedy}")
        self.variable, self.value, self.fault, self.remedy = variable, value, fault, remedy


@dataclass(frozen=True)
class Port:
    """One address of one interface of a host."""

    host: str
    interface: str
    address: Address
    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    speed_mbps: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "interface": self.interface,
            "address": str(self.address),
            "speed_mbps": self.speed_mbps,
        }


@functools.cache
def data() -> dict[str, Any]:
    """network.yml: interfaces that are no network between hosts, and the variables of NCCL and Gloo with reasons."""
    loaded: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "network.yml").read_text(encoding="utf-8"))
    return loaded


def choose_network(
    facts: Mapping[str, Facts], hosts: Sequence[str], wanted: str | None
) -> tuple[list[dict[str, Any]], str]:
    """The interface and address of each host, in rank order, and why these.

    facts: by host, "interfaces" [{"name", "addresses" [{"address", "prefix"}], "speed_mbps", "up"}] and
    "default_interface". wanted: the name of an interface, a network in CIDR notation, or None.
    Shape: ([{"host", "interface", "address", "speed_mbps"}], reason). Raises MemberError.
    """
    ports = {host: list(_ports(host, facts[host])) for host in hosts}
    if wanted:
        return _wanted(ports, wanted)
    return _shared(ports) or _of_default_route(ports, facts)


def _ports(host: str, facts: Facts) -> Iterator[Port]:
    for interface in facts.get("interfaces") or ():
        for item in interface.get("addresses") or () if interface.get("up", True) else ():
            address = ipaddress.ip_address(item["address"])
            if address.is_loopback or address.is_link_local:
                continue
            network = ipaddress.ip_network(f"{address}/{item['prefix']}", strict=False)
            yield Port(host, str(interface["name"]), address, network, interface.get("speed_mbps"))


def _wanted(ports: Mapping[str, Sequence[Port]], wanted: str) -> tuple[list[dict[str, Any]], str]:
    """The interface of that name, or the address in that network, on every host."""
    try:
        network = ipaddress.ip_network(wanted, strict=False) if "/" in wanted else None
    except ValueError:
        remedy = "Write the name of an interface such as eth1, or a network such as 10.1.0.0/16."
        raise MemberError("span_interface", wanted, "is neither an interface nor a network", remedy) from None
    chosen = []
    for host, several in ports.items():
        found = [port for port in several if (port.address in network if network else port.interface == wanted)]
        if not found:
            there = ", ".join(f"{port.interface} ({port.address})" for port in several) or "none with an address"
            remedy = f"There are {there}. Write the name of an interface, or a network such as 10.1.0.0/16."
            raise MemberError("span_interface", wanted, f"is not there, or not up, on {host}", remedy)
        chosen.append(min(found, key=lambda port: port.address.version).as_dict())
    return chosen, f"span_interface is {wanted}"


def _shared(ports: Mapping[str, Sequence[Port]]) -> tuple[list[dict[str, Any]], str] | None:
    """The fastest network that all hosts have an address in, each its own.

    Equal addresses are a network within each host, such as Docker's bridge 172.17.0.1.
    """
    first, *others = ports.values()
    candidates = []
    for port in first:
        members = [port, *(_in_network(several, port) for several in others)]
        found = [member for member in members if member is not None]
        distinct = len({member.address for member in found}) == len(ports)
        if distinct and not any(_is_inner(member.interface) for member in found):
            candidates.append(found)
    if not candidates:
        return None
    # IPv4 first: NCCL and Gloo take it by default; the first named of equally fast ones.
    best = max(candidates, key=lambda found: (found[0].address.version == 4, _speed(found)))
    alone = len({candidate[0].network for candidate in candidates}) == 1
    reason = "the only network that all hosts share" if alone else "the fastest of the networks that all hosts share"
    return [port.as_dict() for port in best], reason


def _in_network(ports: Sequence[Port], other: Port) -> Port | None:
    return next((port for port in ports if port.network == other.network), None)


def _speed(ports: Sequence[Port]) -> int:
    return min(port.speed_mbps or 0 for port in ports)


def _is_inner(interface: str) -> bool:
    return interface.startswith(tuple(data()["inner_interfaces"]))


def _of_default_route(
    ports: Mapping[str, Sequence[Port]], facts: Mapping[str, Facts]
) -> tuple[list[dict[str, Any]], str]:
    """Where hosts share no network, as with routed /32 addresses of clouds: the way to everywhere else."""
    chosen = []
    for host, several in ports.items():
        name = facts[host].get("default_interface")
        found = [port for port in several if port.interface == name]
        if not found:
            told = "; ".join(
                f"{each}: {', '.join(f'{port.interface} {port.network}' for port in there) or 'none'}"
                for each, there in ports.items()
            )
            remedy = f"Connect them, or name the interface in span_interface. There are: {told}"
            raise MemberError("span", list(ports), "are hosts without a network in common", remedy)
        chosen.append(min(found, key=lambda port: port.address.version).as_dict())
    return chosen, "the hosts share no network, so that of the default route"

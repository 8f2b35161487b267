# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether hosts can be one engine: what must be the same on all, and whether they reach each other. Private.

A check is {"check", "status" (ok, warning, failed), "what", "where", "fix", "next" (a command), "fixed_by" (None),
"will_be_fixed" (False), "on" (where the command is for)}, as of a single host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Check = dict[str, Any]
Facts = Mapping[str, Mapping[str, Any]]

CLOCK_SECONDS = 5.0
"""Logs of several hosts cannot be read together with more than that between their clocks."""

SLOW_MBPS = 10000
"""A stage sends the activation of every batched token: 8192 tokens of 8192 values of 2 bytes take 0.1 s with that."""


def check_members(plan: Mapping[str, Any], facts: Facts) -> list[Check]:
    """What the members tell of themselves, compared. facts: by host what member_info and gpu_info returned, as
    {"network": ..., "gpu_info": ...}."""
    judges = (_driver, _clock, _network, _rdma, _memlock, _links, _ports)
    return [check for judge in judges for check in judge(plan, facts)]


def check_reach(plan: Mapping[str, Any], reach: Facts) -> list[Check]:
    """What the members see of each other. reach: by host what member_info returned for its peers.

    {"reached": [{"host", "address", "port", "error" (None where it answered)}], "names": [{"name", "addresses",
    "error"}]}.
    """
    return [check for host in plan["hosts"] for check in _reach(plan, host, reach.get(host) or {})]


def check_content(plan: Mapping[str, Any], facts: Facts) -> list[Check]:
    """Whether image and checkpoint are the same. facts: by host {"image", "model_manifest"}."""
    told = (
        ("image", "the image", plan["image"], f"docker image inspect --format '{{{{.Id}}}}' {plan['image']}"),
        ("model_manifest", "the checkpoint", plan["checkpoint"], f"sha256sum {plan['checkpoint']}/*.safetensors"),
    )
    return [check for key, what, name, command in told for check in _content(plan, facts, key, what, name, command)]


def _check(check: str, status: str, what: str, where: str, fix: str = "", following: str = "") -> Check:
    told = {"check": check, "status": status, "what": what, "where": where, "fix": fix, "next": following}
    return {**told, "fixed_by": None, "will_be_fixed": False, "on": where.rpartition(" on ")[2]}


def _ok(check: str, what: str, plan: Mapping[str, Any]) -> Check:
    return _check(check, "ok", what, _where(plan))


def _where(plan: Mapping[str, Any]) -> str:
    return f"instance {plan['name']} on {', '.join(plan['hosts'])}"


def _differing(plan: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    return "; ".join(f"{host}: {values[host]}" for host in plan["hosts"])


def _driver(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """NVIDIA names its branches by the first number: 580 of 580.95.05."""
    versions = {host: str(facts[host]["gpu_info"].get("driver_version")) for host in plan["hosts"]}
    if len({version.partition(".")[0] for version in versions.values()}) > 1:
        what = f"the drivers are of different branches ({_differing(plan, versions)})"
        fix = "one driver branch on all hosts of the engine"
        yield _check("driver", "failed", what, _where(plan), fix, "nvidia-smi --query-gpu=driver_version --format=csv")
    else:
        yield _ok("driver", f"one driver branch ({_differing(plan, versions)})", plan)


def _clock(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """Offsets to the controller, each known to half of the time that asking took."""
    clocks = {host: facts[host]["network"].get("clock") for host in plan["hosts"]}
    known = {host: clock for host, clock in clocks.items() if clock}
    if len(known) < len(clocks):
        return
    offsets = [clock["offset_seconds"] for clock in known.values()]
    apart = max(offsets) - min(offsets) - 2 * max(clock["uncertainty_seconds"] for clock in known.values())
    told = _differing(plan, {host: f"{clock['offset_seconds']:+.1f} s" for host, clock in known.items()})
    if apart > CLOCK_SECONDS:
        what = f"the clocks are at least {apart:.0f} s apart (against this machine {told})"
        yield _check("clock", "failed", what, _where(plan), "set the clocks by NTP", "timedatectl status")
    else:
        yield _ok("clock", f"the clocks are near (against this machine {told})", plan)


def _network(plan: Mapping[str, Any], _facts: Facts) -> Iterator[Check]:
    members = plan["launch"]["members"]
    speeds = [member["speed_mbps"] for member in members if member["speed_mbps"]]
    told = ", ".join(f"{member['host']} {member['interface']} {member['address']}" for member in members)
    if speeds and min(speeds) < SLOW_MBPS and not all(member["rdma"] for member in members):
        what = f"the network has {min(speeds) / 1000:g} Gbit/s ({told}): every token waits for it between the stages"
        fix = f"a network of {SLOW_MBPS // 1000} Gbit/s or more, named in span_interface"
        yield _check("network", "warning", what, _where(plan), fix, "ip -brief address")
    else:
        rate = f", {min(speeds) / 1000:g} Gbit/s" if speeds else ""
        yield _ok("network", f"{told}{rate}; {plan['launch']['network_why']}", plan)


def _rdma(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    if any(member["rdma"] for member in plan["launch"]["members"]):
        return
    active = {
        host: sorted({str(port["link_layer"]) for port in told["network"].get("rdma") or () if _usable(port)})
        for host, told in facts.items()
        if host in plan["hosts"]
    }
    without = [host for host, layers in active.items() if not layers]
    if without and len(without) < len(active):
        what = f"no active InfiniBand or RoCE device on {', '.join(without)}, so all send over TCP"
        yield _check("rdma", "warning", what, _where(plan), "bring the port up there", "ibv_devinfo")
    elif not without:
        kinds = _differing(plan, {host: " and ".join(layers) for host, layers in active.items()})
        what = f"the RDMA devices are of different kinds ({kinds}), so all send over TCP"
        yield _check("rdma", "warning", what, _where(plan), "one kind of network on all hosts", "ibv_devinfo")


def _usable(port: Mapping[str, Any]) -> bool:
    return port.get("state") == "ACTIVE" and port.get("link_layer") in ("InfiniBand", "Ethernet")


def _memlock(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """RDMA pins the memory that it sends from."""
    for member in plan["launch"]["members"]:
        limit = facts[member["host"]]["network"].get("memlock_kib")
        if member["rdma"] and limit not in (None, -1):
            what = f"Docker may lock {limit} KiB of memory, RDMA needs all that it sends from"
            fix = "LimitMEMLOCK=infinity for docker.service"
            yield _check("memlock", "failed", what, member["host"], fix, "systemctl edit docker.service")


def _links(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """Tensor parallelism inside of a host: two all-reduces a layer."""
    if (plan["parallel"].get("tensor_parallel_size") or 1) == 1:
        return
    for host in plan["hosts"]:
        taken = [budget["gpu"] for budget in plan["budget"] if budget["host"] == host]
        links = facts[host]["gpu_info"].get("links") or []
        kinds = {_link(links, left, right) for left in taken for right in taken if left < right} - {""}
        if kinds and not all(kind.startswith("NV") for kind in kinds):
            what = f"its GPUs are connected by {', '.join(sorted(kinds))}, not by NVLink: tensor parallelism is slow"
            fix = "tensor_parallel_size 1 and a stage for each GPU may be faster: compare"
            yield _check("links", "warning", what, host, fix, "nvidia-smi topo --matrix")


def _link(links: Sequence[Any], row: int, column: int) -> str:
    try:
        cell = links[row][column]
    except (IndexError, KeyError, TypeError):
        return ""
    return str(cell.get("type", "") if isinstance(cell, Mapping) else cell or "")


def _ports(plan: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """The ports of the launch, which nobody publishes: the containers use the network of their host."""
    launch = plan["launch"]
    for rank, host in enumerate(plan["hosts"]):
        needed = {"watch_port": launch["watch_port"], **({"master_port": launch["master_port"]} if rank == 0 else {})}
        for name, port in needed.items():
            taken = [
                item
                for item in facts[host]["network"].get("listening") or ()
                if item["port"] == port and not item.get("ours")
            ]
            if taken:
                holder = f"{taken[0].get('process') or 'a process'} ({taken[0].get('pid') or 'unknown'})"
                what = f"the port {port} ({name}) is taken by {holder}"
                fix = "stop what has it, or give the instance another port: both follow from it"
                command = f"ss --listening --tcp --processes 'sport = {port}'"
                yield _check("port", "failed", what, host, fix, command)


def _reach(plan: Mapping[str, Any], host: str, told: Mapping[str, Any]) -> Iterator[Check]:
    """A port that cannot be reached is mostly a firewall's; NCCL and Gloo need all ports between members."""
    for name in told.get("names") or ():
        if name["error"]:
            what = f"the name {name['name']} does not resolve: {name['error']}"
            fix = "a record in DNS or in /etc/hosts of every host, or an address in engine_args.master_addr"
            yield _check("name", "failed", what, host, fix, f"getent hosts {name['name']}")
        elif plan["launch"]["members"][0]["address"] not in name["addresses"]:
            first = plan["launch"]["members"][0]
            what = f"{name['name']} is {', '.join(name['addresses'])} there, not {first['address']} of {first['host']}"
            fix = f"a name of {first['address']} in engine_args.master_addr, or none"
            yield _check("name", "failed", what, host, fix, f"getent hosts {name['name']}")
    failed = [item for item in told.get("reached") or () if item["error"]]
    for item in failed:
        what = f"{item['host']} ({item['address']}) does not answer on port {item['port']}: {item['error']}"
        fix = "let all TCP ports through between the hosts of the engine: NCCL and Gloo choose theirs freely"
        address = f"[{item['address']}]" if ":" in item["address"] else item["address"]
        yield _check("reach", "failed", what, host, fix, f"curl --verbose telnet://{address}:{item['port']}")
    if told.get("reached") and not failed:
        peers = ", ".join(dict.fromkeys(item["host"] for item in told["reached"]))
        yield _check("reach", "ok", f"reaches {peers}", host)


def _content(plan: Mapping[str, Any], facts: Facts, key: str, what: str, name: str, command: str) -> Iterator[Check]:
    values = {host: str(facts.get(host, {}).get(key) or "unknown") for host in plan["hosts"]}
    if len(set(values.values())) > 1:
        shown = {host: value.removeprefix("sha256:")[:12] for host, value in values.items()}
        told = f"{what} {name} is not the same on all hosts ({_differing(plan, shown)})"
        fix = f"the same content on every host: remove {what.removeprefix('the ')} where it is wrong, and deploy again"
        yield _check(key, "failed", told, _where(plan), fix, command)

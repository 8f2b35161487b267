# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the members of an engine are started together, and what they are told of their network. Private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._catalogue import Release
from .network import MemberError, choose_network, data

OFFICIAL_IMAGE = "/vllm-openai:"
"""How the name of the official image ends, in whatever registry a copy of it is."""

LAUNCHES = ("auto", "multiprocessing", "ray")

FIRST_PORT = 29000
PORTS = 500
"""Below the ports that Linux gives to outgoing connections (32768 on), two for each port of an endpoint."""


def ports_of(port: int, master_port: int | None = None) -> dict[str, int]:
    """The ports that the members need beside the endpoint's: {"master_port", "watch_port"}.

    master_port: where rank 0 waits for the others (vLLM's --master-port, Ray's GCS, --data-parallel-rpc-port);
    watch_port: where the members' watchers meet. Endpoints with neighbouring ports do not share them.
    """
    first = FIRST_PORT + 2 * (port % PORTS)
    return {"master_port": master_port or first, "watch_port": first + 1}


def method_of(release: Release, asked: str, data_parallel: bool, image: str = "") -> tuple[str, str]:
    """(multiprocessing or ray, why). Raises MemberError where the release or its image does not have what is asked.

    image: by its name; of one that is not the official one, nor a copy under its name, only its maker knows what is in
    it.
    """
    knows = release.argument("nnodes") is not None
    own_image = bool(image) and OFFICIAL_IMAGE not in image
    if data_parallel and asked != "ray":
        return "multiprocessing", "each host runs engines of its own (data parallel); rank 0 balances over all"
    if asked == "multiprocessing" and not knows:
        remedy = "Take a release from v0.11.1 on, or launch: ray."
        raise MemberError("launch", asked, f"needs --nnodes, which vLLM {release} does not have", remedy)
    if asked != "ray" and knows:
        return "multiprocessing", f"vLLM {release} connects hosts by itself (--nnodes); Ray is not needed"
    if asked == "ray" and data_parallel and release.argument("data_parallel_backend") is None:
        remedy = "Take a release from v0.9.1 on, or leave launch out."
        raise MemberError("launch", asked, f"is not for data parallel engines in vLLM {release}", remedy)
    if asked == "ray" and own_image:
        return "ray", "launch is ray; the image is your own and must have Ray in it"
    if not release.has_ray:
        remedy = (
            "Take launch: multiprocessing, a release up to v0.17.1, or an image of your own with Ray in it, "
            f"under a name that does not end with {OFFICIAL_IMAGE.rstrip(':')}."
        )
        raise MemberError("launch", asked, f"needs Ray, which the image of vLLM {release} does not have", remedy)
    reason = "launch is ray" if asked == "ray" else f"vLLM {release} has no --nnodes (from v0.11.1 on)"
    return "ray", f"{reason}; its image has Ray"


def describe_launch(
    instance: Mapping[str, Any],
    planned: Mapping[str, Any],
    release: Release,
    facts: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """How a planned engine is started on its hosts.

    instance: with "span" (the hosts in rank order), "port", and optional "launch", "span_interface", "master_addr",
    "master_port". facts: by host, what member_info returned; a host without has no address yet, as in a plan from
    recorded facts. Shape: {"method", "why", "master_addr", "master_port", "watch_port", "engines_per_host",
    "network_why", "members" [{"host", "interface", "address", "speed_mbps", "rdma", "environment"}], "reasons"
    [{"variable", "why"}]}. Raises MemberError.
    """
    hosts = list(instance["span"])
    engines = int((planned.get("parallel") or {}).get("data_parallel_size") or 1)
    asked, image = str(instance.get("launch") or "auto"), str(instance.get("image") or "")
    method, why = method_of(release, asked, engines > 1, image)
    known = all(facts.get(host) for host in hosts)
    members, reason = [{"host": host, "interface": None, "address": None, "speed_mbps": None} for host in hosts], ""
    if known:
        members, reason = choose_network(facts, hosts, instance.get("span_interface"))
    devices = rdma_devices(facts, hosts) if known else {}
    rows = [row for row in data()["environment"] if row["when"] in ("always", _condition(devices))] if known else []
    port = int(instance.get("port") or 8000)
    return {
        "method": method,
        "why": why,
        "master_addr": instance.get("master_addr") or members[0]["address"],
        **ports_of(port, instance.get("master_port")),
        "engines_per_host": engines // len(hosts) if engines > 1 else 0,
        "network_why": reason,
        "members": [_with_environment(member, rows, devices.get(member["host"], [])) for member in members],
        "reasons": [{"variable": row["variable"], "why": row["why"]} for row in rows],
    }


def rdma_devices(facts: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, list[str]]:
    """The ports that NCCL shall use on each host, as it names them (mlx5_0:1); empty where not all hosts have some.

    InfiniBand where all have it, else RoCE: a port of one kind reaches none of the other, and NCCL by itself takes
    both. Other kinds, such as Amazon's EFA, are no business of NCCL's verbs.
    """
    for layer in ("InfiniBand", "Ethernet"):
        found = {host: _active(facts[host], layer) for host in hosts}
        if all(found.values()):
            return found
    return {}


def _active(facts: Mapping[str, Any], layer: str) -> list[str]:
    return [
        f"{port['device']}:{port['port']}"
        for port in facts.get("rdma") or ()
        if port.get("state") == "ACTIVE" and port.get("link_layer") == layer
    ]


def _condition(devices: Mapping[str, Sequence[str]]) -> str:
    return "with_rdma" if devices else "without_rdma"


def _with_environment(
    member: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], devices: Sequence[str]
) -> dict[str, Any]:
    environment = {
        row["variable"]: str(row["value"]).format(
            address=member["address"], interface=member["interface"], devices=",".join(devices)
        )
        for row in rows
    }
    return {**member, "rdma": list(devices), "environment": environment}

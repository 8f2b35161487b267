# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what the members of an engine ask of each other; documented beside the module of the same name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._members import MemberError, choose_network, ports_of
from ..plugin_utils._planning import InstanceError
from ..plugin_utils._planning.spans import span_of

_ARGUMENTS: dict[str, dict[str, Any]] = {
    "instances": {"type": "list", "elements": "dict", "default": []},
    "peers_fact": {"type": "str"},
    "listen_seconds": {"type": "int", "default": 60},
}
# NCCL and Gloo choose their ports freely: one of those is tried, too.
_ANY_PORT = 0
_Instance = Mapping[str, Any]
_Groups = Mapping[str, Sequence[str]]


class ActionModule(ActionBase):
    """Runs the module once: with the ports to listen on, or with the peers to reach."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(_ARGUMENTS)
        variables = task_vars or {}
        try:
            asked = self._asked(arguments, variables)
        except (InstanceError, MemberError):
            # The plan tells of it, with everything else that is wrong.
            return {**result, "changed": False, "reached": [], "names": []}
        began = time.time()
        told = self._execute_module(
            module_name="gpufleet.vllm.member_info", module_args={**arguments, **asked}, task_vars=variables
        )
        ended = time.time()
        told.pop("invocation", None)
        now = told.pop("now", None)
        if now is not None and not arguments["peers_fact"]:
            # The module read the clock at some time in between.
            told["clock"] = {
                "offset_seconds": round(now - (began + ended) / 2, 2),
                "uncertainty_seconds": round((ended - began) / 2, 2),
            }
        return {**result, **told}

    def _asked(self, arguments: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
        groups, host = variables.get("groups") or {}, str(variables.get("inventory_hostname"))
        spans = [instance for instance in arguments["instances"] if span_of(instance, groups)]
        if arguments["peers_fact"]:
            members = {
                name: facts[arguments["peers_fact"]]
                for instance in spans
                for name in span_of(instance, groups)
                if arguments["peers_fact"] in (facts := variables["hostvars"][name])
            }
            return peers_of(host, spans, groups, members)
        return {
            "names": [str(instance["name"]) for instance in spans],
            "listen": ports_to_try(host, spans, groups),
            "peers": sum(len(span_of(instance, groups)) - 1 for instance in spans),
        }


def ports_to_try(host: str, spans: Sequence[_Instance], groups: _Groups) -> list[int]:
    """The ports that other members reach on this host."""
    found = [_ANY_PORT]
    for instance in spans:
        ports = ports_of(int(instance.get("port") or 8000), _master_port(instance))
        leads = span_of(instance, groups)[0] == host
        found += [ports["watch_port"], *([ports["master_port"]] if leads else [])]
    return found


def _master_port(instance: _Instance) -> int | None:
    port = (instance.get("engine_args") or {}).get("master_port")
    return int(port) if port is not None else None


def peers_of(
    host: str, spans: Sequence[_Instance], groups: _Groups, members: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """What the host connects to and which names it looks up: {"reach": [...], "resolve": [...]}. Raises MemberError."""
    reach: list[dict[str, Any]] = []
    names = []
    for instance in spans:
        hosts = span_of(instance, groups)
        if any(name not in members for name in hosts):
            continue
        facts = {name: members[name]["network"] for name in hosts}
        ports, _why = choose_network(facts, hosts, instance.get("span_interface"))
        needed = ports_of(int(instance.get("port") or 8000), _master_port(instance))
        for rank, peer in enumerate(ports):
            if peer["host"] != host:
                wanted = [needed["watch_port"], *([needed["master_port"]] if rank == 0 else [])]
                reach += _reach(peer, facts[peer["host"]], wanted)
        name = (instance.get("engine_args") or {}).get("master_addr")
        names += [str(name)] if name else []
    return {"reach": reach, "resolve": sorted(set(names))}


def _reach(peer: Mapping[str, Any], facts: Mapping[str, Any], wanted: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A port on which the peer listens for us is asked for its token; one that the engine has by now answers anyway."""
    listener = facts["listener"]
    ours = {item["port"] for item in facts["listening"] if item["ours"]}
    for port in sorted({*wanted, *listener["ports"]}):
        target = {"host": peer["host"], "address": peer["address"], "port": port}
        if port in listener["ports"]:
            yield {**target, "token": listener["token"]}
        elif port in ours:
            yield target

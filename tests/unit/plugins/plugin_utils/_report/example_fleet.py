# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet of inventories/example, planned without Ansible."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan_instances
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.spans import plan_host, together
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report import once

EXAMPLE = Path(__file__).resolve().parents[5] / "inventories/example"
FACTS = EXAMPLE.parent / "example_facts"


def load(path: Path) -> dict[str, Any]:
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


def groups() -> dict[str, list[str]]:
    """The hosts of each group, in the order of the inventory."""
    children = load(EXAMPLE / "hosts.yml")["vllm"]["children"]
    return {group: list(content["hosts"]) for group, content in children.items()}


def instances(host: str) -> list[dict[str, Any]]:
    group = next(name for name, hosts in groups().items() if host in hosts)
    variables = {**load(EXAMPLE / f"group_vars/{group}.yml"), **load(EXAMPLE / f"host_vars/{host}.yml")}
    return variables["vllm_instances"]


def facts(host: str) -> dict[str, Any]:
    return json.loads((FACTS / f"{host}.json").read_text(encoding="utf-8"))


def planned(host: str, given: list[dict[str, Any]] | None = None, **more: Any) -> list[dict[str, Any]]:
    known = facts(host)
    return plan_instances(given or instances(host), [known["gpu_info"]], known["checkpoints"], [host], **more)


def member(host: str) -> dict[str, Any]:
    """What a host tells of itself where engines span hosts."""
    known = facts(host)
    return {"instances": instances(host), "facts": {"plans": {}, "receipts": {}, **known}, "network": known["network"]}


def planned_in_the_fleet(host: str) -> list[dict[str, Any]]:
    """As in a playbook: an engine over several hosts is planned with all of them."""
    if not any(instance.get("span") for instance in instances(host)):
        return planned(host)
    return plan_host(host, together(host, member, groups()), groups())


@functools.cache
def fleet() -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """All plans, and what gpu_info would return, by host."""
    hosts = [host for several in groups().values() for host in several]
    plans = once(plan for host in hosts for plan in planned_in_the_fleet(host))
    return plans, {host: facts(host)["gpu_info"] for host in hosts}

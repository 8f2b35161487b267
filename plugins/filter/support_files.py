# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: support_files
short_description: The files of a support bundle from what the hosts told
description:
  - Takes the variables of hosts after C(diagnose_vllm) collected its evidence, and gives the files that
    M(gpufleet.vllm.support_bundle) writes, a folder for each host and instance.
positional: _input
options:
  _input:
    description: Variables of the hosts, by their name.
    type: dict
    required: true
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Write down what support needs
  gpufleet.vllm.support_bundle:
    path: vllm-support.tar.gz
    files: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars)))
               | gpufleet.vllm.support_files }}"
"""

RETURN = r"""
_value:
  description: Content by path, such as C(gpu01/chat/log).
  type: dict
"""

from collections.abc import Iterator, Mapping
from typing import Any

_WITHOUT = ("invocation", "changed", "failed", "failed_when_result", "ansible_loop_var", "warnings", "_vllm_instance")


def support_files(hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The files of a bundle. Only what the diagnosis collected is taken from the variables of a host."""
    return dict(file for host, variables in hosts.items() for file in _host_files(host, variables))


def _host_files(host: str, variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    gpus = {
        name: value for name, value in variables.get("__vllm_diagnose_gpu_info", {}).items() if name not in _WITHOUT
    }
    yield f"{host}/gpu_info.json", gpus
    yield f"{host}/diagnoses.json", variables.get("_vllm_diagnoses", [])
    for evidence in variables.get("__vllm_evidence", {}).get("results", []):
        yield from _instance_files(f"{host}/{evidence['name']}", evidence)


def _instance_files(folder: str, evidence: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield f"{folder}/log", evidence["log"]
    told = ("unit", "phase", "container", "request", "errors")
    yield f"{folder}/unit.json", {name: evidence[name] for name in told}
    for number, sample in enumerate(evidence["samples"], 1):
        yield f"{folder}/metrics-{number}.txt", sample["metrics"] or "no answer"
    for name, text in {**evidence["files"], **evidence["host"]}.items():
        yield f"{folder}/{name}", text
    for failure in evidence["failures"]:
        for name, text in failure["files"].items():
            yield f"{folder}/failures/{failure['number']}/{name}", text


class FilterModule:
    """Ansible filter: what hosts told to the files of a bundle."""

    def filters(self) -> dict[str, Any]:
        return {"support_files": support_files}

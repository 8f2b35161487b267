# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: docker_daemon
short_description: Add NVIDIA's runtime or a cgroup driver to Docker's configuration
description:
  - Merges settings into the text of C(/etc/docker/daemon.json). Everything else in it stays as it is.
  - Where nothing changes, the text itself comes back, letter by letter.
positional: _input
options:
  _input:
    description: The text of C(daemon.json). Empty where there is no such file.
    type: str
    required: true
  nvidia_runtime:
    description:
      - Register the runtime C(nvidia), as C(nvidia-ctk runtime configure) does. One that is registered stays as it is.
    type: bool
    default: false
  cgroup_driver:
    description: Set the cgroup driver. If empty, it stays as it is.
    type: str
    choices: ['', cgroupfs, systemd]
    default: ''
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Register NVIDIA's runtime
  ansible.builtin.copy:
    content: "{{ daemon_json | gpufleet.vllm.docker_daemon(nvidia_runtime=true) }}"
    dest: /etc/docker/daemon.json
    mode: "0644"
"""

RETURN = r"""
_value:
  description: The text with the settings.
  type: str
"""

import json
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

#: What nvidia-ctk runtime configure --runtime=docker writes.
NVIDIA_RUNTIME = {"args": [], "path": "nvidia-container-runtime"}

CGROUP_DRIVERS = ("", "cgroupfs", "systemd")
CGROUP_OPTION = "native.cgroupdriver"


def docker_daemon(text: str, nvidia_runtime: bool = False, cgroup_driver: str = "") -> str:
    """The merged text. Raises AnsibleFilterError for what Docker could not read either."""
    if cgroup_driver not in CGROUP_DRIVERS:
        raise AnsibleFilterError(
            f"gpufleet.vllm.docker_daemon: cgroup_driver {cgroup_driver!r} is unknown; write cgroupfs or systemd."
        )
    settings = _read(text)
    merged = dict(settings)
    if nvidia_runtime:
        merged["runtimes"] = {"nvidia": NVIDIA_RUNTIME, **(settings.get("runtimes") or {})}
    if cgroup_driver:
        merged["exec-opts"] = _with_cgroup_driver(settings.get("exec-opts") or [], cgroup_driver)
    return text if merged == settings else json.dumps(merged, indent=4) + "\n"


def _with_cgroup_driver(options: list[str], cgroup_driver: str) -> list[str]:
    others = [option for option in options if option.partition("=")[0].strip() != CGROUP_OPTION]
    wanted = f"{CGROUP_OPTION}={cgroup_driver}"
    return options if wanted in options and len(others) == len(options) - 1 else [*others, wanted]


def _read(text: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.docker_daemon: /etc/docker/daemon.json is not JSON ({error}); Docker cannot read it. "
            "Next, on the host: python3 -m json.tool /etc/docker/daemon.json"
        ) from error
    if not isinstance(settings, dict):
        raise AnsibleFilterError("gpufleet.vllm.docker_daemon: /etc/docker/daemon.json holds no JSON object ({...}).")
    return settings


class FilterModule:
    """Ansible filter: Docker's configuration with settings added."""

    def filters(self) -> dict[str, Any]:
        return {"docker_daemon": docker_daemon}

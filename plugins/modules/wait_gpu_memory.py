#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Waits until GPUs have the memory free that an engine is to take."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_gpu_memory
short_description: Waits until GPUs have the memory free that an engine is to take
description:
  - Looks every second until each GPU has enough free memory, and returns at once where it has.
  - If the time is over, fails and names, for each GPU, what is free, what is needed and who holds the rest.
  - A GPU or MIG device of which the driver tells no free memory is not waited for, with a warning.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
options:
  gpus:
    description:
      - The GPUs and what they need.
    type: list
    elements: dict
    required: true
    suboptions:
      uuid:
        description: UUID of a GPU or of a MIG device; the index of a GPU will do.
        type: str
        required: true
      needed_gib:
        description: Memory that must be free, in GiB, as in C(budget[].requested_gib) of a plan.
        type: float
        required: true
  own_containers:
    description:
      - Names of containers of the engine that is to be replaced.
    type: list
    elements: str
    default: []
  before_stop:
    description:
      - Whether the O(own_containers) still run and are stopped next. Then their memory counts as free.
    type: bool
    default: false
  timeout:
    description:
      - Seconds to wait. With V(0) it looks once.
    type: int
    default: 60
  source:
    description:
      - Where the facts come from, see M(gpufleet.vllm.gpu_info).
    type: str
    choices: [auto, nvml, nvidia-smi]
    default: auto
seealso:
  - module: gpufleet.vllm.gpu_info
"""

EXAMPLES = r"""
- name: Is there room for it, once the engine before it has stopped?
  gpufleet.vllm.wait_gpu_memory:
    gpus:
      - uuid: GPU-8f0c6a52-7a25-4d1c-9b1e-3f2b1d1f0a11
        needed_gib: 68.4
    own_containers: [vllm-chat]
    before_stop: true
    timeout: 0

- name: The engine before it has let go of its memory
  gpufleet.vllm.wait_gpu_memory:
    gpus:
      - uuid: GPU-8f0c6a52-7a25-4d1c-9b1e-3f2b1d1f0a11
        needed_gib: 68.4
"""

RETURN = r"""
gpus:
  description: What was found last, in the order of O(gpus).
  returned: unless the driver cannot be asked
  type: list
  elements: dict
  contains:
    uuid:
      description: As it was given.
      type: str
    name:
      description: Name of the GPU.
      type: str
    needed_mib:
      description: Memory that must be free.
      type: int
    free_mib:
      description: Memory that is free, or will be; none where the driver does not tell.
      type: int
    holders:
      description: Processes that hold memory, as RV(gpufleet.vllm.gpu_info#module:gpus[].processes).
      type: list
      elements: dict
waited_seconds:
  description: How long it took.
  returned: unless the driver cannot be asked
  type: float
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _gpu_query
from ..module_utils._host_container_runtime import container_names

#: Seconds for each call of the driver.
DRIVER_TIMEOUT = 30


class GpuError(Exception):
    """A GPU that is not there, or a driver that does not answer."""


def wait(params, look, sleep=time.sleep, clock=time.monotonic):
    """Returns {"gpus", "waited_seconds"} when there is enough, or the time is over. look() returns gpu_info's host."""
    began = clock()
    while True:
        host_gpus = _gpus(look())
        gpus = [judge(wanted, look_up(host_gpus, wanted["uuid"]), params) for wanted in params["gpus"]]
        waited = clock() - began
        if not lacking(gpus) or waited >= params["timeout"]:
            return {"gpus": gpus, "waited_seconds": round(waited, 1)}
        sleep(1)


def _gpus(host):
    if not host["gpus"] and host["errors"]:
        error = host["errors"][0]
        raise GpuError(f"{error['message'].rstrip('.')}. {error['next_step']}")
    return host["gpus"]


def look_up(gpus, uuid):
    """The GPU or MIG device: {"name", "memory_free_mib", "processes"}. Raises GpuError where none works."""
    for gpu in gpus:
        if uuid in (gpu["uuid"], str(gpu["index"])):
            if gpu["state"] != "ok":
                raise GpuError(f"GPU {uuid} does not work: {gpu['state']}. Next: nvidia-smi; dmesg | grep -i xid")
            return gpu
        for device in gpu["mig"]["instances"]:
            if device["uuid"] == uuid:
                processes = [p for p in gpu["processes"] if p["gpu_instance_id"] == device["gpu_instance_id"]]
                return dict(device, name=f"{gpu['name']} MIG {device['profile']}", processes=processes)
    there = [gpu["uuid"] for gpu in gpus] + [device["uuid"] for gpu in gpus for device in gpu["mig"]["instances"]]
    listed = ", ".join(str(name) for name in there) or "none"
    raise GpuError(f"There is no GPU {uuid} on this host. There are: {listed}. Next: nvidia-smi -L")


def judge(wanted, gpu, params):
    """What is free for the engine on one GPU, and who holds the rest."""
    own = [process for process in gpu["processes"] if process["container"] in params["own_containers"]]
    going = own if params["before_stop"] else []
    return {
        "uuid": wanted["uuid"],
        "name": gpu["name"],
        "needed_mib": int(wanted["needed_gib"] * 1024),
        "free_mib": _free_mib(gpu, going),
        "holders": [process for process in gpu["processes"] if process not in going],
    }


def _free_mib(gpu, going):
    figures = [gpu["memory_free_mib"]] + [process["used_memory_mib"] for process in going]
    return None if None in figures else sum(figures)


def lacking(gpus):
    """Those that have too little. One without a figure may have enough."""
    return [gpu for gpu in gpus if gpu["free_mib"] is not None and gpu["free_mib"] < gpu["needed_mib"]]


def failure_message(gpus, waited):
    """What is free, what is needed, and who holds the rest."""
    lines = [f"Not enough GPU memory is free after {waited:g} s; no engine was started."]
    for gpu in gpus:
        lines.append(
            f"GPU {gpu['uuid']} ({gpu['name']}): {gpu['free_mib']} MiB free, {gpu['needed_mib']} MiB needed; held by "
            + (", ".join(_holder(process) for process in gpu["holders"]) or "no process that this host shows")
        )
    holders = [process for gpu in gpus for process in gpu["holders"]]
    lines.append(f"Next: {_next(holders)}, or give the instance other GPUs or a smaller plan")
    return "\n".join(lines)


def _holder(process):
    where = f" in container {process['container']}" if process["container"] else ""
    used = "" if process["used_memory_mib"] is None else f", {process['used_memory_mib']} MiB"
    return f"pid {process['pid']} {process['name'] or '?'}{where}{used}"


def _next(holders):
    containers = sorted({process["container"] for process in holders if process["container"]})
    if containers:
        return f"see whether it may end: docker ps --filter name={containers[0]}"
    return f"see whether it may end: ps -fp {holders[0]['pid']}" if holders else "nvidia-smi"


def look_at_host(source, own_containers):
    """gpu_info's host, with the names of the containers."""
    host, problems = _gpu_query.query(source, DRIVER_TIMEOUT, topology=False)
    names = container_names(DRIVER_TIMEOUT) if any(gpu["processes"] for gpu in host["gpus"]) else {}
    return _gpu_query.complete(host, problems, own_containers, names)


def main():
    """Run the module."""
    gpu_options = {"uuid": {"type": "str", "required": True}, "needed_gib": {"type": "float", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "dict", "required": True, "options": gpu_options},
            "own_containers": {"type": "list", "elements": "str", "default": []},
            "before_stop": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 60},
            "source": {"type": "str", "choices": ["auto", "nvml", "nvidia-smi"], "default": "auto"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = wait(params, lambda: look_at_host(params["source"], params["own_containers"]))
    except GpuError as error:
        module.fail_json(msg=str(error))
    for gpu in result["gpus"]:
        if gpu["free_mib"] is None:
            module.warn(
                f"The driver does not tell how much memory of GPU {gpu['uuid']} is free: it is taken for enough."
            )
    if lacking(result["gpus"]):
        module.fail_json(msg=failure_message(lacking(result["gpus"]), result["waited_seconds"]), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

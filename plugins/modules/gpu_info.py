#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tells the truth about the NVIDIA GPUs of a host
description:
  - Reads driver, GPUs, memory and who uses it, MIG, topology, container runtime and the host's own resources.
  - Asks NVML (by C(pynvml) where that is installed, else by the driver's library itself), or C(nvidia-smi) where NVML
    cannot be used. Both give the same data.
  - A host without a working driver is not a failure of the module. What is wrong, and what to do next, is in
    RV(errors); set O(fail_on_error=true) to fail instead.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
  - gpufleet.vllm.attributes.facts
attributes:
  facts:
    support: partial
    details:
      - Only with O(as_facts=true).
options:
  source:
    description:
      - Where the facts about the GPUs come from.
      - V(auto) takes NVML, and C(nvidia-smi) where NVML cannot be loaded.
    type: str
    choices: [auto, nvml, nvidia-smi]
    default: auto
  gather_subset:
    description:
      - What to tell beside the GPUs themselves.
      - V(topology) gives RV(links); V(container_runtime) gives RV(container_runtime); V(host) gives RV(host).
    type: list
    elements: str
    choices: [topology, container_runtime, host]
    default: [topology, container_runtime, host]
  path:
    description:
      - Also describe the disk that holds this directory, or that would hold it if it existed. See RV(disk).
    type: path
  own_containers:
    description:
      - Names of containers whose GPU memory is not counted in C(memory_used_by_others_mib).
    type: list
    elements: str
    default: []
  timeout:
    description:
      - Seconds after which a driver that does not answer is given up.
      - Without persistence mode the first call on a host with eight GPUs may take more than ten seconds.
    type: float
    default: 30
  fail_on_error:
    description:
      - Fail if there is anything in RV(errors). All facts are returned also then.
    type: bool
    default: false
  as_facts:
    description:
      - Also set everything as the host fact C(gpufleet_gpu_info), in RV(ansible_facts).
    type: bool
    default: false
notes:
  - Needs Python 3.8 on the host and nothing else. Run it with C(become), or MIG memory and other users' processes may
    stay unknown.
"""

EXAMPLES = r"""
- name: Know the GPUs
  gpufleet.vllm.gpu_info:
  register: hardware

- name: Show the free memory of each GPU
  ansible.builtin.debug:
    msg: "{{ hardware.gpus | map(attribute='memory_free_mib') }}"

- name: Stop where the driver does not work, and know the disk for the models
  gpufleet.vllm.gpu_info:
    path: /srv/models
    own_containers: [vllm-chat]
    fail_on_error: true
"""

RETURN = r"""
driver_version:
  description: Version of the NVIDIA driver.
  returned: always
  type: str
  sample: 580.95.05
gpus:
  description: The GPUs in the driver's order.
  returned: always
  type: list
  elements: dict
errors:
  description: What is wrong, and what to do next.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _gpu_query, _host_container_runtime, _host_facts


def main():
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["auto", "nvml", "nvidia-smi"], "default": "auto"},
            "gather_subset": {
                "type": "list",
                "elements": "str",
                "choices": ["topology", "container_runtime", "host"],
                "default": ["topology", "container_runtime", "host"],
            },
            "path": {"type": "path"},
            "own_containers": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "float", "default": 30},
            "fail_on_error": {"type": "bool", "default": False},
            "as_facts": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    facts = gather(module.params)
    for notice in facts["notices"]:
        module.warn("%s %s" % (notice["message"], notice["next_step"]))
    if module.params["as_facts"]:
        facts["ansible_facts"] = {"gpufleet_gpu_info": dict(facts)}
    if module.params["fail_on_error"] and facts["errors"]:
        module.fail_json(msg=describe(facts["errors"]), **facts)
    module.exit_json(changed=False, **facts)


def gather(params):
    """All facts for the module's parameters."""
    subset = params["gather_subset"]
    facts = _gpu_query.query(params["source"], params["timeout"], "topology" in subset)
    has_processes = any(gpu["processes"] for gpu in facts["gpus"])
    names = _host_container_runtime.container_names(params["timeout"]) if has_processes else {}
    _gpu_query.complete(facts, params["own_containers"], names)
    if "container_runtime" in subset:
        facts["container_runtime"] = _host_container_runtime.container_runtime(params["timeout"])
    if "host" in subset:
        facts["host"] = _host_facts.memory()
    if params["path"]:
        facts["disk"] = _host_facts.disk(params["path"])
    return facts


def describe(errors):
    """One message for all errors: what is wrong and what to do."""
    return " ".join("%s. %s" % (error["message"].rstrip("."), error["next_step"]) for error in errors)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tells the truth about the NVIDIA GPUs of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
short_description: Tells the truth about the NVIDIA GPUs of a host
description:
  - Reads driver, GPUs, memory and who uses it, MIG, topology, container runtime and the host's own resources.
  - Asks NVML, through C(pynvml) where that is installed and through the driver's own library else, so that no process
    is started; C(nvidia-smi) is asked where NVML cannot be loaded. All of them give the same data.
  - A host without a working driver is not a failure of the module. What is wrong, and what to do next, is in
    RV(errors); set O(fail_on_error=true) to fail instead.
  - What the driver does not tell is C(null). No figure of memory is ever taken from a table of cards.
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
      - V(auto) asks NVML, and C(nvidia-smi) where NVML cannot be loaded.
      - V(nvidia-smi) starts one process, and one more each for the topology of several GPUs, the UUIDs of MIG devices
        and the compute capability of a card that the collection does not know.
    type: str
    choices: [auto, nvml, nvidia-smi]
    default: auto
  gather_subset:
    description:
      - What to tell beside the GPUs themselves.
      - V(topology) gives RV(links), V(container_runtime) gives RV(container_runtime), V(host) gives RV(host).
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
      - Names of containers whose GPU memory is not counted as used by others. See RV(gpus).
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
      - Fail if there is anything in RV(errors). All facts are returned then, too.
    type: bool
    default: false
  as_facts:
    description:
      - Also set everything as the host fact C(gpufleet_gpu_info).
    type: bool
    default: false
notes:
  - Needs Python 3.8 on the host and nothing else. Without C(become), the memory of MIG instances and the containers of
    other users' processes may stay unknown.
"""

EXAMPLES = r"""
- name: Know the GPUs
  gpufleet.vllm.gpu_info:
  register: hardware

- name: Show the free memory of each GPU
  ansible.builtin.debug:
    msg: "{{ hardware.gpus | map(attribute='memory_free_mib') }}"

- name: Stop where a GPU does not work, and know the disk for the models
  gpufleet.vllm.gpu_info:
    path: /srv/models
    own_containers: [vllm-chat]
    fail_on_error: true

- name: Only the GPUs, as a host fact
  gpufleet.vllm.gpu_info:
    gather_subset: []
    as_facts: true
"""

RETURN = r"""
driver_version:
  description: Version of the NVIDIA driver.
  returned: always, null without a working driver
  type: str
  sample: 580.95.05
cuda_driver_version:
  description: The newest CUDA version that the driver supports; null before 410 and where libcuda is missing.
  returned: always
  type: str
  sample: "13.0"
kernel_module_version:
  description: Version of the loaded NVIDIA kernel module, also where the driver does not work.
  returned: always
  type: str
  sample: 580.95.05
library_version:
  description: Version of the installed NVIDIA driver library. Another one than the kernel module's does not work.
  returned: always
  type: str
  sample: 580.95.05
source:
  description: What answered, or was asked last (V(nvml) or V(nvidia-smi)).
  returned: always
  type: str
  sample: nvml
attached_gpus:
  description: How many GPUs the driver counts.
  returned: always
  type: int
  sample: 8
gpus:
  description: The GPUs in the driver's order.
  returned: always
  type: list
  elements: dict
  contains:
    index:
      description: Number of the GPU for the driver, C(nvidia-smi -i) and C(docker --gpus).
      type: int
    uuid:
      description: UUID of the GPU.
      type: str
      sample: GPU-4c5c4a4e-1b5c-4f0e-9d3a-2d0f0d5e7c11
    name:
      description: Product name. A vGPU has the name of its profile.
      type: str
      sample: NVIDIA H100 80GB HBM3
    state:
      description: V(ok), or what keeps the GPU from being used.
      type: str
      choices: [ok, gpu_lost, gpu_requires_reset, device_error]
    pci_bus_id:
      description: PCI bus id.
      type: str
      sample: "00000000:18:00.0"
    pci_device_id:
      description: PCI device and vendor id.
      type: str
      sample: 233010DE
    minor_number:
      description: Number of the device file C(/dev/nvidiaN), which may differ from the index.
      type: int
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "9.0"
    compute_capability_source:
      description: V(driver), or the key by which a table told it.
      type: str
      choices: [driver, product_name, pci_device_id, architecture]
    architecture:
      description: Name of the architecture.
      type: str
      sample: Hopper
    memory_total_mib:
      description: Memory in MiB, as the card tells it.
      type: int
      sample: 81559
    memory_free_mib:
      description: Free memory in MiB, as the card tells it.
      type: int
    memory_used_mib:
      description: Memory in use in MiB; before driver 510 with what the driver reserves.
      type: int
    memory_reserved_mib:
      description: Memory in MiB that the driver keeps for itself; null before 510.
      type: int
    memory_used_by_others_mib:
      description:
        - Used memory less that of O(own_containers). It counts processes, too, that are not in the list because they
          belong to another process name space.
      type: int
    memory_source:
      description: V(host) where GPU and CPU share the memory and the driver tells no figure (GB10, Jetson).
      type: str
      choices: [card, host]
    processes:
      description:
        - Processes on the GPU, each with C(pid), C(name), C(type) (V(C), V(G) or V(C+G)), C(used_memory_mib) (null
          under Windows), C(container) (name, or id where Docker does not know it) and C(gpu_instance_id) under MIG.
      type: list
      elements: dict
    mig:
      description:
        - C(mode) and C(pending_mode) are V(Enabled), V(Disabled), or null for a card without MIG.
        - C(instances) are the MIG devices, each with C(index), C(uuid), C(profile), C(gpu_instance_id),
          C(compute_instance_id), C(memory_total_mib), C(memory_free_mib) and C(memory_used_mib). Devices with the same
          C(gpu_instance_id) share one memory.
      type: dict
    ecc:
      description: ECC C(mode), and the uncorrected errors since the driver was loaded and ever.
      type: dict
    persistence_mode:
      description: V(Enabled) or V(Disabled).
      type: str
    compute_mode:
      description: V(Default), V(Exclusive_Process) or V(Prohibited).
      type: str
    addressing_mode:
      description: V(ATS), V(HMM) or V(None).
      type: str
    virtualization_mode:
      description: V(None), V(Pass-Through), V(VGPU) in a guest, or V(Host VGPU).
      type: str
    driver_model:
      description: V(WDDM) under WSL2; null on Linux.
      type: str
    display_active:
      description: V(Enabled) if a display uses the GPU.
      type: str
    pcie:
      description: C(generation_current), C(generation_max), C(width_current), C(width_max). An idle link slows down.
      type: dict
    numa_node:
      description: NUMA node of the CPUs next to the GPU.
      type: int
    gpu_numa_id:
      description: NUMA node that the GPU's own memory is (GH200, GB200).
      type: int
    cpu_affinity:
      description: CPUs next to the GPU.
      type: str
      sample: 0-51,104-155
    power:
      description: C(draw_w), C(limit_w) in force, C(default_limit_w), C(min_limit_w) and C(max_limit_w), in W.
      type: dict
    clocks:
      description: C(graphics_mhz), C(memory_mhz), C(max_graphics_mhz), C(max_memory_mhz).
      type: dict
    temperature_c:
      description: Temperature of the GPU in degrees Celsius.
      type: int
    utilization_percent:
      description: How much of the last sample period a kernel ran.
      type: int
    throttle_reasons:
      description: What holds the clocks down, in NVIDIA's words, without C(gpu_idle).
      type: list
      elements: str
    retired_pages:
      description: C(single_bit), C(double_bit), C(pending), for cards before Ampere.
      type: dict
    remapped_rows:
      description: C(correctable), C(uncorrectable), C(pending), C(failure), for Ampere and newer.
      type: dict
    recovery_action:
      description: What the driver asks for to recover the GPU; only 565 and newer tell it.
      type: str
    fabric:
      description:
        - NVLink fabric, C(state), C(status), C(clique_id), C(cluster_uuid), C(health); all null where there is none.
      type: dict
links:
  description:
    - The best connection of each pair of GPUs, V(NV18) for 18 NVLinks, V(PIX), V(PXB), V(PHB), V(NODE) or V(SYS) as in
      C(nvidia-smi topo -m), V(X) for itself, null where unknown. Empty without V(topology) in O(gather_subset).
  returned: always
  type: list
  elements: list
  sample: [[X, NV18], [NV18, X]]
fabric_manager:
  description: C(nvswitches), their number, and C(running), whether the fabric manager runs; null without NVSwitches.
  returned: always
  type: dict
pci_gpus:
  description: The NVIDIA cards on the PCI bus and their kernel drivers, where the NVIDIA driver shows none.
  returned: if there are no RV(gpus)
  type: list
  elements: dict
container_runtime:
  description:
    - Docker and the NVIDIA container toolkit.
    - C(docker_error) tells why Docker did not answer, and is null if it did.
    - C(nvidia_runtime) tells whether Docker knows the runtime C(nvidia); C(cdi_devices) are the CDI devices.
    - C(images) are the images on the host, C(disk) is the disk of Docker's images, in the form of RV(disk).
    - With V(systemd) as C(cgroup_driver), without CDI and without C(dev_char_links), running containers lose their GPUs
      when C(systemctl daemon-reload) is run.
  returned: if O(gather_subset) has V(container_runtime)
  type: dict
  sample:
    docker_version: 28.2.2
    docker_root: /var/lib/docker
    docker_error: null
    cgroup_driver: systemd
    cgroup_version: "2"
    runtimes: [io.containerd.runc.v2, nvidia, runc]
    default_runtime: runc
    nvidia_runtime: true
    toolkit_version: 1.17.8
    toolkit_mode: auto
    toolkit_no_cgroups: false
    cdi_spec_dirs: [/etc/cdi, /var/run/cdi]
    cdi_devices: ["nvidia.com/gpu=0", "nvidia.com/gpu=all"]
    dev_char_links: true
    images: ["vllm/vllm-openai:v0.32.0"]
    disk:
      path: /var/lib/docker
      exists: true
      mount_point: /
      file_system: ext4
      source: /dev/nvme0n1p2
      network: false
      rotational: false
      read_only: false
      total_mib: 959218
      free_mib: 512034
host:
  description:
    - The host's memory in MiB; C(shm_size_mib) is that of C(/dev/shm).
    - C(listening) are the TCP ports that are taken, each with C(port), C(address), C(pid), C(process) and C(container)
      (its name, for published ports too). Without C(become), other users' processes stay unknown.
    - C(commands) are the full paths of the commands that a deployment uses, null where there is none.
  returned: if O(gather_subset) has V(host)
  type: dict
  sample:
    memory_total_mib: 2063917
    memory_available_mib: 2031102
    swap_total_mib: 0
    shm_size_mib: 1031958
    shm_free_mib: 1031958
    machine: x86_64
    systemd: true
    commands:
      bash: /usr/bin/bash
      curl: /usr/bin/curl
      docker: /usr/bin/docker
      python3: /usr/bin/python3
    listening:
      - port: 22
        address: 0.0.0.0
        pid: 812
        process: sshd
        container: null
disk:
  description:
    - The disk of O(path). C(rotational) is true if any disk below is one, null where the kernel cannot tell (network,
      overlay, ZFS). A virtual disk often says true.
  returned: if O(path) is set
  type: dict
  sample:
    path: /srv/models
    exists: true
    mount_point: /srv
    file_system: xfs
    source: /dev/nvme0n1p1
    network: false
    rotational: false
    read_only: false
    total_mib: 3661839
    free_mib: 2841220
errors:
  description:
    - What makes the host or one of its GPUs unusable, each with C(code), C(severity), C(message), C(next_step), C(gpu)
      (an index, or null for the whole host) and C(evidence) (the line that told it, or null).
  returned: always
  type: list
  elements: dict
  sample:
    - code: gpu_lost
      severity: error
      message: "GPU 3: The GPU has fallen off the bus: 00000000:5D:00.0"
      next_step: Run 'dmesg | grep -i xid' (79 says so); reboot the host.
      gpu: 3
      evidence: null
notices:
  description: What one should know while the data are valid, in the same form; also shown as warnings.
  returned: always
  type: list
  elements: dict
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _gpu_query, _host_container_runtime, _host_facts, _host_ports
from ..module_utils._gpu_command import find_program

#: What the systemd unit and the smoke test of an instance run on the host.
COMMANDS = ("bash", "curl", "docker", "python3")

ARGUMENT_SPEC = {
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
}


def gather(params: dict[str, Any]) -> dict[str, Any]:
    """All facts for the module's parameters."""
    subset, timeout = params["gather_subset"], params["timeout"]
    host, problems = _gpu_query.query(params["source"], timeout, topology="topology" in subset)
    has_processes = any(gpu["processes"] for gpu in host["gpus"])
    names = _host_container_runtime.container_names(timeout) if has_processes else {}
    facts = _gpu_query.complete(host, problems, params["own_containers"], names)
    if "container_runtime" in subset:
        facts["container_runtime"] = _host_container_runtime.container_runtime(timeout)
    if "host" in subset:
        facts["host"] = host_resources(timeout)
    if params["path"]:
        facts["disk"] = _host_facts.disk(params["path"])
    return facts


def host_resources(timeout: float) -> dict[str, Any]:
    """Memory, commands and taken ports of the host."""
    listeners = _host_ports.listening()
    names = _host_container_runtime.container_names(timeout) if listeners else {}
    published = {}
    if any(_host_ports.is_published(listener) for listener in listeners):
        published = _host_container_runtime.published_ports(timeout)
    _host_ports.name_listeners(listeners, names, published)
    return dict(
        _host_facts.memory(),
        machine=os.uname().machine,
        systemd=_host_facts.has_systemd(),
        commands={name: find_program(name) for name in COMMANDS},
        listening=listeners,
    )


def tell(problem: dict[str, Any]) -> str:
    """What is wrong, and what to do, in one line."""
    return f"{problem['message'].rstrip('.')}. {problem['next_step']}"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    facts = gather(module.params)
    for notice in facts["notices"]:
        module.warn(tell(notice))
    result = dict(facts, changed=False)
    if module.params["as_facts"]:
        result["ansible_facts"] = {"gpufleet_gpu_info": facts}
    if module.params["fail_on_error"] and facts["errors"]:
        module.fail_json(msg=" ".join(tell(error) for error in facts["errors"]), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

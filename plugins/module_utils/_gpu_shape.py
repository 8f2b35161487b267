# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape in which gpu_info describes a host and its GPUs, and the judgements that every source shares.

Private to the collection gpufleet.vllm. Sizes are MiB, clocks MHz, power W, temperatures degrees Celsius. None means
that the source does not tell. plugins/modules/gpu_info.py documents every key.
"""

from __future__ import annotations

from typing import Any, Iterable

from . import _gpu_compute_capability as compute_capability
from ._gpu_problems import problem, split

#: Clock event reasons that hold a GPU back; idle, application clocks, sync boost and power cap are normal life.
HARDWARE_SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")

#: Compute capabilities of chips without memory of their own: Jetson (3.2 to 8.7), Thor (11.0), GB10 (12.1).
SYSTEMS_ON_A_CHIP = ("3.2", "5.3", "6.2", "7.2", "8.7", "11.0", "12.1")


def new_gpu(index: int) -> dict[str, Any]:
    """A GPU of which nothing is known yet but its index (the driver's order, by PCI bus)."""
    return {
        "index": index,
        "uuid": None,
        "name": None,
        "state": "ok",
        "pci_bus_id": None,
        "pci_device_id": None,
        "minor_number": None,
        "compute_capability": None,
        "compute_capability_source": None,
        "architecture": None,
        "memory_total_mib": None,
        "memory_free_mib": None,
        "memory_used_mib": None,
        "memory_reserved_mib": None,
        "memory_used_by_others_mib": None,
        "memory_source": None,
        "processes": [],
        "mig": {"mode": None, "pending_mode": None, "instances": []},
        "ecc": {"mode": None, "uncorrected_volatile": None, "uncorrected_aggregate": None},
        "persistence_mode": None,
        "compute_mode": None,
        "addressing_mode": None,
        "virtualization_mode": None,
        "driver_model": None,
        "display_active": None,
        "pcie": {"generation_current": None, "generation_max": None, "width_current": None, "width_max": None},
        "numa_node": None,
        "gpu_numa_id": None,
        "cpu_affinity": None,
        "power": {"draw_w": None, "limit_w": None, "default_limit_w": None, "min_limit_w": None, "max_limit_w": None},
        "clocks": {"graphics_mhz": None, "memory_mhz": None, "max_graphics_mhz": None, "max_memory_mhz": None},
        "temperature_c": None,
        "utilization_percent": None,
        "throttle_reasons": [],
        "retired_pages": {"single_bit": None, "double_bit": None, "pending": None},
        "remapped_rows": {"correctable": None, "uncorrectable": None, "pending": None, "failure": None},
        "recovery_action": None,
        "fabric": {"state": None, "status": None, "clique_id": None, "cluster_uuid": None, "health": None},
    }


def new_mig_instance(index: int) -> dict[str, Any]:
    """A MIG device (a compute instance in a GPU instance) of which only the index is known."""
    return {
        "index": index,
        "uuid": None,
        "profile": None,
        "gpu_instance_id": None,
        "compute_instance_id": None,
        "memory_total_mib": None,
        "memory_free_mib": None,
        "memory_used_mib": None,
    }


def new_host(source: str) -> dict[str, Any]:
    """A host without GPUs; source is "nvml" or "nvidia-smi"."""
    return {
        "driver_version": None,
        "cuda_driver_version": None,
        "kernel_module_version": None,
        "library_version": None,
        "source": source,
        "attached_gpus": None,
        "gpus": [],
        "links": [],
        "errors": [],
        "notices": [],
    }


def judge(host: dict[str, Any], problems: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """Fill in what follows from the facts (capability, others' memory, errors, notices) and return the host.

    problems are those that the source of the facts met itself.
    """
    problems = list(problems)
    for gpu in host["gpus"]:
        complete_gpu(gpu)
        problems += gpu_problems(gpu)
    attached = host["attached_gpus"]
    if attached and attached > len(host["gpus"]):
        detail = f"{attached} attached, {len(host['gpus'])} described"
        problems.append(problem("attached_gpus_missing", detail=detail))
    host["errors"], host["notices"] = split(problems)
    return host


def complete_gpu(gpu: dict[str, Any]) -> None:
    """Fill in compute capability, architecture and memory source where the source of the facts left them out."""
    if gpu["compute_capability"] is None:
        gpu["compute_capability"], gpu["compute_capability_source"] = compute_capability.find(
            gpu["name"], gpu["pci_device_id"], gpu["architecture"]
        )
    if gpu["architecture"] is None:
        gpu["architecture"] = compute_capability.architecture_of(gpu["compute_capability"])
    if gpu["memory_source"] is None and gpu["memory_total_mib"] is not None:
        gpu["memory_source"] = "card"
    if gpu["memory_used_by_others_mib"] is None:
        set_used_by_others(gpu, ())


def set_used_by_others(gpu: dict[str, Any], own_containers: Iterable[str]) -> None:
    """Memory that is used by anything but the processes of own_containers (names).

    That is used memory less our own, never the sum of the process list: the list leaves out what other process
    name spaces hold. Where the card tells no used memory (unified memory), the list is all there is.
    """
    own = [process for process in gpu["processes"] if process["container"] in own_containers]
    if gpu["memory_used_mib"] is not None:
        own_mib = sum(process["used_memory_mib"] or 0 for process in own)
        gpu["memory_used_by_others_mib"] = max(0, gpu["memory_used_mib"] - own_mib)
    elif gpu["processes"]:
        others = [process["used_memory_mib"] for process in gpu["processes"] if process not in own]
        known = [used for used in others if used is not None]
        gpu["memory_used_by_others_mib"] = sum(known) if len(known) == len(others) else None


def gpu_problems(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that is wrong with one GPU, as a list of problems."""
    index = gpu["index"]
    found = []
    if gpu["state"] != "ok":
        found.append(problem(gpu["state"], gpu=index, detail=gpu["pci_bus_id"]))
    else:
        found += _memory_problems(gpu)
    return found + _mode_problems(gpu) + _health_problems(gpu) + _fabric_problems(gpu)


def _memory_problems(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    if gpu["memory_source"] == "card":
        return []
    code = "memory_unknown"
    if gpu["mig"]["mode"] == "Enabled":
        code = "mig_memory_not_readable"
    elif gpu["memory_source"] == "host" or is_unified_memory(gpu):
        code = "unified_memory"
    return [problem(code, gpu=gpu["index"], detail=gpu["name"])]


def is_unified_memory(gpu: dict[str, Any]) -> bool:
    """Whether the GPU has no memory of its own: the driver gives no total, and the chip or its addressing mode fits.

    The addressing mode alone does not tell: GB200 has ATS too, and memory of its own.
    """
    if gpu["memory_total_mib"] is not None or gpu["mig"]["mode"] == "Enabled":
        return False
    return gpu["compute_capability"] in SYSTEMS_ON_A_CHIP or gpu["addressing_mode"] == "ATS"


def _mode_problems(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    if gpu["mig"]["mode"] == "Enabled" and not gpu["mig"]["instances"]:
        found.append(problem("mig_without_instances", gpu=gpu["index"]))
    if gpu["compute_mode"] == "Prohibited":
        found.append(problem("compute_prohibited", gpu=gpu["index"]))
    if gpu["virtualization_mode"] == "VGPU":
        found.append(problem("vgpu_guest", gpu=gpu["index"], detail=gpu["name"]))
    return found


def _health_problems(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    index = gpu["index"]
    if gpu["remapped_rows"]["failure"]:
        found.append(problem("remapped_rows_failure", gpu=index))
    if gpu["remapped_rows"]["pending"] or gpu["retired_pages"]["pending"]:
        found.append(problem("reset_pending", gpu=index))
    if gpu["ecc"]["uncorrected_volatile"]:
        found.append(problem("ecc_uncorrectable", gpu=index, detail=str(gpu["ecc"]["uncorrected_volatile"])))
    if gpu["recovery_action"]:
        found.append(problem("recovery_action", gpu=index, detail=gpu["recovery_action"]))
    slowdowns = [reason for reason in gpu["throttle_reasons"] if reason in HARDWARE_SLOWDOWNS]
    if slowdowns:
        found.append(problem("slowed_down", gpu=index, detail=", ".join(slowdowns)))
    return found


def _fabric_problems(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    fabric = gpu["fabric"]
    ready = fabric["state"] in (None, "Completed") and fabric["status"] in (None, "Success")
    if gpu["state"] == "ok" and not ready:
        detail = f"state {fabric['state']}, status {fabric['status']}"
        return [problem("fabric_not_ready", gpu=gpu["index"], detail=detail)]
    if fabric["health"] not in (None, "Healthy"):
        return [problem("fabric_unhealthy", gpu=gpu["index"], detail=fabric["health"])]
    return []


def mib(byte_count: int | None) -> int | None:
    """Bytes as MiB, rounded to the nearest as nvidia-smi prints them; None stays None."""
    return None if byte_count is None else (byte_count + (1 << 19)) >> 20

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the GPUs through NVML, by pynvml or by the binding that stands in for it, in the shape that gpu_info returns.

Private to the collection gpufleet.vllm. The numbers below are the enumerations of nvml.h; the words are those that
nvidia-smi -q -x prints for them, so that both sources give the same.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, Sequence

from ._gpu_compute_capability import ARCHITECTURES
from ._gpu_problems import RETURN_CODES, problem
from ._gpu_shape import mib, new_gpu, new_host, new_mig_instance

ENABLED = {0: "Disabled", 1: "Enabled"}
COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
VIRTUALIZATION_MODES = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
ARCHITECTURE_NAMES = dict(enumerate(ARCHITECTURES, start=2))
FABRIC_STATES = {0: None, 1: "Not Started", 2: "In Progress", 3: "Completed"}
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

#: Bit -> reason, as in <clocks_event_reasons>; bit 0, idle, is no reason to report.
THROTTLE_REASONS = {
    1: "applications_clocks_setting",
    2: "sw_power_cap",
    3: "hw_slowdown",
    4: "sync_boost",
    5: "sw_thermal_slowdown",
    6: "hw_thermal_slowdown",
    7: "hw_power_brake_slowdown",
    8: "display_clocks_setting",
}

#: (shift, value of "bad", name) in the fabric's health mask; two bits each: 1 is true, 2 is false, 0 not supported.
FABRIC_HEALTH = (
    (0, "bandwidth"),
    (2, "route_recovery_in_progress"),
    (4, "route_unhealthy"),
    (6, "access_timeout_recovery"),
)

#: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION and its values, in the words of nvidia-smi.
FIELD_RECOVERY_ACTION = 230
RECOVERY_ACTIONS = {
    1: "Reset",
    2: "Reboot",
    3: "Drain P2P",
    4: "Drain and Reset",
    5: "Recover IMEX Domain",
    6: "Bus Reset",
    7: "System Reboot",
}

MEMORY_V2 = 0x02000028
#: Words of 64 bits: room for 4096 CPUs and 1024 NUMA nodes, the kernel's own limits.
CPU_WORDS, NUMA_WORDS, SCOPE_NODE = 64, 16, 0
CLOCK_GRAPHICS, CLOCK_MEMORY = 0, 2
ECC_UNCORRECTED, ECC_VOLATILE, ECC_AGGREGATE = 1, 0, 1
RETIRED_SINGLE_BIT, RETIRED_DOUBLE_BIT = 0, 1
NVLINK_REMOTE_SWITCH = 2
NVLINK_MAX_LINKS = 36
VALUE_NOT_AVAILABLE = (1 << 64) - 1
GPU_STATES = {15: "gpu_lost", 16: "gpu_requires_reset"}
GPU_INSTANCE_NOT_AVAILABLE = 0xFFFFFFFF


def collect(nvml: Any, topology: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(host, problems met in reading it) by NVML, not yet judged. nvml is pynvml, or an object with its functions.

    Never raises an NVML error: a driver that does not answer is a problem, a value that the driver does not have is
    None, a GPU that is lost is in the list with its state.
    """
    host = new_host("nvml")
    reader = _Reader(nvml)
    failure = reader.attempt("nvmlInit")[1]
    if failure is not None:
        return host, [nvml_problem(failure)]
    try:
        _read_host(host, reader, topology)
    finally:
        reader.attempt("nvmlShutdown")
    return host, [] if host["gpus"] else [problem("no_gpu")]


def nvml_problem(code: int) -> dict[str, Any]:
    """The problem that an NVML return code (nvmlReturn_t) tells of."""
    return problem(RETURN_CODES.get(code, "nvml_failed"), detail=f"NVML return code {code}")


class _Reader:
    """Calls NVML by name; what a driver or a pynvml does not have reads as None."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.state = "ok"

    def attempt(self, name: str, *arguments: Any) -> tuple[Any, int | None]:
        """(result, None) or (None, NVML return code)."""
        function = getattr(self._nvml, name, None)
        if function is None:
            return None, 13
        try:
            return function(*arguments), None
        except self._nvml.NVMLError as error:
            self.state = GPU_STATES.get(error.value, self.state)
            return None, error.value

    def read(self, name: str, *arguments: Any) -> Any:
        """The result, None for whatever cannot be had; text always as str (pynvml before 11.5 gives bytes)."""
        result = self.attempt(name, *arguments)[0]
        return result.decode("utf-8", "replace") if isinstance(result, bytes) else result

    def structure(self, name: str) -> Any:
        """An empty structure of pynvml, None where this pynvml does not have it."""
        kind = getattr(self._nvml, name, None)
        return kind() if kind else None


def _read_host(host: dict[str, Any], reader: _Reader, topology: bool) -> None:
    host["driver_version"] = reader.read("nvmlSystemGetDriverVersion")
    version = reader.read("nvmlSystemGetCudaDriverVersion")
    host["cuda_driver_version"] = f"{version // 1000}.{version % 1000 // 10}" if version else None
    # NVML puts the CUDA major version in front of the driver's: 13.580.95.05.
    host["library_version"] = (reader.read("nvmlSystemGetNVMLVersion") or "").partition(".")[2] or None
    count = reader.read("nvmlDeviceGetCount")
    host["attached_gpus"] = count
    handles = []
    for index in range(count or 0):
        gpu, handle = _read_gpu(reader, index)
        host["gpus"].append(gpu)
        handles.append(handle)
    if topology:
        host["links"] = _read_links(reader, handles, host["gpus"])


def _read_gpu(reader: _Reader, index: int) -> tuple[dict[str, Any], Any]:
    gpu = new_gpu(index)
    reader.state = "ok"
    handle, failure = reader.attempt("nvmlDeviceGetHandleByIndex", index)
    if failure is None:
        _set_identity(gpu, reader, handle)
        gpu.update(_memory(reader, handle))
        _set_modes(gpu, reader, handle)
        _set_pcie(gpu, reader, handle)
        _set_power_and_clocks(gpu, reader, handle)
        _set_health(gpu, reader, handle)
        _set_fabric(gpu, reader, handle)
        gpu["mig"]["instances"] = _mig_instances(gpu, reader, handle)
        gpu["processes"] = _processes(reader, handle)
    gpu["state"] = reader.state if failure is None else GPU_STATES.get(failure, "device_error")
    return gpu, handle


def _set_identity(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    gpu["uuid"] = reader.read("nvmlDeviceGetUUID", handle)
    gpu["name"] = reader.read("nvmlDeviceGetName", handle)
    pci = reader.read("nvmlDeviceGetPciInfo", handle)
    if pci is not None:
        gpu["pci_bus_id"] = _text(pci.busId) or None
        gpu["pci_device_id"] = f"{pci.pciDeviceId:08X}"
    gpu["minor_number"] = reader.read("nvmlDeviceGetMinorNumber", handle)
    capability = reader.read("nvmlDeviceGetCudaComputeCapability", handle)
    if capability is not None:
        gpu["compute_capability"] = ".".join(str(part) for part in capability)
        gpu["compute_capability_source"] = "driver"
    gpu["architecture"] = ARCHITECTURE_NAMES.get(reader.read("nvmlDeviceGetArchitecture", handle))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _memory(reader: _Reader, handle: Any) -> dict[str, int | None]:
    """Memory by the second version of the call where the driver has it (510): the first counts reserved as used."""
    keys: tuple[str, ...] = ("total", "free", "used", "reserved")
    memory = reader.read("nvmlDeviceGetMemoryInfo", handle, MEMORY_V2)
    if memory is None:
        keys = keys[:3]
        memory = reader.read("nvmlDeviceGetMemoryInfo", handle)
    if memory is None or not memory.total:
        return {}
    return {f"memory_{key}_mib": mib(getattr(memory, key)) for key in keys}


def _set_modes(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    mig = reader.read("nvmlDeviceGetMigMode", handle)
    if mig is not None:
        gpu["mig"]["mode"], gpu["mig"]["pending_mode"] = ENABLED.get(mig[0]), ENABLED.get(mig[1])
    ecc = reader.read("nvmlDeviceGetEccMode", handle)
    gpu["ecc"]["mode"] = ENABLED.get(ecc[0]) if ecc is not None else None
    for key, function, words in (
        ("persistence_mode", "nvmlDeviceGetPersistenceMode", ENABLED),
        ("display_active", "nvmlDeviceGetDisplayActive", ENABLED),
        ("compute_mode", "nvmlDeviceGetComputeMode", COMPUTE_MODES),
        ("virtualization_mode", "nvmlDeviceGetVirtualizationMode", VIRTUALIZATION_MODES),
        ("addressing_mode", "nvmlDeviceGetAddressingMode", ADDRESSING_MODES),
    ):
        gpu[key] = words.get(reader.read(function, handle))
    gpu["gpu_numa_id"] = reader.read("nvmlDeviceGetNumaNodeId", handle)
    gpu["cpu_affinity"] = range_list(reader.read("nvmlDeviceGetCpuAffinity", handle, CPU_WORDS))
    nodes = set_bits(reader.read("nvmlDeviceGetMemoryAffinity", handle, NUMA_WORDS, SCOPE_NODE))
    gpu["numa_node"] = nodes[0] if nodes else None


def _set_pcie(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    gpu["pcie"] = {
        "generation_current": reader.read("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "generation_max": reader.read("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "width_current": reader.read("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "width_max": reader.read("nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _set_power_and_clocks(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    minimum, maximum = reader.read("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
    gpu["power"] = {
        "draw_w": _watts(reader.read("nvmlDeviceGetPowerUsage", handle)),
        "limit_w": _watts(reader.read("nvmlDeviceGetEnforcedPowerLimit", handle)),
        "default_limit_w": _watts(reader.read("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        "min_limit_w": _watts(minimum),
        "max_limit_w": _watts(maximum),
    }
    gpu["clocks"] = {
        "graphics_mhz": reader.read("nvmlDeviceGetClockInfo", handle, CLOCK_GRAPHICS),
        "memory_mhz": reader.read("nvmlDeviceGetClockInfo", handle, CLOCK_MEMORY),
        "max_graphics_mhz": reader.read("nvmlDeviceGetMaxClockInfo", handle, CLOCK_GRAPHICS),
        "max_memory_mhz": reader.read("nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEMORY),
    }
    gpu["temperature_c"] = reader.read("nvmlDeviceGetTemperature", handle, 0)
    utilization = reader.read("nvmlDeviceGetUtilizationRates", handle)
    gpu["utilization_percent"] = utilization.gpu if utilization is not None else None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else round(milliwatts / 1000.0, 2)


def _set_health(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    reasons = reader.read("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    gpu["throttle_reasons"] = [name for bit, name in THROTTLE_REASONS.items() if reasons >> bit & 1]
    for key, counter in (("uncorrected_volatile", ECC_VOLATILE), ("uncorrected_aggregate", ECC_AGGREGATE)):
        gpu["ecc"][key] = reader.read("nvmlDeviceGetTotalEccErrors", handle, ECC_UNCORRECTED, counter)
    pending = reader.read("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    gpu["retired_pages"] = {
        "single_bit": _length(reader.read("nvmlDeviceGetRetiredPages", handle, RETIRED_SINGLE_BIT)),
        "double_bit": _length(reader.read("nvmlDeviceGetRetiredPages", handle, RETIRED_DOUBLE_BIT)),
        "pending": None if pending is None else bool(pending),
    }
    gpu["recovery_action"] = _recovery_action(reader, handle)
    rows = reader.read("nvmlDeviceGetRemappedRows", handle)
    if rows is not None:
        correctable, uncorrectable, pending, failure = rows
        gpu["remapped_rows"] = {
            "correctable": correctable,
            "uncorrectable": uncorrectable,
            "pending": bool(pending),
            "failure": bool(failure),
        }


def _recovery_action(reader: _Reader, handle: Any) -> str | None:
    fields = reader.read("nvmlDeviceGetFieldValues", handle, [FIELD_RECOVERY_ACTION])
    if fields is None or fields[0].nvmlReturn != 0:
        return None
    return RECOVERY_ACTIONS.get(fields[0].value.uiVal)


def _length(pages: list[Any] | None) -> int | None:
    return None if pages is None else len(pages)


def _set_fabric(gpu: dict[str, Any], reader: _Reader, handle: Any) -> None:
    info = reader.structure("c_nvmlGpuFabricInfo_v2_t")
    if info is None or reader.attempt("nvmlDeviceGetGpuFabricInfoV", handle, byref(info))[1] is not None:
        return
    state = FABRIC_STATES.get(info.state)
    if state is None:
        return
    gpu["fabric"] = {"state": state, "status": None, "clique_id": None, "cluster_uuid": None, "health": None}
    if state == "Completed":
        digits = "".join(f"{byte:02x}" for byte in info.clusterUuid)
        gpu["fabric"].update(
            status="Success" if info.status == 0 else f"NVML return code {info.status}",
            clique_id=str(info.cliqueId),
            cluster_uuid="-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
            health=_fabric_health(info.healthMask),
        )


def _fabric_health(mask: int) -> str | None:
    bad = [name for shift, name in FABRIC_HEALTH if mask >> shift & 3 == 1]
    if mask >> 8 & 15 > 1:
        bad.append("incorrect_configuration")
    if bad:
        return f"Unhealthy ({', '.join(bad)})"
    return "Healthy" if mask else None


def _mig_instances(gpu: dict[str, Any], reader: _Reader, handle: Any) -> list[dict[str, Any]]:
    if gpu["mig"]["mode"] != "Enabled":
        return []
    instances = []
    for index in range(reader.read("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device, failure = reader.attempt("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if failure is None and device is not None:
            instances.append(_mig_instance(reader, device, index))
    return instances


def _mig_instance(reader: _Reader, device: Any, index: int) -> dict[str, Any]:
    instance = new_mig_instance(index)
    instance["uuid"] = reader.read("nvmlDeviceGetUUID", device)
    name = reader.read("nvmlDeviceGetName", device) or ""
    instance["profile"] = name.rpartition(" MIG ")[2] if " MIG " in name else None
    instance["gpu_instance_id"] = reader.read("nvmlDeviceGetGpuInstanceId", device)
    instance["compute_instance_id"] = reader.read("nvmlDeviceGetComputeInstanceId", device)
    memory = _memory(reader, device)
    instance.update((key, memory[key]) for key in instance if key in memory)
    return instance


def _processes(reader: _Reader, handle: Any) -> list[dict[str, Any]]:
    found: dict[tuple[int, int | None], dict[str, Any]] = {}
    for kind, function in (
        ("C", "nvmlDeviceGetComputeRunningProcesses"),
        ("G", "nvmlDeviceGetGraphicsRunningProcesses"),
    ):
        for entry in reader.read(function, handle) or ():
            key = (entry.pid, _gpu_instance(entry))
            if key in found:
                found[key]["type"] = "C+G"
            else:
                found[key] = _process(reader, entry, kind)
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def _process(reader: _Reader, entry: Any, kind: str) -> dict[str, Any]:
    used = entry.usedGpuMemory
    return {
        "pid": entry.pid,
        "name": reader.read("nvmlSystemGetProcessName", entry.pid),
        "type": kind,
        "used_memory_mib": None if used in (None, VALUE_NOT_AVAILABLE) else mib(used),
        "container": None,
        "gpu_instance_id": _gpu_instance(entry),
    }


def _gpu_instance(entry: Any) -> int | None:
    instance = getattr(entry, "gpuInstanceId", None)
    return None if instance == GPU_INSTANCE_NOT_AVAILABLE else instance


def set_bits(words: Sequence[int] | None) -> list[int]:
    """Numbers of the bits that are set in a list of 64-bit words."""
    return [at * 64 + bit for at, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]


def range_list(words: Sequence[int] | None) -> str | None:
    """The set bits as the kernel writes CPU lists: "0-31,64-95"; None for none."""
    ranges: list[list[int]] = []
    for number in set_bits(words):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges) or None


# --- topology -----------------------------------------------------------------------------------------------------


def _read_links(reader: _Reader, handles: list[Any], gpus: list[dict[str, Any]]) -> list[list[str | None]]:
    """Matrix of the best connection of each pair, as "nvidia-smi topo -m" shows it."""
    nvlinks = [_read_nvlinks(reader, handle) if len(handles) > 1 else {} for handle in handles]
    links: list[list[str | None]] = [
        ["X" if row == column else None for column in range(len(handles))] for row in range(len(handles))
    ]
    for row, handle in enumerate(handles):
        for column in range(row + 1, len(handles)):
            links[row][column] = links[column][row] = _link(
                reader, (handle, handles[column]), (nvlinks[row], nvlinks[column]), gpus[column]["pci_bus_id"]
            )
    return links


def _read_nvlinks(reader: _Reader, handle: Any) -> dict[str | None, int]:
    """{remote: number of active NVLinks}; remote is a PCI bus id, or "switch" for all that lead to NVSwitches."""
    counts: dict[str | None, int] = {}
    for link in range(NVLINK_MAX_LINKS if handle is not None else 0):
        active, failure = reader.attempt("nvmlDeviceGetNvLinkState", handle, link)
        if failure is not None:
            break
        if not active:
            continue
        remote: str | None = "switch"
        if reader.read("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) != NVLINK_REMOTE_SWITCH:
            pci = reader.read("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            remote = _text(pci.busId).upper() if pci is not None else None
        counts[remote] = counts.get(remote, 0) + 1
    return counts


def _link(
    reader: _Reader, handles: tuple[Any, Any], nvlinks: tuple[dict[str | None, int], ...], remote_bus_id: str | None
) -> str | None:
    direct = nvlinks[0].get((remote_bus_id or "").upper(), 0)
    count = direct or min(nvlinks[0].get("switch", 0), nvlinks[1].get("switch", 0))
    if count:
        return f"NV{count}"
    if None in handles:
        return None
    return ANCESTORS.get(reader.read("nvmlDeviceGetTopologyCommonAncestor", *handles))

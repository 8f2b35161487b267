# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi says of one GPU, as texts without units, by the names that its layouts use."""

from __future__ import annotations

from typing import Any

from .profile import NOT_AVAILABLE, Device, Problem, problem

EVENT_REASONS = (
    ("gpu_idle", 0x1),
    ("applications_clocks_setting", 0x2),
    ("sw_power_cap", 0x4),
    ("hw_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("sw_thermal_slowdown", 0x20),
    ("hw_thermal_slowdown", 0x40),
    ("hw_power_brake_slowdown", 0x80),
    ("display_clocks_setting", 0x100),
)

CONSTANTS = {"nothing": "", "zero": 0, "no": "No", "deprecated": problem("deprecated"), "not_available": NOT_AVAILABLE}

# Fact -> path in the profile. What the driver knows of a GPU that does not answer:
IDENTITY = {
    "name": "name",
    "brand": "brand",
    "architecture": "architecture",
    "serial": "serial",
    "uuid": "uuid",
    "vbios_version": "vbios_version",
    "board_part_number": "board_part_number",
    "gpu_part_number": "gpu_part_number",
    "module_id": "module_id",
    "inforom.image": "inforom.image",
    "inforom.oem": "inforom.oem",
    "inforom.ecc": "inforom.ecc",
    "inforom.power": "inforom.power",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "compute_capability": "compute_capability",
    "addressing_mode": "addressing_mode",
    "virtualization_mode": "virtualization_mode",
    "platform.peer_type": "platform.peer_type",
    "mig.current": "mig.mode",
    "pci.device_id": "pci.device_id",
    "pci.subsystem_id": "pci.subsystem_id",
    "ecc.mode": "ecc.mode",
}

# And what the GPU has to answer for:
MEASURED = {
    "pci.generation.max": "pci.generation.max",
    "pci.generation.current": "pci.generation.current",
    "pci.generation.device_max": "pci.generation.device_max",
    "pci.generation.host_max": "pci.generation.host_max",
    "pci.width.max": "pci.width.max",
    "pci.width.current": "pci.width.current",
    "fan_speed": "fan_speed_percent",
    "performance_state": "performance_state",
    "event_reasons": "event_reasons",
    "retired_pages.single_bit": "retired_pages.single_bit",
    "retired_pages.double_bit": "retired_pages.double_bit",
    "retired_pages.pending": "retired_pages.pending",
    "remapped_rows": "remapped_rows",
    "remapped_rows.correctable": "remapped_rows.correctable",
    "remapped_rows.uncorrectable": "remapped_rows.uncorrectable",
    "remapped_rows.pending": "remapped_rows.pending",
    "remapped_rows.failure": "remapped_rows.failure",
    "temperature.gpu": "temperature.gpu_c",
    "temperature.memory": "temperature.memory_c",
    "temperature.shutdown": "temperature.shutdown_c",
    "temperature.slowdown": "temperature.slowdown_c",
    "temperature.gpu_max": "temperature.gpu_max_c",
    "temperature.memory_max": "temperature.memory_max_c",
    "clocks.graphics": "clocks.graphics_mhz",
    "clocks.sm": "clocks.sm_mhz",
    "clocks.memory": "clocks.memory_mhz",
    "clocks.video": "clocks.video_mhz",
    "max_clocks.graphics": "max_clocks.graphics_mhz",
    "max_clocks.sm": "max_clocks.sm_mhz",
    "max_clocks.memory": "max_clocks.memory_mhz",
    "max_clocks.video": "max_clocks.video_mhz",
    "fabric.state": "fabric.state",
}

POWER = ("draw", "limit", "default_limit", "min_limit", "max_limit")
UTILIZATION = ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")
HISTOGRAM = ("max", "high", "partial", "low", "none")
FABRIC = ("status", "clique_id", "cluster_uuid", "health", "bandwidth", "route_recovery", "route_unhealthy")
ECC_COUNTERS = ("sram_correctable", "sram_uncorrectable", "dram_correctable", "dram_uncorrectable")


def facts(gpu: Device) -> dict[str, str]:
    """All facts of the GPU. A Problem (a str) stands where there is no value."""
    result: dict[str, Any] = dict(CONSTANTS)
    result.update({name: gpu.identity(path) for name, path in IDENTITY.items()})
    result.update({name: gpu.get(path) for name, path in MEASURED.items()})
    for part in (_modes, _pci, _memory, _event_reasons, _utilization, _errors, _temperature, _power, _clocks, _fabric):
        result.update(part(gpu))
    return {name: _text(value) for name, value in result.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return str(value)


def _modes(gpu: Device) -> dict[str, Any]:
    pending = gpu.identity("mig.pending")
    minor = gpu.raw("minor_number")
    return {
        "mig.pending": gpu.identity("mig.mode") if pending is NOT_AVAILABLE else pending,
        "minor_number": gpu.profile_index if minor is None else minor,
        "index": gpu.index,
        "display_mode": "Disabled",
        "display_attached": "Yes",
        "accounting_mode": "Disabled",
        "accounting_buffer_size": 4000,
        "gsp_firmware_version": gpu.profile.version,
        "recovery_action": "Reset" if gpu.fault("query") == "reset_required" else "None",
        "egm": "disabled",
        "protected_memory": 0,
        "power.management": "Supported",
        "count": len(gpu.profile.gpus),
        "driver_version": gpu.profile.version,
    }


def _pci(gpu: Device) -> dict[str, Any]:
    domain, bus, device = gpu.bus_id
    return {
        "pci.bus_id": f"{domain:08X}:{bus:02X}:{device:02X}.0",
        "pci.domain": f"{domain:04X}",
        "pci.bus": f"{bus:02X}",
        "pci.device": f"{device:02X}",
        "pci.base_class": 3,
        "pci.sub_class": 2,
        "pci.domain_hex": f"0x{domain:04X}",
        "pci.bus_hex": f"0x{bus:02X}",
        "pci.device_hex": f"0x{device:02X}",
        "pci.base_class_hex": "0x3",
        "pci.sub_class_hex": "0x2",
        "pci.device_id_hex": _hexadecimal(gpu.identity("pci.device_id")),
        "pci.subsystem_id_hex": _hexadecimal(gpu.identity("pci.subsystem_id")),
        "board_id": f"0x{bus << 8 | device << 3:x}",
    }


def _hexadecimal(digits: Any) -> Any:
    return digits if isinstance(digits, Problem) else f"0x{digits}"


def _memory(gpu: Device) -> dict[str, Any]:
    memory = gpu.memory()
    bar1 = gpu.get("bar1_total_mib")
    return {
        **{f"memory.{key}": value for key, value in memory.items()},
        "memory.used_and_reserved": _combine(lambda total, free: total - free, memory["total"], memory["free"]),
        "bar1.total": bar1,
        "bar1.used": _combine(lambda total: min(total, 1), bar1),
        "bar1.free": _combine(lambda total: max(total - 1, 0), bar1),
    }


def _combine(function: Any, *values: Any) -> Any:
    """The function of the values, or the first Problem among them."""
    for value in values:
        if isinstance(value, Problem):
            return value
    return function(*values)


def _event_reasons(gpu: Device) -> dict[str, Any]:
    active = gpu.get("event_reasons")
    if isinstance(active, Problem):
        names = [name for name, _bit in EVENT_REASONS] + ["mask", "supported"]
        return {f"reason.{name}": active for name in names}
    mask = sum(bit for name, bit in EVENT_REASONS if name in active)
    states = {f"reason.{name}": "Active" if name in active else "Not Active" for name, _bit in EVENT_REASONS}
    return {**states, "reason.mask": f"0x{mask:016X}", "reason.supported": f"0x{0x1FF:016X}"}


def _utilization(gpu: Device) -> dict[str, Any]:
    if gpu.mig_enabled:
        return {f"utilization.{name}": NOT_AVAILABLE for name in UTILIZATION}
    return {f"utilization.{name}": gpu.get("utilization." + name) for name in UTILIZATION}


def _errors(gpu: Device) -> dict[str, Any]:
    enabled = gpu.raw("ecc.mode") == "Enabled"
    result: dict[str, Any] = {"ecc.threshold_exceeded": "No" if enabled else NOT_AVAILABLE}
    for period in ("volatile", "aggregate"):
        for counter in ECC_COUNTERS:
            path = f"ecc.{period}.{counter}"
            result[path] = gpu.get(path) if enabled else NOT_AVAILABLE
    for bucket in HISTOGRAM:
        result[f"remapped_rows.histogram.{bucket}"] = gpu.get(f"remapped_rows.histogram.{bucket}")
    return result


def _temperature(gpu: Device) -> dict[str, Any]:
    now, limit = gpu.get("temperature.gpu_c"), gpu.get("temperature.gpu_max_c")
    relative = gpu.raw("architecture") in RELATIVE_TEMPERATURE_LIMITS
    margins = {
        f"temperature.{name}_margin": _combine(lambda value, top: top - value, gpu.get(f"temperature.{name}_c"), limit)
        for name in ("shutdown", "slowdown")
    }
    margin = _combine(lambda value, top: top - value, now, limit) if relative else NOT_AVAILABLE
    return {"temperature.tlimit": margin, **margins}


# From Ada and Hopper on, limits are told as a distance to the maximum (gpu_temp_tlimit).
RELATIVE_TEMPERATURE_LIMITS = ("Ada Lovelace", "Hopper", "Blackwell")


def _power(gpu: Device) -> dict[str, Any]:
    return {f"power.{name}": _combine(lambda watts: f"{watts:.2f}", gpu.get(f"power.{name}_w")) for name in POWER}


def _clocks(gpu: Device) -> dict[str, Any]:
    """Application clocks left the interface with driver 590."""
    names = ("graphics", "memory")
    if gpu.profile.version_tuple >= (590,):
        return {f"application_clocks.{name}": problem("deprecated") for name in names}
    return {f"application_clocks.{name}": gpu.get(f"application_clocks.{name}_mhz") for name in names}


def _fabric(gpu: Device) -> dict[str, Any]:
    state = gpu.get("fabric.state")
    if isinstance(state, Problem):
        return {f"fabric.{name}": state for name in (*FABRIC, "incorrect_configuration")}
    healthy = (gpu.raw("fabric.health") or "Healthy") == "Healthy"
    done = state == "Completed"
    return {
        "fabric.status": gpu.raw("fabric.status") or ("Success" if done else "N/A"),
        "fabric.clique_id": gpu.raw("fabric.clique_id") or 0 if done else "N/A",
        "fabric.cluster_uuid": gpu.raw("fabric.cluster_uuid") or "00000000-0000-0000-0000-000000000000",
        "fabric.health": ("Healthy" if healthy else "Unhealthy") if done else "N/A",
        "fabric.bandwidth": "Full" if done else "N/A",
        "fabric.route_recovery": "False" if done else "N/A",
        "fabric.route_unhealthy": str(not healthy) if done else "N/A",
        "fabric.incorrect_configuration": "None" if done else "N/A",
    }

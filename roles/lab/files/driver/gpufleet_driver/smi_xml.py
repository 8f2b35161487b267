# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi -q -x. Which tags a driver has is data: nvsmi_device.layout."""

from __future__ import annotations

from typing import Any, Iterator, Sequence
from xml.sax.saxutils import escape

from .facts import RELATIVE_TEMPERATURE_LIMITS, facts
from .layout import Entry, keep, read
from .profile import NOT_AVAILABLE, Device, Problem, Profile

# First driver of each generation of the schema
SCHEMAS = (((580,), 13), ((525,), 12), ((460,), 11), ((410,), 10))
# Architectures whose ECC errors are counted by single and double bit
CLASSIC_ECC = ("Kepler", "Maxwell", "Pascal", "Volta")


def document(profile: Profile, gpus: Sequence[Device], timestamp: str) -> str:
    """The whole XML for these GPUs."""
    schema = next((number for since, number in SCHEMAS if profile.version_tuple >= since), 9)
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{schema}.dtd">',
        "<nvidia_smi_log>",
        _leaf(1, "timestamp", timestamp),
        _leaf(1, "driver_version", profile.version),
        _leaf(1, "cuda_version", str(profile.driver("cuda_version", "Not Found"))),
        _leaf(1, "attached_gpus", str(len(profile.gpus))),
    ]
    layout = read("nvsmi_device.layout", profile.version_tuple)
    for gpu in gpus:
        lines += _gpu(gpu, layout) + [""]
    return "\n".join(lines + ["</nvidia_smi_log>"]) + "\n"


def _gpu(gpu: Device, layout: list[Entry]) -> list[str]:
    values = facts(gpu)
    tags = keep(layout, lambda tag: _applies(tag, gpu))
    lines = [f'\t<gpu id="{values["pci.bus_id"]}">']
    lines += _elements(gpu, values, tags, 0)
    return lines + ["\t</gpu>"]


def _applies(tag: Entry, gpu: Device) -> bool:
    architecture = str(gpu.raw("architecture"))
    relative = architecture in RELATIVE_TEMPERATURE_LIMITS and gpu.profile.version_tuple >= (535,)
    classic = architecture in CLASSIC_ECC
    conditions = {
        None: True,
        "relative_limits": relative,
        "absolute_limits": not relative,
        "classic_ecc": classic,
        "sram_ecc": not classic,
        "turing_ecc": architecture == "Turing",
        "detailed_ecc": not classic and architecture != "Turing",
    }
    return conditions[tag.condition]


def _elements(gpu: Device, values: dict[str, str], tags: list[Entry], depth: int) -> list[str]:
    lines: list[str] = []
    for tag, children in _siblings(tags, depth):
        value: Any = values.get(tag.fact, NOT_AVAILABLE) if tag.fact else NOT_AVAILABLE
        if tag.name.startswith("%"):
            lines += LISTS[tag.name](gpu)
        elif children and not (tag.fact and isinstance(value, Problem)):
            body = _elements(gpu, values, children, depth + 1)
            lines += _container(depth + 2, tag.name, body)
        else:
            text = value if isinstance(value, Problem) else (tag.form or "{}").format(value)
            lines += _container(depth + 2, tag.name, []) if text == "" else [_leaf(depth + 2, tag.name, text)]
    return lines


def _siblings(tags: list[Entry], depth: int) -> Iterator[tuple[Entry, list[Entry]]]:
    """The tags of this depth, each with those nested in it."""
    start = 0
    while start < len(tags):
        end = start + 1
        while end < len(tags) and tags[end].depth > depth:
            end += 1
        yield tags[start], tags[start + 1 : end]
        start = end


def _leaf(depth: int, tag: str, text: str) -> str:
    return "\t" * depth + f"<{tag}>{escape(text)}</{tag}>"


def _container(depth: int, tag: str, body: list[str]) -> list[str]:
    indent = "\t" * depth
    return [f"{indent}<{tag}>", *body, f"{indent}</{tag}>"]


# ---- lists ----


def _processes(gpu: Device) -> list[str]:
    """In a container, processes of other PID namespaces are not seen."""
    lines: list[str] = []
    for process in [] if gpu.profile.in_container else gpu.processes:
        used = process.get("used_memory_mib")
        leaves = [
            ("gpu_instance_id", process.get("gpu_instance_id", "N/A")),
            ("compute_instance_id", process.get("compute_instance_id", "N/A")),
            ("pid", process["pid"]),
            ("type", process.get("type", "C")),
            ("process_name", process.get("name", "")),
            ("used_memory", "N/A" if used is None else f"{used} MiB"),
        ]
        lines += _container(3, "process_info", [_leaf(4, tag, str(value)) for tag, value in leaves])
    return _container(2, "processes", lines)


def _mig_devices(gpu: Device) -> list[str]:
    if not gpu.mig_enabled or not gpu.mig_devices:
        return _container(2, "mig_devices", ["\t\t\tNone"])
    lines: list[str] = []
    for index, mig in enumerate(gpu.mig_devices):
        lines += _container(3, "mig_device", _mig_device(gpu, index, mig))
    return _container(2, "mig_devices", lines)


def _mig_device(gpu: Device, index: int, mig: dict[str, Any]) -> list[str]:
    memory = gpu.memory(mig)
    keys = ("total", "reserved", "used", "free") if gpu.profile.version_tuple >= (510,) else ("total", "used", "free")
    shared = (
        ("multiprocessor_count", mig.get("multiprocessors", 0)),
        ("copy_engine_count", 1),
        ("encoder_count", 0),
        ("decoder_count", 0),
        ("ofa_count", 0),
        ("jpg_count", 0),
    )
    return [
        _leaf(4, "index", str(index)),
        _leaf(4, "gpu_instance_id", str(mig["gpu_instance_id"])),
        _leaf(4, "compute_instance_id", str(mig["compute_instance_id"])),
        *_container(
            4, "device_attributes", _container(5, "shared", [_leaf(6, tag, str(value)) for tag, value in shared])
        ),
        *_container(
            4,
            "ecc_error_count",
            _container(5, "volatile_count", [_leaf(6, "sram_uncorrectable", "0")]),
        ),
        *_container(4, "fb_memory_usage", [_leaf(5, key, _mib(memory[key])) for key in keys]),
        *_container(4, "bar1_memory_usage", [_leaf(5, key, "0 MiB") for key in ("total", "used", "free")]),
    ]


def _mib(value: Any) -> str:
    return value if isinstance(value, Problem) else f"{value} MiB"


def _supported_clocks(gpu: Device) -> list[str]:
    memory, graphics = gpu.get("max_clocks.memory_mhz"), gpu.get("max_clocks.graphics_mhz")
    missing = [value for value in (memory, graphics) if isinstance(value, Problem)]
    if missing:
        return [_leaf(2, "supported_clocks", missing[0])]
    steps = range(graphics, 209, -15)
    clocks = [_leaf(4, "value", f"{memory} MHz")]
    clocks += [_leaf(4, "supported_graphics_clock", f"{step} MHz") for step in steps]
    return _container(2, "supported_clocks", _container(3, "supported_mem_clock", clocks))


LISTS = {"%processes": _processes, "%mig_devices": _mig_devices, "%supported_clocks": _supported_clocks}

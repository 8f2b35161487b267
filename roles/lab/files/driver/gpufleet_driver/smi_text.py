# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi without options, -L, --version, topo -m, nvlink --status."""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Sequence

from .facts import facts
from .profile import NOT_AVAILABLE, Device, Problem, Profile

# ---- the table ----


class Widths(NamedTuple):
    """Inner widths of the table's columns: name and power, bus and memory, load."""

    first: int
    second: int
    third: int

    @property
    def whole(self) -> int:
        return self.first + self.second + self.third + 2


WIDE = Widths(41, 24, 22)  # from driver 545 on
NARROW = Widths(41, 22, 22)


def table(profile: Profile, gpus: Sequence[Device]) -> str:
    widths = WIDE if profile.version_tuple >= (545,) else NARROW
    start = "+" if profile.version_tuple >= (570,) else "|"
    lines = [time.strftime("%a %b %e %H:%M:%S %Y") + "       "]
    lines += ["+" + "-" * widths.whole + "+", f"|{_banner(profile, widths)}|"]
    lines += [start + _rule(widths, "-") + "+", *_headings(widths), f"|{_rule(widths, '=')}|"]
    for gpu in gpus:
        lines += [*_gpu_rows(gpu, widths), f"+{_rule(widths, '-')}+"]
    for gpu in gpus:
        if gpu.mig_enabled and gpu.mig_devices:
            lines += _mig_rows(gpu, widths)
    return "\n".join(lines + _process_table(profile, gpus, widths)) + "\n"


def _banner(profile: Profile, widths: Widths) -> str:
    version, cuda = profile.version, str(profile.driver("cuda_version", "N/A"))
    text = f" NVIDIA-SMI {version:<23}Driver Version: {version:<{13 if widths is NARROW else 15}}CUDA Version: {cuda}"
    return text.ljust(widths.whole)


def _rule(widths: Widths, line: str) -> str:
    return "+".join(line * width for width in widths)


def _headings(widths: Widths) -> list[str]:
    second = ("Bus-Id          Disp.A", "Memory-Usage", "")
    if widths is NARROW:
        second = ("Bus-Id        Disp.A", "Memory-Usage", "")
    first = (" GPU  Name                 Persistence-M ", " Fan  Temp   Perf          Pwr:Usage/Cap ", "")
    third = ("Volatile Uncorr. ECC", "GPU-Util  Compute M.", "MIG M.")
    return [
        f"|{a:<{widths.first}}|{b:>{widths.second - 1}} |{c:>{widths.third - 1}} |"
        for a, b, c in zip(first, second, third)
    ]


def _unit(value: str, unit: str) -> str:
    if isinstance(value, Problem):
        return "N/A" if value == NOT_AVAILABLE else "ERR!"
    return value + unit


def _watts(value: str) -> str:
    return "N/A " if isinstance(value, Problem) else f"{float(value):.0f}W"


def _gpu_rows(gpu: Device, widths: Widths) -> list[str]:
    value = facts(gpu)
    on = {"Enabled": "On", "Disabled": "Off"}.get(value["persistence_mode"], "N/A")
    usage = f"{_watts(value['power.draw']):>14} / {_watts(value['power.limit']):>5} "
    first = [
        f"{gpu.index:>4}  {value['name']:<27.27} {on:>5}  ",
        f"{_unit(value['fan_speed'], '%'):>4}{_unit(value['temperature.gpu'], 'C'):>6}    "
        f"{_unit(value['performance_state'], ''):<4}{usage}",
        "",
    ]
    second = [f"{value['pci.bus_id']} Off ", _memory_usage(value, widths), ""]
    third = [
        f"{_unit(value['ecc.volatile.dram_uncorrectable'], '')} ",
        f"{_unit(value['utilization.gpu'], '%'):>8}{value['compute_mode']:>13} ",
        f"{value['mig.current']} ",
    ]
    return [f"|{a:<{widths.first}}|{b:>{widths.second}}|{c:>{widths.third}}|" for a, b, c in zip(first, second, third)]


def _memory_usage(value: dict[str, str], widths: Widths) -> str:
    used, total = value["memory.used"], value["memory.total"]
    if isinstance(total, Problem):
        return (" Not Supported" if total == NOT_AVAILABLE else " ERR!").ljust(widths.second)
    return f"{used}MiB / {total:>{6 if widths is WIDE else 5}}MiB "


def _mig_rows(gpu: Device, widths: Widths) -> list[str]:
    lines = ["", "+" + "-" * widths.whole + "+", "|" + " MIG devices:".ljust(widths.whole) + "|"]
    lines += ["|" + " GPU  GI  CI  MIG |         Memory-Usage".ljust(widths.whole) + "|"]
    for index, mig in enumerate(gpu.mig_devices):
        memory = gpu.memory(mig)
        row = f"{gpu.index:>4}{mig['gpu_instance_id']:>5}{mig['compute_instance_id']:>4}{index:>5} | "
        row += f"{memory['used']:>12}MiB / {memory['total']:>5}MiB"
        lines.append("|" + row.ljust(widths.whole) + "|")
    return [*lines, "+" + "-" * widths.whole + "+"]


def _process_table(profile: Profile, gpus: Sequence[Device], widths: Widths) -> list[str]:
    pid_width = 16 if widths is WIDE else 10
    name_width = widths.whole - pid_width - 36
    titles = [
        " Processes:",
        f"  GPU   GI   CI{'PID':>{pid_width + 1}}   Type   {'Process name':<{name_width - 1}}GPU Memory ",
        f"        ID   ID{'':>{pid_width + 11}}{'':<{name_width - 1}}Usage",
    ]
    lines = ["", "+" + "-" * widths.whole + "+"]
    lines += [f"|{title:<{widths.whole}}|" for title in titles] + ["|" + "=" * widths.whole + "|"]
    rows = [] if profile.in_container else [(gpu, process) for gpu in gpus for process in gpu.processes]
    lines += [f"|{_process_row(gpu, p, pid_width, name_width):<{widths.whole}}|" for gpu, p in rows]
    if not rows:
        lines.append("|" + "  No running processes found".ljust(widths.whole) + "|")
    return [*lines, "+" + "-" * widths.whole + "+"]


def _process_row(gpu: Device, process: dict[str, Any], pid_width: int, name_width: int) -> str:
    instance = process.get("gpu_instance_id", "N/A"), process.get("compute_instance_id", "N/A")
    used = process.get("used_memory_mib")
    memory = "N/A" if used is None else f"{used}MiB"
    name = process.get("name", "")
    if len(name) > name_width:
        name = "..." + name[3 - name_width :]
    kind = process.get("type", "C")
    return (
        f"{gpu.index:>5}{instance[0]:>6}{instance[1]:>5}{process['pid']:>{pid_width}}{kind:>7}   "
        f"{name:<{name_width}}{memory:>9} "
    )


# ---- lists ----


def list_gpus(gpus: Sequence[Device]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu.index}: {gpu.identity('name')} (UUID: {gpu.identity('uuid')})")
        for index, mig in enumerate(gpu.mig_devices if gpu.mig_enabled else []):
            lines.append(f"  MIG {mig['profile']:<12}Device {index:>2}: (UUID: {mig['uuid']})")
    return "".join(line + "\n" for line in lines)


def version(profile: Profile) -> str:
    full, cuda = profile.version, profile.driver("cuda_version", "N/A")
    nvml = ".".join(profile.library_version.split(".")[:2])
    return (
        f"NVIDIA-SMI version  : {full}\nNVML version        : {nvml}\n"
        f"DRIVER version      : {full}\nCUDA Version        : {cuda}\n"
    )


# ---- topology ----

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

UNDERLINE, PLAIN = "\x1b[4m", "\x1b[0m"


def topology(profile: Profile) -> str:
    """The matrix, with TABs and the underlined heading that the real one has even when it writes to a file."""
    nics: list[dict[str, Any]] = profile.data.get("nics") or []
    with_gpu_numa_id = profile.version_tuple >= (530,)
    columns = [f"GPU{gpu.index}" for gpu in profile.gpus] + [f"NIC{i}" for i in range(len(nics))]
    columns += ["CPU Affinity", "NUMA Affinity"] + (["GPU NUMA ID"] if with_gpu_numa_id else [])
    lines = ["\t" + UNDERLINE + "\t".join(columns) + PLAIN]
    for gpu in profile.gpus:
        cells = [_cell(profile.link(gpu.profile_index, other.profile_index)) for other in profile.gpus]
        cells += [nic["gpus"][gpu.profile_index] for nic in nics]
        lines.append("\t".join([f"GPU{gpu.index}", *cells, *_affinity(gpu, with_gpu_numa_id)]))
    for index, nic in enumerate(nics):
        cells = [nic["gpus"][gpu.profile_index] for gpu in profile.gpus] + [_cell(link) for link in nic["nics"]]
        lines.append("\t".join([f"NIC{index}", *cells]) + "\t\t\t\t")
    names = "".join(f"  NIC{index}: {nic['name']}\n" for index, nic in enumerate(nics))
    return "\n".join(lines) + "\n" + LEGEND + (f"\nNIC Legend:\n\n{names}" if nics else "")


def _cell(link: str) -> str:
    return " X " if link == "X" else link


def _affinity(gpu: Device, with_gpu_numa_id: bool) -> list[str]:
    node = str(gpu.identity("numa_node"))
    cells = [str(gpu.identity("cpu_affinity")), *(["", node] if node == "N/A" else [node])]
    return cells + (["", str(gpu.identity("gpu_numa_id"))] if with_gpu_numa_id else [])


def nvlink_status(gpus: Sequence[Device]) -> str:
    lines = []
    for gpu in gpus:
        lines.append(f"GPU {gpu.index}: {gpu.identity('name')} (UUID: {gpu.identity('uuid')})")
        links, speed = gpu.get("nvlink.links"), gpu.get("nvlink.speed_mbps")
        if isinstance(links, Problem):
            lines.append("Device does not have or support Nvlink")
        else:
            lines += [f"\t Link {link}: {speed / 1000:g} GB/s" for link in range(links)]
    return "".join(line + "\n" for line in lines)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the host's NVIDIA driver, by the best source that works, and says what is wrong where none does.

Private to the collection gpufleet.vllm.
"""

from __future__ import annotations

from . import _host_facts, _nvidia_smi, _nvml
from ._gpu_command import call_in_child, find_program, run
from ._gpu_nvml_binding import Nvml
from ._gpu_problems import classify, problem, split
from ._gpu_shape import judge, new_host, is_unified_memory, set_used_by_others

#: Failures of NVML itself, after which nvidia-smi may still work. After any other (no driver, no permission, a hung
#: driver) it would fail in the same way.
TRY_NVIDIA_SMI = ("nvml_library_missing", "nvml_function_missing", "nvml_failed")


def query(source, timeout, topology=True):
    """The host's GPUs in the shape that gpu_info returns; never raises for anything that a driver does.

    source is "auto", "nvml" or "nvidia-smi"; timeout is in seconds, for each of the sources' calls.
    """
    if source == "nvidia-smi":
        return ask_nvidia_smi(timeout, topology)
    host = ask_nvml(timeout, topology)
    if source == "auto" and not host["gpus"] and any(error["code"] in TRY_NVIDIA_SMI for error in host["errors"]):
        fallback = ask_nvidia_smi(timeout, topology)
        if fallback["gpus"] or fallback["errors"][0]["code"] != "nvidia_smi_missing":
            return fallback
    return host


def ask_nvml(timeout, topology=True):
    """Through NVML, in a child process: by pynvml where it can be imported, else by our own binding."""
    host, failure = call_in_child(lambda: _nvml.collect(_nvml_module(), topology), timeout)
    if host is None:
        host = new_host("nvml")
        code = "nvidia_smi_timeout" if failure == "timeout" else "nvml_failed"
        detail = "NVML took more than %s s" % timeout if failure == "timeout" else "the library ended its process"
        host["errors"] = [problem(code, detail=detail)]
    return host


def _nvml_module():
    try:
        import pynvml
    except ImportError:
        return Nvml()
    return pynvml


def ask_nvidia_smi(timeout, topology=True):
    """Through nvidia-smi: one process, and one more each for what its XML lacks and this host has.

    That is the topology of several GPUs, the names of MIG devices, the compute capability of an unknown card.
    """
    program = find_program("nvidia-smi")
    if program is None:
        host = new_host("nvidia-smi")
        host["errors"] = [problem("nvidia_smi_missing")]
        return host
    host = _ask_xml(program, timeout)
    problems = host["errors"] + host["notices"]
    if any(gpu["mig"]["instances"] for gpu in host["gpus"]):
        add_mig_names(host["gpus"], _nvidia_smi.parse_list(_ask(program, ["-L"], timeout)))
    if any(gpu["compute_capability"] is None for gpu in host["gpus"]):
        _add_capabilities(host["gpus"], _ask(program, CAPABILITY_QUERY, timeout))
    if topology and len(host["gpus"]) > 1:
        problems += add_topology(host, _nvidia_smi.parse_topology(_ask(program, ["topo", "-m"], timeout)))
    elif topology:
        host["links"] = [["X"] for gpu in host["gpus"]]
    host["errors"], host["notices"] = split(problems)
    return host


CAPABILITY_QUERY = ["--query-gpu=uuid,compute_cap", "--format=csv,noheader"]


def _ask(program, arguments, timeout):
    """What nvidia-smi prints; nothing if it fails, because the caller can do without."""
    code, output, unused = run([program] + arguments, timeout)
    return output if code == 0 else ""


def _ask_xml(program, timeout):
    code, output, errors = run([program, "-q", "-x"], timeout)
    if code is None:
        host = new_host("nvidia-smi")
        host["errors"] = [problem("nvidia_smi_timeout", detail="nvidia-smi -q -x took more than %s s" % timeout)]
        return host
    host = _nvidia_smi.parse_xml(output)
    if any(error["code"] == "xml_unreadable" for error in host["errors"]):
        host = _without_xml(program, timeout, host, classify(output + "\n" + errors, code))
    return host


def _without_xml(program, timeout, host, reason):
    """Where the XML cannot be read: what nvidia-smi said instead, or the same facts as text."""
    if reason and reason["code"] != "xml_unreadable":
        host["errors"] = [reason]
        return host
    from_text = _nvidia_smi.parse_query_text(_ask(program, ["-q"], timeout))
    if len(from_text["gpus"]) < len(host["gpus"]) or not from_text["gpus"]:
        return host
    from_text["notices"].append(dict(host["errors"][0], severity="warning"))
    return from_text


def add_mig_names(gpus, listed):
    """Set UUID and profile of the MIG devices, which only "nvidia-smi -L" tells; both count the same devices."""
    by_uuid = {entry["uuid"]: entry for entry in listed}
    for gpu in gpus:
        devices = {device["index"]: device for device in by_uuid.get(gpu["uuid"], {"mig": ()})["mig"]}
        for instance in gpu["mig"]["instances"]:
            device = devices.get(instance["index"])
            if device:
                instance["uuid"], instance["profile"] = device["uuid"], device["profile"]


def _add_capabilities(gpus, text):
    """A driver before 470 does not know the field and says nothing: the capability stays unknown."""
    rows = _nvidia_smi.parse_csv(text, ("uuid", "compute_cap"))
    capabilities = {row["uuid"]: row["compute_cap"] for row in rows}
    for gpu in gpus:
        if gpu["compute_capability"] is None and capabilities.get(gpu["uuid"]):
            gpu["compute_capability"] = capabilities[gpu["uuid"]]
            gpu["compute_capability_source"] = "driver"
            gpu["architecture"] = gpu["architecture"] or _architecture(gpu)


def _architecture(gpu):
    from ._gpu_compute_capability import architecture_of

    return architecture_of(gpu["compute_capability"])


def add_topology(host, topology):
    """Set links and affinities; the problems are those of a matrix that does not describe the GPUs."""
    if len(topology["links"]) != len(host["gpus"]):
        return [problem("topology_unknown")]
    host["links"] = topology["links"]
    for gpu in host["gpus"]:
        at = gpu["index"]
        numa = (topology["numa_affinity"] or {at: None})[at]
        gpu_numa = (topology["gpu_numa_id"] or {at: None})[at]
        gpu["numa_node"] = int(numa) if (numa or "").isdigit() else None
        gpu["gpu_numa_id"] = int(gpu_numa) if (gpu_numa or "").isdigit() else None
        gpu["cpu_affinity"] = (topology["cpu_affinity"] or {at: None})[at]
    return []


# --- with what the host itself tells ------------------------------------------------------------------------------


def complete(host, own_containers=(), names=None, root="/"):
    """Add what /proc and /sys tell: locality, containers, versions, the memory of machines without memory on the card."""
    host["kernel_module_version"] = _host_facts.kernel_module_version(root)
    host["library_version"] = _host_facts.installed_library_version(root) or host["library_version"]
    _host_facts.name_containers(host["gpus"], names or {}, root)
    memory = _host_facts.memory(root)
    for gpu in host["gpus"]:
        for key, value in _host_facts.pci_locality(gpu["pci_bus_id"], root).items():
            gpu[key] = gpu[key] if value is None else value
        if gpu["state"] == "ok" and gpu["memory_total_mib"] is None and is_unified_memory(gpu):
            gpu["memory_total_mib"] = memory["memory_total_mib"]
            gpu["memory_free_mib"] = memory["memory_available_mib"]
            gpu["memory_source"] = "host"
    kept = [item for item in host["errors"] + host["notices"] if item["gpu"] is None or item["code"] == "xml_unreadable"]
    kept = [item for item in kept if item["code"] != "attached_gpus_missing"]
    judge(host, kept)
    for gpu in host["gpus"]:
        set_used_by_others(gpu, own_containers)
    explain_absence(host, root)
    return host


def explain_absence(host, root="/"):
    """Where no GPU was found, say which case it is: no card, no driver, another driver, a driver that does not load."""
    if host["gpus"] or not host["errors"]:
        return
    cards = _host_facts.pci_gpus(root)
    host["pci_gpus"] = cards
    code = host["errors"][0]["code"]
    if code not in ("nvml_library_missing", "nvidia_smi_missing", "driver_not_loaded", "no_gpu"):
        return
    reason = _absence(cards, code, host["library_version"], root)
    if reason:
        detail = ", ".join("%s (%s)" % (card["pci_bus_id"], card["kernel_driver"] or "no driver") for card in cards)
        host["errors"] = [problem(reason, detail=detail or None, evidence=host["errors"][0]["evidence"])]


def _absence(cards, code, library_version, root):
    drivers = {card["kernel_driver"] for card in cards}
    if "nouveau" in drivers:
        return "nouveau"
    if cards and drivers <= {"vfio-pci"}:
        return "vfio"
    if cards and library_version is None and code != "driver_not_loaded":
        return "driver_not_installed"
    if not cards and not _host_facts.is_wsl(root) and _host_facts.kernel_module_version(root) is None:
        return "no_gpu"
    return None

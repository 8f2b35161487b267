# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the host's NVIDIA driver, by the best source that works, and says what is wrong where none does.

Private to the collection gpufleet.vllm. A query gives (host, problems); complete() adds what /proc and /sys tell and
turns the problems into "errors" and "notices".
"""

from __future__ import annotations

from typing import Any, Collection, Mapping

from . import _host_facts, _nvidia_smi, _nvml
from ._gpu_command import call_in_child, find_program, run
from ._gpu_compute_capability import architecture_of
from ._gpu_nvml_binding import Nvml
from ._gpu_problems import bus_id_in, classify, problem
from ._gpu_shape import complete_gpu, is_unified_memory, judge, new_gpu, new_host, set_used_by_others

#: Failures of NVML itself, after which nvidia-smi may still work. After any other (no driver, no permission, a hung
#: driver) it would fail in the same way.
TRY_NVIDIA_SMI = ("nvml_library_missing", "nvml_function_missing", "nvml_failed")

#: Failures that keep nvidia-smi from describing the GPUs that still work.
ONE_GPU_BROKEN = ("gpu_lost", "gpu_requires_reset", "device_error")

#: A loop over the GPUs of a host ends here, whatever nvidia-smi says.
MOST_GPUS = 64

CAPABILITY_QUERY = ["--query-gpu=uuid,compute_cap", "--format=csv,noheader"]


def query(source: str, timeout: float, topology: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """(host, problems) of this host's GPUs; never raises for anything that a driver does.

    source is "auto", "nvml" or "nvidia-smi"; timeout is in seconds, for each call of the source.
    """
    if source == "nvidia-smi":
        return ask_nvidia_smi(timeout, topology)
    host, problems = ask_nvml(timeout, topology)
    if source == "auto" and not host["gpus"] and any(item["code"] in TRY_NVIDIA_SMI for item in problems):
        fallback, fallback_problems = ask_nvidia_smi(timeout, topology)
        if fallback["gpus"] or fallback_problems[0]["code"] != "nvidia_smi_missing":
            return fallback, fallback_problems
    return host, problems


# --- NVML ---------------------------------------------------------------------------------------------------------


def ask_nvml(timeout: float, topology: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """By pynvml where it can be imported, else by our own binding; in a child process, because NVML may hang."""
    answer, failure = call_in_child(lambda: _nvml.collect(_nvml_module(), topology), timeout)
    if failure is None:
        host, problems = answer
        return host, problems
    code = "driver_timeout" if failure == "timeout" else "nvml_failed"
    detail = f"NVML did not answer within {timeout:g} s" if failure == "timeout" else failure
    return new_host("nvml"), [problem(code, detail=detail)]


def _nvml_module() -> Any:
    try:
        import pynvml
    except ImportError:
        return Nvml()
    return pynvml


# --- nvidia-smi ---------------------------------------------------------------------------------------------------


def ask_nvidia_smi(timeout: float, topology: bool = True) -> tuple[dict[str, Any], list[Any]]:
    """One process, and one more each for what its XML lacks and this host has.

    That is the topology of several GPUs, the UUIDs of MIG devices, the compute capability of an unknown card.
    """
    program = find_program("nvidia-smi")
    if program is None:
        return new_host("nvidia-smi"), [problem("nvidia_smi_missing")]
    host, problems = _ask_gpus(program, timeout)
    gpus = host["gpus"]
    if any(gpu["mig"]["instances"] for gpu in gpus):
        add_mig_names(gpus, _nvidia_smi.parse_list(_ask(program, ["-L"], timeout)))
    for gpu in gpus:
        complete_gpu(gpu)
    if any(gpu["compute_capability"] is None and gpu["state"] == "ok" for gpu in gpus):
        add_capabilities(gpus, _ask(program, CAPABILITY_QUERY, timeout))
    if topology and len(gpus) > 1:
        matrix = _nvidia_smi.parse_topology(_ask(program, ["topo", "-m"], timeout))
        problems += add_topology(host, matrix)
    elif topology:
        host["links"] = [["X"] for gpu in gpus]
    return host, problems


def _ask(program: str, arguments: list[str], timeout: float) -> str:
    """What nvidia-smi prints; nothing if it fails, because the caller can do without."""
    code, output, unused = run([program] + arguments, timeout)
    return output if code == 0 else ""


def _ask_gpus(program: str, timeout: float) -> tuple[dict[str, Any], list[Any]]:
    host, problems = _ask_xml(program, [], timeout)
    codes = {item["code"] for item in problems}
    if not host["gpus"] and codes & set(ONE_GPU_BROKEN):
        one_by_one = _ask_one_by_one(program, timeout)
        return one_by_one if one_by_one[0]["gpus"] else (host, problems)
    if "xml_unreadable" in codes:
        described = _nvidia_smi.read_query_text(_ask(program, ["-q"], timeout))
        if described["gpus"] and len(described["gpus"]) >= len(host["gpus"]):
            return described, [dict(item, severity="warning") for item in problems]
    return host, problems


def _ask_xml(program: str, selection: list[str], timeout: float) -> tuple[dict[str, Any], list[Any]]:
    code, output, errors = run([program, "-q", "-x"] + selection, timeout)
    if code is None:
        detail = f"nvidia-smi -q -x did not end within {timeout:g} s"
        return new_host("nvidia-smi"), [problem("driver_timeout", detail=detail)]
    host, problems = _nvidia_smi.read_xml(output)
    if not host["gpus"]:
        told = classify(output + "\n" + errors, code)
        problems = [told] if told and told["severity"] == "error" else problems or [problem("no_gpu")]
    return host, problems


def _ask_one_by_one(program: str, timeout: float) -> tuple[dict[str, Any], list[Any]]:
    """One broken GPU makes nvidia-smi fail for all: ask for each by its index, until there is no such index."""
    host = new_host("nvidia-smi")
    gpus: list[dict[str, Any]] = []
    while len(gpus) < MOST_GPUS:
        index = len(gpus)
        answer, problems = _ask_xml(program, ["-i", str(index)], timeout)
        if answer["gpus"]:
            host = answer
            gpus.append(dict(answer["gpus"][0], index=index))
        elif problems[0]["code"] in ONE_GPU_BROKEN:
            gpus.append(dict(new_gpu(index), state=problems[0]["code"], pci_bus_id=bus_id_in(problems[0]["evidence"])))
        else:
            break
    host["gpus"] = gpus
    return host, []


def add_mig_names(gpus: list[dict[str, Any]], listed: list[dict[str, Any]]) -> None:
    """Set UUID and profile of the MIG devices, which only "nvidia-smi -L" tells; both count the same devices."""
    by_uuid = {entry["uuid"]: entry for entry in listed}
    for gpu in gpus:
        devices = {device["index"]: device for device in by_uuid.get(gpu["uuid"], {"mig": ()})["mig"]}
        for instance in gpu["mig"]["instances"]:
            device = devices.get(instance["index"])
            if device:
                instance["uuid"], instance["profile"] = device["uuid"], device["profile"]


def add_capabilities(gpus: list[dict[str, Any]], text: str) -> None:
    """Set what the driver itself says of cards that the tables do not know; drivers before 470 do not say it."""
    rows = _nvidia_smi.parse_csv(text, ("uuid", "compute_cap"))
    capabilities = {row["uuid"]: row["compute_cap"] for row in rows}
    for gpu in gpus:
        if gpu["compute_capability"] is None and capabilities.get(gpu["uuid"]):
            gpu["compute_capability"] = capabilities[gpu["uuid"]]
            gpu["compute_capability_source"] = "driver"
            gpu["architecture"] = gpu["architecture"] or architecture_of(gpu["compute_capability"])


def add_topology(host: dict[str, Any], topology: dict[str, Any]) -> list[dict[str, Any]]:
    """Set links and affinities; the problems are those of a matrix that does not describe the GPUs."""
    if len(topology["links"]) != len(host["gpus"]):
        return [problem("topology_unknown")]
    host["links"] = topology["links"]
    for position, gpu in enumerate(host["gpus"]):
        for target, column in (("numa_node", "numa_affinity"), ("gpu_numa_id", "gpu_numa_id")):
            text = topology[column][position] if topology[column] else None
            gpu[target] = int(text) if text and text.isdigit() else None
        gpu["cpu_affinity"] = topology["cpu_affinity"][position] if topology["cpu_affinity"] else None
    return []


# --- with what the host itself tells ------------------------------------------------------------------------------


def complete(
    host: dict[str, Any],
    problems: list[dict[str, Any]],
    own_containers: Collection[str] = (),
    container_names: Mapping[str, str] | None = None,
    root: str = "/",
) -> dict[str, Any]:
    """Add what /proc and /sys tell (locality, containers, versions, unified memory), judge, and return the host."""
    host["kernel_module_version"] = _host_facts.kernel_module_version(root)
    host["library_version"] = _host_facts.installed_library_version(root) or host["library_version"]
    _host_facts.name_containers(host["gpus"], container_names or {}, root)
    _add_locality(host["gpus"], root)
    _add_unified_memory(host["gpus"], _host_facts.memory(root))
    for gpu in host["gpus"]:
        set_used_by_others(gpu, own_containers)
    if not host["gpus"]:
        host["pci_gpus"] = _host_facts.pci_gpus(root)
        problems = [_explain(host, problems[0], root)] + problems[1:] if problems else [problem("no_gpu")]
    elif _host_facts.is_wsl(root):
        problems = problems + [problem("wsl")]
    host["fabric_manager"] = _fabric_manager(root)
    return judge(host, problems + _fabric_manager_problems(host))


def _add_locality(gpus: list[dict[str, Any]], root: str) -> None:
    for gpu in gpus:
        for key, value in _host_facts.pci_locality(gpu["pci_bus_id"], root).items():
            gpu[key] = gpu[key] if value is None else value


def _add_unified_memory(gpus: list[dict[str, Any]], memory: dict[str, int | None]) -> None:
    """Machines whose GPU has no memory of its own: the host's memory is the GPU's."""
    total, available = memory["memory_total_mib"], memory["memory_available_mib"]
    for gpu in gpus:
        complete_gpu(gpu)
        if gpu["state"] == "ok" and is_unified_memory(gpu) and total is not None and available is not None:
            gpu["memory_total_mib"] = total
            gpu["memory_free_mib"] = available
            gpu["memory_used_mib"] = total - available
            gpu["memory_source"] = "host"


def _fabric_manager(root: str) -> dict[str, Any] | None:
    """{"nvswitches", "running"} where there are NVSwitches; else None: no fabric manager is needed on this host."""
    switches = _host_facts.nvswitch_count(root)
    if not switches:
        return None
    running = _host_facts.unit_is_active("nvidia-fabricmanager.service", root) or _host_facts.is_running(
        "nv-fabricmanager", root
    )
    return {"nvswitches": switches, "running": running}


def _fabric_manager_problems(host: dict[str, Any]) -> list[dict[str, Any]]:
    manager = host["fabric_manager"]
    ready = bool(host["gpus"]) and all(gpu["fabric"]["state"] == "Completed" for gpu in host["gpus"])
    if manager and not manager["running"] and not ready:
        return [problem("fabric_manager_down", detail=f"{manager['nvswitches']} NVSwitches")]
    return []


def _explain(host: dict[str, Any], failure: dict[str, Any], root: str) -> dict[str, Any]:
    """Where no GPU was found, say which case it is: no card, no driver, another driver, two versions of the driver."""
    cards = host["pci_gpus"]
    detail = ", ".join(f"{card['pci_bus_id']} ({card['kernel_driver'] or 'no driver'})" for card in cards) or None
    code = failure["code"]
    if code == "driver_library_mismatch":
        versions = (("kernel module", host["kernel_module_version"]), ("library", host["library_version"]))
        detail = ", ".join(f"{part} {version}" for part, version in versions if version)
        return problem(code, detail=detail, evidence=failure["evidence"])
    if code in ("nvml_library_missing", "nvidia_smi_missing", "driver_not_loaded", "no_gpu"):
        code = _absence({card["kernel_driver"] for card in cards}, host, code, root)
        return problem(code, detail=detail, evidence=failure["evidence"])
    return failure


def _absence(drivers: set[str | None], host: dict[str, Any], code: str, root: str) -> str:
    """The code that tells more than "no library" or "not loaded"; drivers are those of the NVIDIA cards on the bus."""
    if "nouveau" in drivers:
        return "nouveau"
    if drivers == {"vfio-pci"}:
        return "vfio"
    if _host_facts.is_wsl(root):
        return "wsl_driver_unavailable"
    if _host_facts.is_jetson(root):
        return "jetson_without_nvml"
    if not drivers and host["kernel_module_version"] is None:
        return "no_gpu"
    if drivers and host["kernel_module_version"] is None and host["library_version"] is None:
        return "driver_not_installed"
    return code

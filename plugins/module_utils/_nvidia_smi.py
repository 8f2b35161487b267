# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what nvidia-smi prints, of every driver generation from 375 to 610.

Private to the collection gpufleet.vllm, but parse_xml is a stable contract.
parse_xml("nvidia-smi -q -x") gives the shape that gpu_info returns, read_xml and read_query_text ("nvidia-smi -q")
the same before judgement;
parse_topology("topo -m"), parse_list("-L") and parse_csv("--query-... --format=csv") add what these two lack:
pair topology, MIG UUIDs and profiles, compute capability.
No function raises on odd input: what cannot be read is None, and why is told in "errors".
"""

from __future__ import annotations

import re
from typing import Any, Sequence
from xml.etree import ElementTree

from ._gpu_problems import bus_id_in, classify, problem
from ._gpu_shape import judge, new_gpu, new_host, new_mig_instance

#: Bodies that stand for a value that is not there. [N/A] and the like lose their brackets first.
NOT_A_VALUE = frozenset(
    (
        "",
        "n/a",
        "not supported",
        "not found",
        "unknown error",
        "insufficient permissions",
        "no permission",
        "gpu is lost",
        "gpu requires reset",
        "err!",
        "error",
        "unknown",
        "not available in wddm driver model",
        "requested functionality has been deprecated",
    )
)

#: Bodies that tell the state of the whole GPU wherever they stand.
STATES = {"gpu is lost": "gpu_lost", "gpu requires reset": "gpu_requires_reset"}


def parse_xml(text: str) -> dict[str, Any]:
    """The host that the output of "nvidia-smi -q -x" describes, in the shape that gpu_info returns.

    Takes any DTD version, with or without declaration, DOCTYPE, leading blanks or trailing warnings. Broken GPU
    elements are told in "errors" while the others are read. Other text (an error message) gives no GPUs and the error.
    """
    return judge(*read_xml(text))


def read_xml(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(host, problems met in reading it) of the output of "nvidia-smi -q -x", not yet judged."""
    log, problems = _read_log(text)
    if log is None:
        return new_host("nvidia-smi"), problems
    warning = classify(text.rpartition("</nvidia_smi_log>")[2])
    return _host(log), problems + ([warning] if warning else [])


def read_query_text(text: str) -> dict[str, Any]:
    """The host by the output of "nvidia-smi -q", for a driver whose XML cannot be read; not yet judged."""
    return _host(_tree_of_text(text))


# --- XML, well-formed or not -------------------------------------------------------------------------------------


def _read_log(text: str) -> tuple[ElementTree.Element | None, list[dict[str, Any]]]:
    """(element nvidia_smi_log or None, problems)."""
    match = re.search(r"<nvidia_smi_log\b.*?(</nvidia_smi_log>|\Z)", text, re.DOTALL)
    if not match:
        told = classify(text)
        unreadable = problem("xml_unreadable", evidence=text.strip()[:400] or "no output")
        return None, [told] if told and told["severity"] == "error" else [unreadable] + ([told] if told else [])
    # The list of supported clocks is most of the text, is not needed, and is known to be malformed at times.
    body = re.sub(r"<supported_clocks>.*?</supported_clocks>", "", match.group(0), flags=re.DOTALL)
    body = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "?", body)
    try:
        return ElementTree.fromstring(body), []
    except ElementTree.ParseError as error:
        return _salvage(body, str(error))


def _salvage(body: str, reason: str) -> tuple[ElementTree.Element, list[dict[str, Any]]]:
    """Read the GPU elements one by one; those that are broken are told."""
    log = ElementTree.Element("nvidia_smi_log")
    head = body.partition("<gpu ")[0]
    for tag, value in re.findall(r"<(\w+)>([^<]*)</\1>", head):
        ElementTree.SubElement(log, tag).text = value
    problems = []
    for index, block in enumerate(re.findall(r"<gpu\b[^>]*>.*?(?=<gpu\b|</nvidia_smi_log>|\Z)", body, re.DOTALL)):
        gpu = _read_gpu(block)
        if gpu is None:
            gpu = ElementTree.Element("gpu")
            problems.append(problem("xml_unreadable", gpu=index, evidence=reason))
        log.append(gpu)
    return log, problems or [problem("xml_unreadable", evidence=reason)]


def _read_gpu(block: str) -> ElementTree.Element | None:
    """One gpu element, at need without its processes, whose names may hold anything."""
    for candidate in (block, re.sub(r"<processes>.*?</processes>", "", block, flags=re.DOTALL)):
        try:
            return ElementTree.fromstring(candidate)
        except ElementTree.ParseError:
            continue
    return None


# --- "-q" text, as the tree that "-q -x" would have given ---------------------------------------------------------

#: Titles of "-q" whose XML name is not their own in lower case: section -> {title: tag}; "" is for all sections.
TEXT_TAGS = {
    "": {
        "gpu_uuid": "uuid",
        "gpu_c2c_mode": "c2c_mode",
        "platform_info": "platformInfo",
        "gpu_link_info": "pci_gpu_link_info",
        "pcie_generation": "pcie_gen",
        "link_width": "link_widths",
        "clusteruuid": "clusterUuid",
        "cliqueid": "cliqueId",
        "instantaneous_power_draw": "instant_power_draw",
    },
    "mig_mode": {"current": "current_mig", "pending": "pending_mig"},
    "driver_model": {"current": "current_dm", "pending": "pending_dm"},
    "ecc_mode": {"current": "current_ecc", "pending": "pending_ecc"},
    "pci": {"device_id": "pci_device_id", "bus_id": "pci_bus_id"},
    "pcie_gen": {"max": "max_link_gen", "current": "current_link_gen"},
    "link_widths": {"max": "max_link_width", "current": "current_link_width"},
    "utilization": {"gpu": "gpu_util", "memory": "memory_util"},
    "temperature": {"gpu_current_temp": "gpu_temp"},
    "clocks": {"graphics": "graphics_clock", "memory": "mem_clock"},
    "max_clocks": {"graphics": "graphics_clock", "memory": "mem_clock"},
    "remapped_rows": {
        "correctable_error": "remapped_row_corr",
        "uncorrectable_error": "remapped_row_unc",
        "pending": "remapped_row_pending",
        "remapping_failure_occurred": "remapped_row_failure",
    },
    "process_info": {"process_id": "pid", "name": "process_name", "used_gpu_memory": "used_memory"},
    "retired_pages": {"pending_page_blacklist": "pending_retirement"},
}


_TEXT_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,}:[0-9A-Fa-f:.]+)\s*$")


def _tree_of_text(text: str) -> ElementTree.Element:
    log = ElementTree.Element("nvidia_smi_log")
    open_sections = [(-1, log)]
    for line in text.splitlines():
        title, separator, value = (part.strip() for part in line.partition(" :"))
        if not title or title.startswith("="):
            continue
        indent = len(line) - len(line.lstrip())
        while len(open_sections) > 1 and indent <= open_sections[-1][0]:
            open_sections.pop()
        element = _append(open_sections[-1][1], title, value)
        if not separator or element.tag == "process_info":
            open_sections.append((indent, element))
    return log


def _append(parent: ElementTree.Element, title: str, value: str) -> ElementTree.Element:
    if _TEXT_GPU.match(title):
        return ElementTree.SubElement(parent, "gpu", id=title[4:])
    name = re.sub(r"\W+", "_", title.lower()).strip("_")
    if parent.tag == "processes" and name == "process_id":
        process = ElementTree.SubElement(parent, "process_info")
        ElementTree.SubElement(process, "pid").text = value
        return process
    name = TEXT_TAGS.get(parent.tag, {}).get(name) or TEXT_TAGS[""].get(name, name)
    element = ElementTree.SubElement(parent, name)
    element.text = value
    return element


# --- from the tree to the shape -----------------------------------------------------------------------------------


def _host(log: ElementTree.Element) -> dict[str, Any]:
    host = new_host("nvidia-smi")
    host["driver_version"] = _version(log, "driver_version", "kmd_version")
    host["cuda_driver_version"] = _version(log, "cuda_version", "cuda_umd_version")
    host["attached_gpus"] = _number(_text(log, "attached_gpus"))
    host["gpus"] = [_gpu(element, index) for index, element in enumerate(log.findall("gpu"))]
    return host


def _version(log: ElementTree.Element, *tags: str) -> str | None:
    """The first that is a version: 610 adds "[Deprecated; ...]", 430 in a container says "Not Found"."""
    for tag in tags:
        match = re.match(r"\d+(\.\d+)+", _text(log, tag) or "")
        if match:
            return match.group(0)
    return None


def _text(element: ElementTree.Element, *paths: str) -> str | None:
    """The first of the paths that has a value, as text; None where all are missing or not available."""
    for path in paths:
        value = " ".join((element.findtext(path) or "").split())
        if value.strip("[]").lower() not in NOT_A_VALUE:
            return value
    return None


def _number(text: str | None) -> int | None:
    """The integer in "81559 MiB", "16x" or "300.00 W" (rounded); None where there is none."""
    match = re.match(r"-?\d+(\.\d+)?", text or "")
    return int(round(float(match.group(0)))) if match else None


def _decimal(text: str | None) -> float | None:
    match = re.match(r"-?\d+(\.\d+)?", text or "")
    return float(match.group(0)) if match else None


def _flag(text: str | None) -> bool | None:
    return {"yes": True, "no": False}.get((text or "").lower())


def _gpu(element: ElementTree.Element, index: int) -> dict[str, Any]:
    gpu = new_gpu(index)
    gpu["state"] = _state(element)
    _set_identity(gpu, element)
    _set_memory(gpu, element)
    _set_modes(gpu, element)
    _set_pcie(gpu, element)
    _set_power_and_clocks(gpu, element)
    _set_health(gpu, element)
    _set_fabric(gpu, element)
    gpu["mig"]["instances"] = [
        _mig_instance(device, position) for position, device in enumerate(element.findall(".//mig_device"))
    ]
    # Before driver 337 the tags are <memory_usage> and <compute_processes>.
    entries = element.findall("processes/process_info") or element.findall("compute_processes/process_info")
    gpu["processes"] = [_process(entry) for entry in entries]
    return gpu


def _state(element: ElementTree.Element) -> str:
    for child in element.iter():
        state = STATES.get((child.text or "").strip().strip("[]").lower())
        if state:
            return state
    if (element.findtext("fb_memory_usage/total") or "").strip().strip("[]").lower() in ("unknown error", "err!"):
        return "device_error"
    return "ok"


def _set_identity(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    gpu["uuid"] = _text(element, "uuid")
    gpu["name"] = _text(element, "product_name")
    gpu["pci_bus_id"] = _text(element, "pci/pci_bus_id") or bus_id_in(element.get("id"))
    gpu["pci_device_id"] = re.sub("^0x", "", _text(element, "pci/pci_device_id") or "") or None
    gpu["minor_number"] = _number(_text(element, "minor_number"))
    gpu["architecture"] = _text(element, "product_architecture")


def _set_memory(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    for key in ("total", "free", "used", "reserved"):
        gpu[f"memory_{key}_mib"] = _number(_text(element, "fb_memory_usage/" + key, "memory_usage/" + key))


def _set_modes(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    gpu["mig"]["mode"] = _text(element, "mig_mode/current_mig")
    gpu["mig"]["pending_mode"] = _text(element, "mig_mode/pending_mig")
    gpu["ecc"]["mode"] = _text(element, "ecc_mode/current_ecc")
    gpu["persistence_mode"] = _text(element, "persistence_mode")
    gpu["compute_mode"] = _text(element, "compute_mode")
    gpu["addressing_mode"] = _text(element, "addressing_mode")
    gpu["virtualization_mode"] = _text(element, "gpu_virtualization_mode/virtualization_mode")
    gpu["driver_model"] = _text(element, "driver_model/current_dm")
    gpu["display_active"] = _text(element, "display_active")


def _set_pcie(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    link = "pci/pci_gpu_link_info/"
    gpu["pcie"] = {
        "generation_current": _number(_text(element, link + "pcie_gen/current_link_gen")),
        "generation_max": _number(_text(element, link + "pcie_gen/max_link_gen")),
        "width_current": _number(_text(element, link + "link_widths/current_link_width")),
        "width_max": _number(_text(element, link + "link_widths/max_link_width")),
    }


def _set_power_and_clocks(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    sections = ("gpu_power_readings", "power_readings")
    tags = {
        "draw_w": ("power_draw", "average_power_draw", "instant_power_draw"),
        "limit_w": (
            "current_power_limit",
            "enforced_power_limit",
            "power_limit",
            "gpu_ceiling_power_limit/current_power_limit",
        ),
        "default_limit_w": ("default_power_limit", "gpu_ceiling_power_limit/default_power_limit"),
        "min_limit_w": ("min_power_limit",),
        "max_limit_w": ("max_power_limit",),
    }
    for key, names in tags.items():
        paths = [section + "/" + name for section in sections for name in names]
        gpu["power"][key] = _decimal(_text(element, *paths))
    for prefix, section in (("", "clocks"), ("max_", "max_clocks")):
        gpu["clocks"][prefix + "graphics_mhz"] = _number(_text(element, section + "/graphics_clock"))
        gpu["clocks"][prefix + "memory_mhz"] = _number(_text(element, section + "/mem_clock"))
    gpu["temperature_c"] = _number(_text(element, "temperature/gpu_temp"))
    gpu["utilization_percent"] = _number(_text(element, "utilization/gpu_util"))


def _set_health(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    gpu["throttle_reasons"] = _throttle_reasons(element)
    for scope in ("volatile", "aggregate"):
        gpu["ecc"]["uncorrected_" + scope] = _uncorrected(element, scope)
    gpu["retired_pages"] = {
        "single_bit": _number(
            _text(element, "retired_pages/multiple_single_bit_retirement/retired_count", "retired_pages/single_bit_ecc")
        ),
        "double_bit": _number(
            _text(element, "retired_pages/double_bit_retirement/retired_count", "retired_pages/double_bit_ecc")
        ),
        "pending": _flag(_text(element, "retired_pages/pending_retirement", "retired_pages/pending_blacklist")),
    }
    gpu["remapped_rows"] = {
        "correctable": _number(_text(element, "remapped_rows/remapped_row_corr")),
        "uncorrectable": _number(_text(element, "remapped_rows/remapped_row_unc")),
        "pending": _flag(_text(element, "remapped_rows/remapped_row_pending")),
        "failure": _flag(_text(element, "remapped_rows/remapped_row_failure")),
    }
    action = _text(element, "gpu_recovery_action")
    gpu["recovery_action"] = None if action == "None" else action


def _throttle_reasons(element: ElementTree.Element) -> list[str]:
    """Active reasons by NVIDIA's short names; their prefix changed with 535 ("throttle" to "event")."""
    reasons = []
    for section in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for reason in element.findall(section + "//*"):
            name = re.sub(r"^clocks_(event|throttle)_reason_", "", reason.tag)
            if (reason.text or "").strip() == "Active" and name not in ("gpu_idle", "idle"):
                reasons.append(name)
    return reasons


def _uncorrected(element: ElementTree.Element, scope: str) -> int | None:
    """Uncorrected ECC errors: a total before Turing ("double_bit/total"), parts since; None where nothing is told."""
    total = _number(_text(element, f"ecc_errors/{scope}/double_bit/total"))
    if total is not None:
        return total
    counts = [
        _number(_text(counter, "."))
        for counter in element.findall(f"ecc_errors/{scope}/*")
        if "uncorrectable" in counter.tag
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _set_fabric(gpu: dict[str, Any], element: ElementTree.Element) -> None:
    gpu["fabric"] = {
        "state": _text(element, "fabric/state"),
        "status": _text(element, "fabric/status"),
        "clique_id": _text(element, "fabric/cliqueId"),
        "cluster_uuid": _text(element, "fabric/clusterUuid"),
        "health": _fabric_health(element),
    }


def _fabric_health(element: ElementTree.Element) -> str | None:
    """Healthy, or what is not: the summary (580 and newer), else the single indicators (570)."""
    unhealthy = [
        tag
        for tag, good in (
            ("bandwidth", "Full"),
            ("route_recovery_in_progress", "False"),
            ("route_unhealthy", "False"),
            ("access_timeout_recovery", "False"),
            ("incorrect_configuration", "None"),
        )
        if _text(element, "fabric/health/" + tag) not in (None, good)
    ]
    summary = _text(element, "fabric/health/summary")
    if unhealthy:
        return f"{summary or 'Unhealthy'} ({', '.join(unhealthy)})"
    return summary


def _mig_instance(device: ElementTree.Element, position: int) -> dict[str, Any]:
    instance = new_mig_instance(position)
    index = _number(_text(device, "index"))
    instance["index"] = position if index is None else index
    instance["uuid"] = _text(device, "uuid", "mig_uuid")
    for key in ("gpu_instance_id", "compute_instance_id"):
        instance[key] = _number(_text(device, key))
    for key in ("total", "free", "used"):
        instance[f"memory_{key}_mib"] = _number(_text(device, "fb_memory_usage/" + key))
    return instance


def _process(entry: ElementTree.Element) -> dict[str, Any]:
    return {
        "pid": _number(_text(entry, "pid")),
        "name": _text(entry, "process_name"),
        "type": _text(entry, "type"),
        "used_memory_mib": _number(_text(entry, "used_memory")),
        "container": None,
        "gpu_instance_id": _number(_text(entry, "gpu_instance_id")),
    }


# --- topo -m ------------------------------------------------------------------------------------------------------

_AFFINITY_COLUMNS = {"CPU Affinity": "cpu_affinity", "NUMA Affinity": "numa_affinity", "GPU NUMA ID": "gpu_numa_id"}
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS")


def parse_topology(text: str) -> dict[str, Any]:
    """The matrix of "nvidia-smi topo -m".

    Returns {"devices": GPUs and NICs, "links": matrix of the GPUs ("X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"),
    "cpu_affinity", "numa_affinity", "gpu_numa_id": one a GPU, None where N/A or blank}. An affinity column that this
    driver does not have gives None instead of the list.
    """
    lines = [_ESCAPE.sub("", line).rstrip() for line in text.splitlines()]
    header = next((line for line in lines if re.match(r"\s*GPU\d+\b", line)), "")
    devices, columns = _topology_header(header)
    rows = {line.split()[0]: _topology_row(line, len(devices)) for line in lines if line.strip() and line != header}
    return _topology(devices, columns, rows)


def _topology_header(line: str) -> tuple[list[str], list[str]]:
    columns = [key for title, key in _AFFINITY_COLUMNS.items() if title in line]
    for title in _AFFINITY_COLUMNS:
        line = line.replace(title, " ")
    return line.split(), columns


def _topology_row(line: str, count: int) -> tuple[list[str], list[str]]:
    """(links, affinity cells). Tabs keep blank cells apart; a copy with blanks instead has none to keep."""
    words = list(re.finditer(r"\S+", line))[1 : count + 1]
    links = [word.group(0) for word in words]
    rest = line[words[-1].end() :] if words else ""
    if "\t" not in line:
        return links, rest.split()
    cells = [cell.strip() for cell in rest.split("\t")[1:]]
    return links, cells


def _topology(devices: list[str], columns: list[str], rows: dict[str, tuple[list[str], list[str]]]) -> dict[str, Any]:
    gpus = [name for name in devices if re.match(r"GPU\d+$", name)]
    result: dict[str, Any] = {"devices": devices, "links": []}
    for name in gpus:
        links = rows.get(name, ([], []))[0] + [""] * len(devices)
        result["links"].append([_link(links[devices.index(other)]) for other in gpus])
    affinities = [_affinity(rows.get(name, ([], []))[1], columns) for name in gpus]
    for key in _AFFINITY_COLUMNS.values():
        result[key] = [affinity[key] for affinity in affinities] if key in columns else None
    return result


def _link(cell: str) -> str | None:
    cell = "SYS" if cell == "SOC" else cell  # its name before driver 390
    return cell if _LINK.fullmatch(cell) else None


def _affinity(cells: list[str], columns: list[str]) -> dict[str, str | None]:
    """{column: value}. nvidia-smi writes one tab too many before its last column and before an N/A."""
    values = list(cells)
    for at in range(len(values) - 2, -1, -1):
        if len(values) > len(columns) and not values[at] and values[at + 1]:
            del values[at]
    values += [""] * (len(columns) - len(values))
    return {key: None if value in ("", "N/A") else value for key, value in zip(columns, values)}


# --- -L and CSV ---------------------------------------------------------------------------------------------------


def parse_list(text: str) -> list[dict[str, Any]]:
    """GPUs and MIG devices of "nvidia-smi -L".

    [{"index", "name", "uuid", "mig": [{"index", "profile", "uuid"}]}]
    """
    gpus: list[dict[str, Any]] = []
    for line in text.splitlines():
        gpu = re.match(r"\s*GPU (\d+): (.*?)\s*\(UUID: ([^()]*)\)\s*$", line)
        mig = re.match(r"\s*MIG (\S+)\s+Device\s+(\d+): \(UUID: ([^()]*)\)", line)
        if gpu:
            gpus.append({"index": int(gpu.group(1)), "name": gpu.group(2), "uuid": gpu.group(3), "mig": []})
        elif mig and gpus:
            gpus[-1]["mig"].append({"index": int(mig.group(2)), "profile": mig.group(1), "uuid": mig.group(3)})
    return gpus


def parse_csv(text: str, fields: Sequence[str] | None = None) -> list[dict[str, str | None]]:
    """Rows of "nvidia-smi --query-...=FIELDS --format=csv[,noheader][,nounits]" as dicts by field name.

    fields (their names, in order) is needed with noheader. Values lose their unit ("81559 MiB" is "81559"); what is
    not available is None. A field that may hold commas (process_name) is found by counting from both ends.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if fields is None:
        if not lines:
            return []
        fields = [re.sub(r"\s*\[.*\]$", "", title.strip()) for title in lines.pop(0).split(",")]
    return [_csv_row(line, fields) for line in lines if "," in line or len(fields) == 1]


def _csv_row(line: str, fields: Sequence[str]) -> dict[str, str | None]:
    cells = [cell.strip() for cell in line.split(",")]
    surplus = len(cells) - len(fields)
    if surplus > 0 and "process_name" in fields:
        at = list(fields).index("process_name")
        cells[at : at + surplus + 1] = [", ".join(cells[at : at + surplus + 1])]
    return {field: _csv_value(cell) for field, cell in zip(fields, cells)}


def _csv_value(cell: str) -> str | None:
    if cell.strip("[]").lower() in NOT_A_VALUE:
        return None
    return re.sub(r"^(-?\d+(?:\.\d+)?) (MiB|W|MHz|%|us)$", r"\1", cell)

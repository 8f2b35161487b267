# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _nvidia_smi
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_problems import classify
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import judge, new_gpu, new_host

REPOSITORY = Path(__file__).resolve().parents[4]
FIXTURES = REPOSITORY / "tests" / "unit" / "fixtures" / "nvidia_smi"
CAPTURES = REPOSITORY.parent / "shared" / "data" / "nvidia_smi"

#: Key of the captures' index -> where it is in a GPU of the shape.
GPU_VALUES = {
    "names": ("name",),
    "total_mib": ("memory_total_mib",),
    "used_mib": ("memory_used_mib",),
    "free_mib": ("memory_free_mib",),
    "reserved_mib": ("memory_reserved_mib",),
    "bus_ids": ("pci_bus_id",),
    "minor_numbers": ("minor_number",),
    "persistence_mode": ("persistence_mode",),
    "addressing_mode": ("addressing_mode",),
    "virtualization": ("virtualization_mode",),
    "mig_mode": ("mig", "mode"),
    "ecc_mode": ("ecc", "mode"),
    "fabric_state": ("fabric", "state"),
    "fabric_clique": ("fabric", "clique_id"),
    "pcie_gen_current": ("pcie", "generation_current"),
    "pcie_gen_max": ("pcie", "generation_max"),
    "pcie_width_current": ("pcie", "width_current"),
    "pcie_width_max": ("pcie", "width_max"),
}

#: Key of the captures' index -> field of --query-gpu.
CSV_VALUES = {
    "names": "name",
    "total_mib": "memory.total",
    "used_mib": "memory.used",
    "free_mib": "memory.free",
    "compute_cap": "compute_cap",
    "mig_mode": "mig.mode.current",
    "persistence_mode": "persistence_mode",
    "ecc_mode": "ecc.mode.current",
    "fabric_state": "fabric.state",
    "addressing_mode": "addressing_mode",
    "pcie_gen_current": "pcie.link.gen.current",
    "pcie_width_current": "pcie.link.width.current",
}


def captures(*kinds):
    """Public captures that lie beside the repository; one skipped test where they do not."""
    index = CAPTURES / "index.jsonl"
    if not index.exists():
        print(f"skipped: no captures at {CAPTURES}")
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no captures at {CAPTURES}"))]
    entries = [json.loads(line) for line in index.read_text().splitlines()]
    return [pytest.param(entry, id=entry["file"]) for entry in entries if entry["file"].split("/")[0] in kinds]


def text_of(entry):
    return (CAPTURES / entry["file"]).read_text(errors="replace")


def fixture(name):
    return (FIXTURES / name).read_text()


def value_at(gpu, path):
    for key in path:
        gpu = gpu[key]
    return gpu


def as_shape(key, values):
    """The index quotes some values as they were printed."""
    if key.startswith("pcie_"):
        return [None if value is None else int(value.rstrip("x")) for value in values]
    return [None if value == "GPU is lost" else value for value in values]


def codes(problems):
    return [item["code"] for item in problems]


def is_query_text(entry):
    return entry["file"].startswith("text/q-")


def described(entry):
    """The host by a capture of -q -x or of -q."""
    text = text_of(entry)
    return judge(_nvidia_smi.read_query_text(text)) if is_query_text(entry) else _nvidia_smi.parse_xml(text)


def query_captures():
    return [
        entry for entry in captures("xml", "text") if not entry.values[0] or "/q-" in entry.id or "xml/" in entry.id
    ]


@pytest.mark.parametrize("entry", query_captures())
def test_query_capture(entry):
    host, expected = described(entry), entry["expected"]
    gpus = host["gpus"]
    assert len(gpus) == expected["gpu_count"]
    assert host["driver_version"] == expected["driver_version"]
    assert host["cuda_driver_version"] == expected["cuda_version"]
    assert host["attached_gpus"] == expected.get("attached_gpus", len(gpus))
    for key in GPU_VALUES.keys() & expected.keys():
        assert [value_at(gpu, GPU_VALUES[key]) for gpu in gpus] == as_shape(key, expected[key]), key
    if "process_mib" in expected:
        used = [[process["used_memory_mib"] for process in gpu["processes"]] for gpu in gpus]
        assert used == expected["process_mib"]
    for gpu, instances in zip(gpus, expected.get("mig_instances", ()), strict=False):
        keys = ("index", "gpu_instance_id", "compute_instance_id", "memory_total_mib", "memory_free_mib")
        found = [[instance[key] for key in keys] for instance in gpu["mig"]["instances"]]
        assert found == [
            [wanted[key] for key in ("index", "gi", "ci", "total_mib", "free_mib")] for wanted in instances
        ]


@pytest.mark.parametrize("entry", query_captures())
def test_query_capture_is_complete(entry):
    """Whatever the generation: a capability, a name, the same keys, and an error where a GPU cannot be used."""
    host = described(entry)
    assert host.keys() == new_host("nvidia-smi").keys()
    for gpu in host["gpus"]:
        assert gpu.keys() == new_gpu(0).keys()
        assert gpu["name"] and gpu["compute_capability"] and gpu["architecture"]
        usable = gpu["memory_total_mib"] is not None or gpu["mig"]["mode"] == "Enabled"
        assert usable or any(error["gpu"] == gpu["index"] for error in host["errors"])


@pytest.mark.parametrize("entry", captures("topo"))
def test_topology_capture(entry):
    found, expected = _nvidia_smi.parse_topology(text_of(entry)), entry["expected"]
    links = found["links"]
    count = len(links)
    assert (count, found["devices"]) == (expected["gpu_count"], expected["devices"])
    assert {f"{i}-{j}": links[i][j] for i in range(count) for j in range(i + 1, count)} == expected["pairs"]
    assert all(links[i][j] == links[j][i] for i in range(count) for j in range(count))
    for key in ("cpu_affinity", "numa_affinity", "gpu_numa_id"):
        wanted = expected[key]
        assert found[key] == (None if wanted == "column absent" else [wanted[str(index)] for index in range(count)])


def csv_fields(entry):
    """None where the capture has a header; else the fields of its command, which may be that of another capture."""
    command = entry["command"] or ""
    if command.startswith("same as "):
        return csv_fields(next(other.values[0] for other in captures("csv") if command[8:] in other.id))
    if "noheader" not in command:
        return None
    return [field for field in command.split("=", 1)[1].split(" ")[0].split(",") if field != "..."]


@pytest.mark.parametrize("entry", captures("csv"))
def test_csv_capture(entry):
    text, expected = text_of(entry), entry["expected"]
    rows = _nvidia_smi.parse_csv(text, csv_fields(entry))
    if "process_rows" in expected:
        used = [row.get("used_memory") or row.get("used_gpu_memory") for row in rows]
        assert [int(value) for value in used] == expected["process_mib"]
        return
    assert len(rows) == expected["gpu_count"]
    for key in CSV_VALUES.keys() & expected.keys():
        found = [row.get(CSV_VALUES[key], row.get("gpu_name") if key == "names" else None) for row in rows]
        assert found == [None if value is None else str(value) for value in expected[key]], key


@pytest.mark.parametrize("entry", captures("text"))
def test_list_capture(entry):
    wanted = entry["expected"].get("mig_profiles")
    if wanted is None:
        pytest.skip("not a capture of nvidia-smi -L")
    gpus = _nvidia_smi.parse_list(text_of(entry))
    assert [gpu["name"] for gpu in gpus] == entry["expected"]["names"]
    assert [[device["profile"] for device in gpu["mig"]] for gpu in gpus] == wanted
    assert all(device["uuid"].startswith("MIG-") for gpu in gpus for device in gpu["mig"])


@pytest.mark.parametrize("entry", captures("errors"))
def test_error_capture(entry):
    """Each is classified, and where nvidia-smi gave it instead of XML the host has an error and no GPU."""
    text = text_of(entry)
    told = classify(text, entry["exit_code"])
    assert told["code"] not in ("nvidia_smi_failed", "nvml_failed")
    assert told["message"] and told["next_step"] and told["evidence"]
    host = _nvidia_smi.parse_xml(text)
    assert host["gpus"] == [] and host["errors"]


# --- our own fixtures ---------------------------------------------------------------------------------------------


def test_unified_memory():
    host = _nvidia_smi.parse_xml(fixture("gb10-unified-memory.xml"))
    gpu = host["gpus"][0]
    assert gpu["memory_total_mib"] is None and gpu["memory_source"] is None
    assert gpu["compute_capability"] == "12.1"
    assert gpu["memory_used_by_others_mib"] == 60211
    assert (codes(host["errors"]), codes(host["notices"])) == ([], ["unified_memory"])


def test_mig_devices_and_a_gpu_without():
    host = _nvidia_smi.parse_xml(fixture("a100-mig-two-modes.xml"))
    first, second = host["gpus"]
    assert [instance["memory_total_mib"] for instance in first["mig"]["instances"]] == [40192, 19968, 19968]
    assert [instance["gpu_instance_id"] for instance in first["mig"]["instances"]] == [2, 5, 5]
    assert second["mig"] == {"mode": "Enabled", "pending_mode": "Disabled", "instances": []}
    assert [process["pid"] for process in first["processes"]] == [3001]
    assert first["processes"][0]["name"] == '/usr/bin/python3 -m serve --name "a & b", --more'
    assert [(error["code"], error["gpu"]) for error in host["errors"]] == [("mig_without_instances", 1)]
    assert codes(host["notices"]) == ["inforom_corrupted"]


def test_query_text_of_a_deprecated_driver_version():
    host = judge(_nvidia_smi.read_query_text(fixture("h100-mig-q.txt")))
    gpu = host["gpus"][0]
    assert (host["driver_version"], host["cuda_driver_version"]) == ("610.10.01", "13.3")
    assert (gpu["memory_total_mib"], gpu["memory_reserved_mib"]) == (81559, 551)
    assert gpu["mig"]["instances"][0]["memory_free_mib"] == 40403
    assert gpu["power"] == {
        "draw_w": 71.25,
        "limit_w": 600.0,
        "default_limit_w": 700.0,
        "min_limit_w": 200.0,
        "max_limit_w": 700.0,
    }
    assert gpu["throttle_reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert gpu["ecc"] == {"mode": "Enabled", "uncorrected_volatile": 2, "uncorrected_aggregate": 3}
    assert gpu["processes"][0]["name"] == "python3 : serve"
    assert gpu["pci_device_id"] == "233010DE"
    assert codes(host["errors"]) == ["fabric_not_ready"]
    assert codes(host["notices"]) == ["reset_pending", "ecc_uncorrectable", "slowed_down"]


def test_topology_with_nics_and_blank_cells():
    found = _nvidia_smi.parse_topology(fixture("topo-3x-nics.txt"))
    assert found["devices"] == ["GPU0", "GPU1", "GPU2", "NIC0", "mlx5_1"]
    assert found["links"] == [["X", "NV12", "SYS"], ["NV12", "X", "PIX"], ["SYS", "PIX", "X"]]
    assert found["cpu_affinity"] == ["0-31,64-95", "0-31,64-95", None]
    assert found["numa_affinity"] == ["0", "0", None]
    assert found["gpu_numa_id"] == ["8", None, None]


def test_topology_of_an_old_driver_and_of_none():
    found = _nvidia_smi.parse_topology("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nGPU1\tSOC\t X \t8-15\n")
    assert found["links"] == [["X", "SYS"], ["SYS", "X"]]
    assert (found["cpu_affinity"], found["numa_affinity"]) == (["0-7", "8-15"], None)
    assert _nvidia_smi.parse_topology("No devices were found\n")["links"] == []


@pytest.mark.parametrize(
    ("cells", "numa"),
    [
        ("0-7\t0\t\tN/A", "0"),
        ("0-7\t\tN/A\t\tN/A", None),
        ("\t3\t\tN/A", "3"),
        ("\t\t\tN/A", None),
    ],
)
def test_surplus_tabs(cells, numa):
    header = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    assert _nvidia_smi.parse_topology(header + "GPU0\t X \t" + cells + "\n")["numa_affinity"] == [numa]


# --- broken XML ---------------------------------------------------------------------------------------------------


def with_clocks(text, clocks):
    return text.replace("</gpu>", f"<supported_clocks>{clocks}</supported_clocks></gpu>", 1)


def test_malformed_supported_clocks_do_not_matter():
    text = with_clocks(fixture("a100-mig-two-modes.xml"), "<supported_mem_clock>5001 MHz<value></supported_mem_clock>")
    assert _nvidia_smi.parse_xml(text) == _nvidia_smi.parse_xml(fixture("a100-mig-two-modes.xml"))


def test_garbage_in_a_process_name_costs_the_name_only():
    text = fixture("gb10-unified-memory.xml").replace("VLLM::EngineCore", "\x00\ufffd\x07<serve")
    host = _nvidia_smi.parse_xml(text)
    assert host["gpus"][0]["name"] == "NVIDIA GB10"
    assert host["driver_version"] == "580.95.05"
    assert codes(host["errors"]) == ["xml_unreadable"]
    control = fixture("gb10-unified-memory.xml").replace("VLLM::EngineCore", "serve\x07\x1b")
    assert _nvidia_smi.parse_xml(control)["gpus"][0]["processes"][0]["name"] == "serve??"


def test_truncated_output_keeps_the_whole_gpus():
    text = fixture("a100-mig-two-modes.xml")
    host = _nvidia_smi.parse_xml(text[: text.index("GPU-bbbbbbbb")])
    assert host["attached_gpus"] == 2
    assert host["gpus"][0]["memory_total_mib"] == 81920
    assert [(error["code"], error["gpu"]) for error in host["errors"]][0] == ("xml_unreadable", 1)


@pytest.mark.parametrize("text", ["", "\n", "<nvidia_smi_log>", "<html></html>", "\x00\xff", "GPU 0: nothing"])
def test_any_text_is_answered(text):
    host = _nvidia_smi.parse_xml(text)
    assert host["gpus"] == []
    assert codes(host["errors"]) == ["xml_unreadable"]
    assert _nvidia_smi.read_query_text(text)["gpus"] == []
    assert _nvidia_smi.parse_list(text) == []


def test_a_state_of_the_whole_gpu():
    text = fixture("gb10-unified-memory.xml").replace("<used>N/A</used>", "<used>[GPU requires reset]</used>")
    host = _nvidia_smi.parse_xml(text)
    assert host["gpus"][0]["state"] == "gpu_requires_reset"
    assert codes(host["errors"]) == ["gpu_requires_reset"]
    assert host["errors"][0]["next_step"].count("-i 0") == 1


def test_tags_of_very_old_drivers_and_a_machine_without_pci():
    host = _nvidia_smi.parse_xml(
        """<?xml version="1.0" ?><nvidia_smi_log><driver_version>319.37</driver_version><attached_gpus>1</attached_gpus>
        <gpu id="N/A"><product_name>Tesla K20m</product_name><uuid>GPU-1</uuid>
        <memory_usage><total>4799 MB</total><used>11 MB</used><free>4788 MB</free></memory_usage>
        <compute_processes><process_info><pid>5</pid><process_name>x</process_name><used_memory>9 MB</used_memory>
        </process_info></compute_processes></gpu></nvidia_smi_log>"""
    )
    gpu = host["gpus"][0]
    assert (gpu["memory_total_mib"], gpu["memory_free_mib"], gpu["compute_capability"]) == (4799, 4788, "3.5")
    assert [process["used_memory_mib"] for process in gpu["processes"]] == [9]
    assert (gpu["pci_bus_id"], host["errors"]) == (None, [])


def test_csv_row_with_commas_in_the_process_name():
    rows = _nvidia_smi.parse_csv("12, python3 a, b, c, 77 MiB\nno rows here\n", ("pid", "process_name", "used_memory"))
    assert rows == [{"pid": "12", "process_name": "python3 a, b, c", "used_memory": "77"}]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated NVIDIA driver of the lab: its library and its nvidia-smi tell the same, and what real ones tell."""

from __future__ import annotations

import ast
import copy
import csv
import importlib.util
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
DRIVER = REPOSITORY / "roles" / "lab" / "files" / "driver"
PROFILES = DRIVER / "profiles"
CAPTURES = REPOSITORY.parent / "shared" / "data" / "nvidia_smi" / "xml"

#: Profiles whose driver starts and whose nvidia-smi prints a table.
ANSWERING = ("a100-2x", "gb10", "h100-8x", "l40s-4x", "lost-query", "mig", "shared", "t4-1x", "t4-535")

#: Asks through nvidia-ml-py, prints JSON. None: not supported; a negative number: another NVML error.
PROBE = """
import json, sys
import pynvml as n

def ask(function, *arguments):
    try:
        value = function(*arguments)
    except n.NVMLError as error:
        return None if error.value == n.NVML_ERROR_NOT_SUPPORTED else -error.value
    return value.decode() if isinstance(value, bytes) else value

def mib(memory):
    if not hasattr(memory, "total"):
        return memory
    return {key: getattr(memory, key) // 2**20 for key in ("total", "reserved", "used", "free") if hasattr(memory, key)}

def processes(handle):
    kinds = n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetGraphicsRunningProcesses
    found = ask(lambda: [process for kind in kinds for process in kind(handle)])
    return [[p.pid, p.usedGpuMemory // 2**20] for p in found] if isinstance(found, list) else found

def mig_devices(handle):
    result = []
    for index in range(ask(n.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            mig = n.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except n.NVMLError:
            break
        result.append({
            "name": ask(n.nvmlDeviceGetName, mig), "uuid": ask(n.nvmlDeviceGetUUID, mig),
            "memory": mib(n.nvmlDeviceGetMemoryInfo(mig, n.nvmlMemory_v2)),
            "gpu_instance_id": n.nvmlDeviceGetGpuInstanceId(mig), "processes": processes(mig),
            "parent": ask(n.nvmlDeviceGetUUID, n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)),
            "memory_mib": n.nvmlDeviceGetAttributes(mig).memorySizeMB,
        })
    return result

def fabric(handle):
    info = n.c_nvmlGpuFabricInfo_v3_t()
    error = ask(n.nvmlDeviceGetGpuFabricInfoV, handle, n.byref(info))
    return error or [info.state, info.status, info.healthSummary]

def nvlinks(handle):
    links = []
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        if ask(n.nvmlDeviceGetNvLinkState, handle, link) != 1:
            break
        remote = ask(n.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        links.append([ask(n.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link), remote.busId])
    return links

def gpu(handle):
    words = ask(n.nvmlDeviceGetCpuAffinity, handle, 8)
    return {
        "uuid": ask(n.nvmlDeviceGetUUID, handle), "name": ask(n.nvmlDeviceGetName, handle),
        "serial": ask(n.nvmlDeviceGetSerial, handle), "minor": ask(n.nvmlDeviceGetMinorNumber, handle),
        "bus_id": ask(n.nvmlDeviceGetPciInfo, handle).busId, "legacy": mib(ask(n.nvmlDeviceGetMemoryInfo, handle)),
        "memory": mib(ask(n.nvmlDeviceGetMemoryInfo, handle, n.nvmlMemory_v2)),
        "compute_capability": ask(n.nvmlDeviceGetCudaComputeCapability, handle),
        "architecture": ask(n.nvmlDeviceGetArchitecture, handle), "processes": processes(handle),
        "persistence": ask(n.nvmlDeviceGetPersistenceMode, handle), "ecc": ask(n.nvmlDeviceGetEccMode, handle),
        "mig": ask(n.nvmlDeviceGetMigMode, handle), "mig_devices": mig_devices(handle),
        "pcie": [ask(f, handle) for f in (n.nvmlDeviceGetCurrPcieLinkGeneration, n.nvmlDeviceGetMaxPcieLinkGeneration,
                                          n.nvmlDeviceGetCurrPcieLinkWidth, n.nvmlDeviceGetMaxPcieLinkWidth)],
        "power_limit": ask(n.nvmlDeviceGetPowerManagementLimit, handle),
        "power": ask(n.nvmlDeviceGetPowerUsage, handle),
        "temperature": ask(n.nvmlDeviceGetTemperature, handle, 0),
        "clocks": [ask(n.nvmlDeviceGetClockInfo, handle, kind) for kind in (0, 1, 2)],
        "max_clocks": [ask(n.nvmlDeviceGetMaxClockInfo, handle, kind) for kind in (0, 1, 2)],
        "reasons": ask(n.nvmlDeviceGetCurrentClocksEventReasons, handle),
        "remapped_rows": ask(n.nvmlDeviceGetRemappedRows, handle), "fabric": fabric(handle), "nvlinks": nvlinks(handle),
        "cpus": [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]
        if not isinstance(words, int) else words,
        "memory_node": ask(lambda: list(n.nvmlDeviceGetMemoryAffinity(handle, 1, 0))),
        "numa_node_id": ask(n.nvmlDeviceGetNumaNodeId, handle),
        "utilization": ask(lambda: n.nvmlDeviceGetUtilizationRates(handle).gpu),
    }

try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps({"error": error.value}))
    sys.exit()
count = n.nvmlDeviceGetCount()
handles = [ask(n.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
good = [h for h in handles if not isinstance(h, int)]
print(json.dumps({
    "driver": n.nvmlSystemGetDriverVersion(), "nvml": n.nvmlSystemGetNVMLVersion(),
    "cuda": n.nvmlSystemGetCudaDriverVersion(), "gpus": [h if isinstance(h, int) else gpu(h) for h in handles],
    "by_uuid": [ask(n.nvmlDeviceGetIndex, n.nvmlDeviceGetHandleByUUID(ask(n.nvmlDeviceGetUUID, h))) for h in good],
    "by_bus": [n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(h).busId.encode()))
               for h in good],
    "unknown_uuid": ask(n.nvmlDeviceGetHandleByUUID, b"GPU-none"),
    "ancestors": [[ask(n.nvmlDeviceGetTopologyCommonAncestor, a, b) for b in good] for a in good],
    "p2p_nvlink": [[ask(n.nvmlDeviceGetP2PStatus, a, b, n.NVML_P2P_CAPS_INDEX_NVLINK) for b in good if b is not a]
                   for a in good],
}))
n.nvmlShutdown()
"""


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A root file system with the driver installed."""
    for command in ("make", "gcc"):
        if not shutil.which(command):
            pytest.skip(f"{command} is not here: the simulated driver cannot be built")
    folder = tmp_path_factory.mktemp("driver")
    command = ["make", "-s", "-C", str(DRIVER), f"BUILD={folder}/build", f"DESTDIR={folder}/root", "CFLAGS=-O1 -Werror"]
    subprocess.run([*command, "install"], check=True)
    return folder / "root"


class Host:
    """A host with one profile."""

    def __init__(self, root, folder, profile):
        self.root = root
        self.data = json.loads((PROFILES / f"{profile}.json").read_text()) if isinstance(profile, str) else profile
        self.path = folder / "profile"
        self.visible = folder / "visible-devices"
        self.allocations = folder / "allocations"
        self.write()

    def write(self):
        self.path.write_text(json.dumps(self.data))

    @property
    def environment(self):
        return {
            **os.environ,
            "GPUFLEET_DRIVER_PROFILE": str(self.path),
            "GPUFLEET_DRIVER_VISIBLE": str(self.visible),
            "GPUFLEET_DRIVER_ALLOCATIONS": str(self.allocations),
            "GPUFLEET_DRIVER_LIBRARY": str(self.root / "usr/lib/gpufleet-driver"),
            "LD_LIBRARY_PATH": str(next(self.root.glob("usr/lib*/**/libnvidia-ml.so.1")).parent),
        }

    def smi(self, *arguments, timeout=60):
        command = [str(self.root / "usr/bin/nvidia-smi"), *arguments]
        return subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, timeout=timeout, check=False
        )

    def rows(self, *fields, query="gpu"):
        """Rows of --query-gpu: dictionaries of texts without units."""
        result = self.smi(f"--query-{query}={','.join(fields)}", "--format=csv,noheader,nounits")
        assert result.returncode == 0, result.stdout
        lines = csv.reader(io.StringIO(result.stdout), skipinitialspace=True)
        return [dict(zip(fields, line, strict=True)) for line in lines]

    def xml(self):
        result = self.smi("-q", "-x")
        assert result.returncode == 0, result.stdout
        return ElementTree.fromstring(without_doctype(result.stdout))

    def nvml(self, timeout=60):
        if importlib.util.find_spec("pynvml") is None:
            pytest.skip("nvidia-ml-py is not installed: the library is not asked")
        command = [sys.executable, "-c", PROBE]
        result = subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True
        )
        return json.loads(result.stdout)


@pytest.fixture
def host(root, tmp_path):
    return lambda profile: Host(root, tmp_path, profile)


def without_doctype(text):
    return re.sub(r"<!DOCTYPE[^>]*>", "", text.lstrip())


def number(text):
    """The number in a cell, None for [N/A], the words otherwise."""
    if text in ("N/A", "[N/A]"):
        return None
    try:
        return float(text)
    except ValueError:
        return text.strip("[]")


def expected(value):
    """What nvidia-smi prints for what the probe reports."""
    if isinstance(value, int) and value < 0:
        return {-15: "GPU is lost"}[value]
    return value


# ---- the library and nvidia-smi agree ----


@pytest.mark.parametrize("profile", ANSWERING)
def test_identity_agrees(host, profile):
    machine = host(profile)
    nvml, tree = machine.nvml(), machine.xml()
    rows = machine.rows("index", "uuid", "name", "serial", "pci.bus_id", "compute_cap", "driver_version", "count")
    assert len(nvml["gpus"]) == len(machine.data["gpus"]) == len(rows) == len(tree.findall("gpu"))
    assert tree.findtext("attached_gpus") == str(len(rows))
    assert tree.findtext("driver_version") == nvml["driver"] == machine.data["driver"]["version"]
    major, minor = tree.findtext("cuda_version").split(".")
    assert nvml["cuda"] == int(major) * 1000 + int(minor) * 10
    assert nvml["nvml"].endswith(nvml["driver"])
    for gpu, row, element in zip(nvml["gpus"], rows, tree.findall("gpu"), strict=True):
        assert (gpu["uuid"], gpu["name"]) == (row["uuid"], row["name"])
        assert (gpu["uuid"], gpu["name"]) == (element.findtext("uuid"), element.findtext("product_name"))
        assert gpu["bus_id"] == row["pci.bus_id"] == element.get("id")
        assert ".".join(map(str, gpu["compute_capability"])) == row["compute_cap"]
        assert str(gpu["minor"]) == element.findtext("minor_number")
    assert nvml["by_uuid"] == nvml["by_bus"] == list(range(len(rows)))
    assert nvml["unknown_uuid"] == -6
    listed = re.findall(r"^GPU (\d+): (.*) \(UUID: (.*)\)$", machine.smi("-L").stdout, re.MULTILINE)
    assert listed == [(row["index"], row["name"], row["uuid"]) for row in rows]


@pytest.mark.parametrize("profile", ANSWERING)
def test_memory_agrees(host, profile):
    machine = host(profile)
    rows = machine.rows("memory.total", "memory.reserved", "memory.used", "memory.free")
    for gpu, row, element in zip(machine.nvml()["gpus"], rows, machine.xml().findall("gpu"), strict=True):
        printed = {name.split(".")[1]: number(text) for name, text in row.items()}
        tagged = {tag.tag: number(tag.text.replace(" MiB", "")) for tag in element.find("fb_memory_usage")}
        assert tagged == printed
        if isinstance(gpu["memory"], dict):
            assert printed == gpu["memory"]
            assert gpu["memory"]["total"] == sum(gpu["memory"][key] for key in ("reserved", "used", "free"))
            assert gpu["legacy"]["used"] == gpu["memory"]["used"] + gpu["memory"]["reserved"]
        else:
            assert set(printed.values()) == {expected(gpu["memory"])}


#: Field of nvidia-smi -> value of the probe.
MEASURED = {
    "pcie.link.gen.current": lambda gpu: gpu["pcie"][0],
    "pcie.link.gen.max": lambda gpu: gpu["pcie"][1],
    "pcie.link.width.current": lambda gpu: gpu["pcie"][2],
    "pcie.link.width.max": lambda gpu: gpu["pcie"][3],
    "temperature.gpu": lambda gpu: gpu["temperature"],
    "clocks.sm": lambda gpu: gpu["clocks"][1],
    "clocks.mem": lambda gpu: gpu["clocks"][2],
    "clocks.max.sm": lambda gpu: gpu["max_clocks"][1],
    "utilization.gpu": lambda gpu: gpu["utilization"],
}


@pytest.mark.parametrize("profile", ANSWERING)
def test_measurements_agree(host, profile):
    machine = host(profile)
    rows = machine.rows(*MEASURED, "power.draw", "power.limit", "clocks_event_reasons.active")
    for gpu, row in zip(machine.nvml()["gpus"], rows, strict=True):
        assert {field: number(row[field]) for field in MEASURED} == {
            field: expected(value(gpu)) for field, value in MEASURED.items()
        }
        for field, key in (("power.draw", "power"), ("power.limit", "power_limit")):
            watts = number(row[field])
            assert (round(watts * 1000) if isinstance(watts, float) else watts) == expected(gpu[key])
        if isinstance(gpu["reasons"], int) and gpu["reasons"] >= 0:
            assert int(row["clocks_event_reasons.active"], 16) == gpu["reasons"]


@pytest.mark.parametrize("profile", ANSWERING)
def test_modes_agree(host, profile):
    machine = host(profile)
    fields = ("persistence_mode", "ecc.mode.current", "mig.mode.current", "remapped_rows.uncorrectable")
    words = {None: "[N/A]", 0: "Disabled", 1: "Enabled"}
    for gpu, row in zip(machine.nvml()["gpus"], machine.rows(*fields), strict=True):
        assert row["persistence_mode"] == words[gpu["persistence"]]
        assert row["ecc.mode.current"] == words[gpu["ecc"] and gpu["ecc"][0]]
        assert row["mig.mode.current"] == words[gpu["mig"] and gpu["mig"][0]]
        rows = gpu["remapped_rows"]
        assert number(row["remapped_rows.uncorrectable"]) == (rows[1] if isinstance(rows, list) else expected(rows))


@pytest.mark.parametrize("profile", ["shared", "gb10", "mig"])
def test_processes_agree(host, profile):
    machine = host(profile)
    gpus, elements = machine.nvml()["gpus"], machine.xml().findall("gpu")
    for gpu, element in zip(gpus, elements, strict=True):
        tagged = [
            [int(process.findtext("pid")), int(process.findtext("used_memory").split()[0])]
            for process in element.iter("process_info")
        ]
        assert sorted(tagged) == sorted(gpu["processes"])
    assert any(gpu["processes"] for gpu in gpus)
    apps = machine.rows("gpu_uuid", "pid", "process_name", "used_memory", query="compute-apps")
    compute = [p for gpu in machine.data["gpus"] for p in gpu.get("processes", []) if "C" in p["type"]]
    assert [row["pid"] for row in apps] == [str(process["pid"]) for process in compute]


LEVELS = {"X": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


@pytest.mark.parametrize("profile", [name for name in ANSWERING if name != "lost-query"])
def test_topology_agrees(host, profile):
    machine = host(profile)
    nvml = machine.nvml()
    lines = machine.smi("topo", "-m").stdout.splitlines()
    assert lines[0].startswith("\t\x1b[4mGPU0") and lines[0].endswith("\x1b[0m")
    count = len(nvml["gpus"])
    for row in range(count):
        cells = [cell.strip() for cell in lines[1 + row].split("\t")]
        for column in range(count):
            text, level = cells[1 + column], nvml["ancestors"][row][column]
            assert text.startswith("NV") or LEVELS[text] == level
        linked = [text.startswith("NV") for column, text in enumerate(cells[1 : 1 + count]) if column != row]
        assert linked == [status == 0 for status in nvml["p2p_nvlink"][row]]
        gpu = nvml["gpus"][row]
        assert gpu["cpus"] == [cpu for part in cells[-4].split(",") for cpu in cpu_range(part)]
        assert gpu["memory_node"] == [1 << int(cells[-3])]
        assert gpu["numa_node_id"] is None


def cpu_range(text):
    first, _dash, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def test_nvlinks_end_at_the_peer_or_at_a_switch(host):
    first, second = host("a100-2x").nvml()["gpus"]
    assert first["nvlinks"] == [[0, second["bus_id"]]] * 12
    switched = host("h100-8x")
    for gpu in switched.nvml()["gpus"]:
        assert len(gpu["nvlinks"]) == 18
        assert {end for _kind, end in gpu["nvlinks"]} == set(switched.data["nvswitches"])
        assert {kind for kind, _end in gpu["nvlinks"]} == {2}
        assert gpu["fabric"] == [3, 0, 1]
    assert host("l40s-4x").nvml()["gpus"][0]["nvlinks"] == []


def test_fabric_that_the_manager_has_not_set_up(host):
    machine = host("h100-8x")
    machine.data["gpu_defaults"]["fabric"] = {"state": "In Progress"}
    machine.write()
    assert machine.nvml()["gpus"][0]["fabric"][0] == 2
    assert machine.xml().findtext("gpu/fabric/state") == "In Progress"
    assert machine.rows("fabric.state", "fabric.cliqueId")[0] == {
        "fabric.state": "In Progress",
        "fabric.cliqueId": "N/A",
    }


def test_mig_devices_agree(host):
    machine = host("mig")
    nvml, tree = machine.nvml(), machine.xml()
    devices = nvml["gpus"][0]["mig_devices"]
    tagged = tree.findall("gpu")[0].findall("mig_devices/mig_device")
    listed = re.findall(r"^  MIG (\S+) +Device +(\d+): \(UUID: (MIG-.*)\)$", machine.smi("-L").stdout, re.MULTILINE)
    assert len(devices) == len(tagged) == len(listed) == 3
    for index, (device, element, line) in enumerate(zip(devices, tagged, listed, strict=True)):
        assert (device["name"].split("MIG ")[1], str(index), device["uuid"]) == line
        assert str(device["gpu_instance_id"]) == element.findtext("gpu_instance_id")
        assert element.findtext("fb_memory_usage/used") == f"{device['memory']['used']} MiB"
        assert element.findtext("fb_memory_usage/total") == f"{device['memory']['total']} MiB"
        assert device["memory_mib"] == device["memory"]["total"]
        assert device["parent"] == nvml["gpus"][0]["uuid"]
    assert [len(device["processes"]) for device in devices] == [0, 1, 0]
    assert nvml["gpus"][1]["mig"] == [1, 1] and nvml["gpus"][1]["mig_devices"] == []
    assert tree.findall("gpu")[1].findtext("mig_devices").strip() == "None"


# ---- a host that changes, a container that sees a part ----


def test_foreign_process_takes_memory_while_the_host_runs(host):
    machine = host("a100-2x")
    before = machine.nvml()["gpus"][1]["memory"]["free"]
    machine.data["gpus"][1]["processes"] = [{"pid": 4711, "name": "python", "used_memory_mib": 30000}]
    machine.write()
    gpu = machine.nvml()["gpus"][1]
    assert gpu["memory"]["free"] == before - 30000
    assert gpu["processes"] == [[4711, 30000]]
    assert machine.rows("memory.free")[1] == {"memory.free": str(before - 30000)}


#: Holds memory as the replay engine does, until it is killed.
HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from gpufleet_replay.allocation import Allocation
allocation = Allocation(sys.argv[2], "VLLM::EngineCore", float(sys.argv[4]))
allocation.hold({sys.argv[3]: 30000})
print("held", flush=True)
sys.stdin.read()
allocation.close()
"""


@pytest.fixture
def engine():
    """Starts an engine that holds memory of a GPU."""
    started = []

    def start(machine, uuid, release_seconds=0.0):
        machine.allocations.mkdir(exist_ok=True)
        command = [sys.executable, "-c", HOLDER, str(DRIVER.parent / "replay"), str(machine.allocations), uuid]
        process = subprocess.Popen([*command, str(release_seconds)], stdin=-1, stdout=-1, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def told(machine):
    """What library and nvidia-smi tell of the second GPU: used memory and processes; they must agree."""
    gpu, row = machine.nvml()["gpus"][1], machine.rows("memory.used")[1]
    listed = [int(process.findtext("pid")) for process in machine.xml().findall("gpu")[1].iter("process_info")]
    assert [gpu["memory"]["used"], [pid for pid, _used in gpu["processes"]]] == [int(row["memory.used"]), listed]
    return gpu["memory"]["used"], gpu["processes"]


@pytest.mark.parametrize("end", ["kill", "close"])
def test_an_engine_holds_memory_until_it_ends_however_it_does(host, engine, end):
    machine = host("a100-2x")
    uuid = machine.data["gpus"][1]["uuid"]
    machine.data["gpus"][1]["processes"] = [{"pid": 4711, "name": "python", "used_memory_mib": 1000}]
    machine.write()
    process = engine(machine, uuid)
    assert told(machine) == (31000, [[4711, 1000], [process.pid, 30000]])
    machine.visible.write_text(uuid + "\n")
    assert machine.nvml()["gpus"][0]["memory"]["used"] == 31000
    machine.visible.unlink()
    if end == "kill":
        process.kill()
    process.communicate()
    assert told(machine) == (1000, [[4711, 1000]])


def test_memory_that_is_released_late_is_in_use_by_nobody(host, engine):
    machine = host("a100-2x")
    process = engine(machine, machine.data["gpus"][1]["uuid"], release_seconds=5.0)
    process.kill()
    process.communicate()
    assert told(machine) == (30000, [])
    (file,) = machine.allocations.iterdir()
    os.utime(file, (0, file.stat().st_mtime - 5.0))
    assert told(machine) == (0, [])


def test_a_file_that_is_no_allocation_is_passed_over(host):
    machine = host("a100-2x")
    machine.allocations.mkdir()
    (machine.allocations / "empty").write_text("")
    (machine.allocations / "other").write_text('{"release_seconds": 60, "gpus": {"GPU-none": 1}}')
    assert told(machine) == (0, [])


@pytest.mark.parametrize(("shown", "count"), [([1], 1), ([1, 0], 2), ([], 0)])
def test_container_sees_its_devices_only(host, shown, count):
    machine = host("a100-2x")
    machine.data["gpus"][1]["processes"] = [{"pid": 4711, "name": "python", "used_memory_mib": 30000}]
    machine.write()
    uuids = [machine.data["gpus"][index]["uuid"] for index in shown]
    machine.visible.write_text("".join(uuid + "\n" for uuid in uuids))
    gpus = machine.nvml()["gpus"]
    assert sorted(gpu["uuid"] for gpu in gpus) == sorted(uuids)
    assert len(gpus) == count
    if not count:
        assert (machine.smi().returncode, machine.smi().stdout) == (6, "No devices were found\n")
        return
    assert [row["uuid"] for row in machine.rows("uuid")] == [gpu["uuid"] for gpu in gpus]
    assert gpus[-1]["memory"]["used"] == 30000 and gpus[-1]["processes"] == []
    assert not list(machine.xml().iter("process_info"))


def test_container_with_one_mig_device(host):
    machine = host("mig")
    mig = machine.data["gpus"][0]["mig"]["devices"][1]
    machine.visible.write_text(mig["uuid"] + "\n")
    (gpu,) = machine.nvml()["gpus"]
    assert [device["uuid"] for device in gpu["mig_devices"]] == [mig["uuid"]]
    assert machine.smi("-L").stdout.count("MIG-") == 1


# ---- what goes wrong ----


def test_lost_gpu_spoils_the_table_and_not_the_others(host):
    machine = host("lost")
    good, lost = machine.nvml()["gpus"]
    assert good["memory"]["total"] == 46068
    assert lost == -15
    for arguments in ((), ("-q", "-x"), ("-L",), ("--query-gpu=uuid", "--format=csv")):
        result = machine.smi(*arguments)
        assert result.returncode == 15
        assert result.stdout == (
            "Unable to determine the device handle for GPU1: 0000:41:00.0: GPU is lost."
            "  Reboot the system to recover this GPU\n"
        )
    assert good["name"] in machine.smi("-i", "0", "-L").stdout


def test_gpu_that_is_lost_after_it_was_opened(host):
    machine = host("lost-query")
    good, lost = machine.nvml()["gpus"]
    assert isinstance(good["memory"], dict)
    assert (lost["memory"], lost["temperature"], lost["processes"]) == (-15, -15, -15)
    assert lost["uuid"] == machine.data["gpus"][1]["uuid"]
    assert machine.xml().findall("gpu")[1].findtext("remapped_rows") == "GPU is lost"
    assert machine.rows("memory.used")[1] == {"memory.used": "[GPU is lost]"}
    assert "ERR!" in machine.smi().stdout


@pytest.mark.parametrize(
    ("driver", "code", "text"),
    [
        ({"state": "not_loaded"}, 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ({"state": "unknown"}, 999, "Failed to initialize NVML: Unknown Error\n"),
        ({"state": "no_permission"}, 4, "Failed to initialize NVML: Insufficient Permissions\n"),
    ],
)
def test_driver_that_does_not_start(host, driver, code, text):
    machine = host("t4-1x")
    machine.data["driver"].update(driver)
    machine.write()
    assert machine.nvml() == {"error": code}
    result = machine.smi()
    assert result.returncode == min(code, 255)
    assert result.stdout.startswith(text)


def test_library_and_kernel_module_of_different_versions(host):
    machine = host("mismatch")
    assert machine.nvml() == {"error": 18}
    result = machine.smi("-q", "-x")
    assert result.returncode == 18
    assert (
        result.stdout == "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133\n"
    )


def test_host_without_a_profile_has_no_driver(host):
    machine = host("t4-1x")
    machine.path.unlink()
    assert machine.nvml() == {"error": 9}
    assert machine.smi().returncode == 9


def test_profile_that_is_not_json_is_no_driver(host):
    machine = host("t4-1x")
    machine.path.write_text('{"driver": {"version": "580.95.05"')
    assert machine.nvml() == {"error": 9}
    assert machine.smi().returncode == 9


def test_driver_that_hangs(host):
    machine = host("hang")
    for ask in (machine.smi, machine.nvml):
        with pytest.raises(subprocess.TimeoutExpired):
            ask(timeout=1)


def test_value_that_fails_by_itself(host):
    machine = host("mig")
    machine.data["gpus"][0]["memory"] = {"error": "no_permission"}
    machine.write()
    gpu = machine.nvml()["gpus"][0]
    assert gpu["memory"] == -4 and gpu["temperature"] > 0
    assert machine.rows("memory.total")[0] == {"memory.total": "[Insufficient Permissions]"}
    assert machine.xml().findtext("gpu/fb_memory_usage/total") == "Insufficient Permissions"


def test_wrong_arguments(host):
    machine = host("t4-535")
    for argument, text in (
        ("--query-gpu=index,cuda_version", 'Field "cuda_version" is not a valid field to query.\n\n'),
        ("--query-gpu=kmd_version", 'Field "kmd_version" is not a valid field to query.\n\n'),
    ):
        result = machine.smi(argument, "--format=csv")
        assert (result.returncode, result.stdout) == (2, text)
    assert machine.smi("--query-gpu=index").returncode == 2
    assert machine.smi("--no-such-option").returncode == 2
    assert machine.smi("topo", "-m", "-i", "0").returncode == 2
    assert machine.smi("-i", "7", "-L").stdout == "No devices were found\n"


def test_headings_and_units(host):
    result = host("t4-1x").smi("--query-gpu=gpu_name,memory.total,fan.speed,clocks.sm", "--format=csv")
    assert result.stdout == (
        "name, memory.total [MiB], fan.speed [%], clocks.current.sm [MHz]\nTesla T4, 15360 MiB, [N/A], 300 MHz\n"
    )


def test_older_driver_lacks_newer_functions(host):
    assert host("t4-535").nvml()["gpus"][0]["fabric"] == -13
    assert host("t4-1x").nvml()["gpus"][0]["fabric"] == [0, 0, 0]


# ---- the XML has the tags of real ones ----


def tag_paths(element, prefix=""):
    """Paths of all tags below, in order, each once."""
    paths = []
    for child in element:
        path = f"{prefix}/{child.tag}"
        paths += [path, *tag_paths(child, path)]
    return list(dict.fromkeys(paths))


def captured():
    """XML of real Linux drivers that lies beside the repository; one skipped test where it does not."""
    trees = []
    for path in sorted(CAPTURES.glob("*.xml")):
        tree = ElementTree.fromstring(without_doctype(path.read_text()))
        version = tree.findtext("driver_version") or "0"
        windows = tree.findtext("gpu/driver_model/current_dm") not in ("N/A", None)
        if int(version.split(".")[0]) >= 460 and not windows and "mocknvml" not in path.name:
            trees.append(pytest.param(tree, id=path.stem))
    if not trees:
        print(f"no captures of nvidia-smi -q -x in {CAPTURES}: their tags are not compared")
    return trees or [pytest.param(None, marks=pytest.mark.skip(reason=f"no captures in {CAPTURES}"))]


def like(tree):
    """A profile that has what the captured GPU has."""
    profile = json.loads((PROFILES / "a100-2x.json").read_text())
    profile["driver"]["version"] = tree.findtext("driver_version")
    gpu, defaults = tree.find("gpu"), profile["gpu_defaults"]
    defaults["architecture"] = gpu.findtext("product_architecture") or "Volta"
    if not len(gpu.find("remapped_rows")):
        defaults["remapped_rows"] = None
    if not len(gpu.find("supported_clocks")):
        defaults["max_clocks"] = None
    if len(gpu.find("processes")):
        defaults["processes"] = [{"pid": 1, "name": "python", "used_memory_mib": 1}]
    return profile


@pytest.mark.parametrize("tree", captured())
def test_tags_are_those_of_the_real_driver(host, tree):
    real = [path for path in tag_paths(tree.find("gpu")) if "/accounted_process_info" not in path]
    simulated = host(like(tree)).xml()
    assert tag_paths(simulated.find("gpu")) == real
    heads = [child.tag for child in tree if child.tag != "gpu"]
    assert [child.tag for child in simulated if child.tag != "gpu"] == heads


@pytest.mark.parametrize(
    ("version", "schema"), [("470.223.02", 11), ("535.183.01", 12), ("575.57.08", 12), ("580.95.05", 13)]
)
def test_schema_follows_the_driver(host, version, schema):
    machine = host("t4-1x")
    machine.data["driver"]["version"] = version
    machine.write()
    assert f'"nvsmi_device_v{schema}.dtd"' in machine.smi("-q", "-x").stdout


# ---- the container runtime ----


@pytest.fixture
def bundle(tmp_path):
    """An OCI bundle, and a runc that says how it was called."""
    folder = tmp_path / "bundle"
    (folder / "rootfs/usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    runc = tmp_path / "bin" / "runc"
    runc.parent.mkdir()
    runc.write_text('#!/bin/sh\necho runc "$@"\n')
    runc.chmod(runc.stat().st_mode | stat.S_IXUSR)
    return folder


class Container:
    """Runs the runtime for one container, as containerd's shim does."""

    def __init__(self, machine, bundle, *environment):
        self.bundle = bundle
        config = {"root": {"path": "rootfs"}, "process": {"env": ["PATH=/usr/bin", *environment]}, "mounts": []}
        (bundle / "config.json").write_text(json.dumps(config))
        arguments = ["--root", "/run/x", "--log", str(bundle / "log.json"), "--log-format", "json", "create"]
        self.arguments = [*arguments, "--bundle", str(bundle), "--pid-file", str(bundle / "init.pid"), "id"]
        path = f"{bundle.parent / 'bin'}:{os.environ['PATH']}"
        self.result = subprocess.run(
            [str(machine.root / "usr/bin/nvidia-container-runtime"), *self.arguments],
            env={**machine.environment, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def mounts(self):
        config = json.loads((self.bundle / "config.json").read_text())
        return {mount["destination"]: mount for mount in config["mounts"]}

    @property
    def visible(self):
        return (self.bundle / "gpufleet-visible-devices").read_text().split()

    @property
    def started(self):
        return self.result.returncode == 0 and self.result.stdout.split() == ["runc", *self.arguments]


def choices(data):
    first, second = (gpu["uuid"] for gpu in data["gpus"])
    return {"all": [first, second], "1": [second], "0,1": [first, second], second: [second], "none": []}


def test_runtime_gives_the_chosen_devices(host, bundle):
    machine = host("a100-2x")
    for wanted, uuids in choices(machine.data).items():
        container = Container(machine, bundle, "NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_VISIBLE_DEVICES={wanted}")
        assert container.started
        assert container.visible == uuids
        mount = container.mounts["/run/gpufleet-driver/visible-devices"]
        assert mount["source"] == str(bundle / "gpufleet-visible-devices")
        assert {"rbind", "ro"} <= set(mount["options"])
        shared = container.mounts["/run/gpufleet-driver/allocations"]
        assert shared["source"] == str(machine.allocations)
        assert {"rbind", "rw"} <= set(shared["options"])
        assert machine.allocations.stat().st_mode & 0o7777 == 0o1777


def test_runtime_gives_mig_devices(host, bundle):
    machine = host("mig")
    devices = machine.data["gpus"][0]["mig"]["devices"]
    assert Container(machine, bundle, "NVIDIA_VISIBLE_DEVICES=0:2").visible == [devices[2]["uuid"]]
    wanted = f"NVIDIA_VISIBLE_DEVICES={devices[0]['uuid']}"
    assert Container(machine, bundle, wanted).visible == [devices[0]["uuid"]]


@pytest.mark.parametrize("environment", [(), ("NVIDIA_VISIBLE_DEVICES=void",), ("NVIDIA_VISIBLE_DEVICES=",)])
def test_runtime_leaves_other_containers_alone(host, bundle, environment):
    container = Container(host("a100-2x"), bundle, *environment)
    assert container.started
    assert container.mounts == {}


@pytest.mark.parametrize(
    ("profile", "wanted", "message"),
    [
        ("a100-2x", "7", "device error: 7: unknown device"),
        ("a100-2x", "0,GPU-none", "device error: GPU-none: unknown device"),
        ("mismatch", "all", "initialization error: nvml error: driver/library version mismatch"),
        ("lost", "0", "detection error: nvml error: gpu is lost"),
    ],
)
def test_runtime_refuses_as_the_real_hook_does(host, bundle, profile, wanted, message):
    container = Container(host(profile), bundle, f"NVIDIA_VISIBLE_DEVICES={wanted}")
    assert container.result.returncode == 1
    assert container.result.stdout == ""
    entry = json.loads((bundle / "log.json").read_text())
    assert entry["level"] == "error"
    assert entry["msg"].endswith(f"nvidia-container-cli: {message}")


@pytest.fixture
def runtime(monkeypatch):
    """The module, to point its places elsewhere."""
    monkeypatch.syspath_prepend(str(DRIVER))
    return importlib.import_module("gpufleet_driver.container_runtime")


def test_runtime_mounts_the_driver_and_what_the_lab_shares(runtime, monkeypatch, root, bundle, tmp_path):
    shared = tmp_path / "environment"
    shared.mkdir()
    (tmp_path / "mounts").write_text(f"# vLLM\n{shared} /opt/vllm\n{tmp_path}/absent /opt/absent\n")
    monkeypatch.setattr(runtime, "EXTRA_MOUNTS", str(tmp_path / "mounts"))
    monkeypatch.setattr(runtime, "PACKAGE", str(root / "usr/lib/gpufleet-driver"))
    monkeypatch.setenv("GPUFLEET_DRIVER_ALLOCATIONS", str(tmp_path / "allocations"))
    mounts = {mount["destination"]: mount for mount in runtime.mounts(str(bundle), str(bundle / "rootfs"))}
    assert mounts["/opt/vllm"]["source"] == str(shared)
    assert "/opt/absent" not in mounts
    assert mounts[str(root / "usr/lib/gpufleet-driver")]["type"] == "bind"
    assert runtime._library_directory(str(bundle / "rootfs")) == "/usr/lib/x86_64-linux-gnu"
    del mounts["/run/gpufleet-driver/allocations"]
    assert all("ro" in mount["options"] for mount in mounts.values())


def test_toolkit_tells_its_version(host, root):
    machine = host("a100-2x")
    machine.data["driver"]["container_toolkit_version"] = "1.19.0"
    machine.write()
    for command, text in (("nvidia-ctk", "CLI version 1.19.0"), ("nvidia-container-cli", "cli-version: 1.19.0")):
        path = str(root / "usr/bin" / command)
        assert (
            text
            in subprocess.run([path, "--version"], env=machine.environment, stdout=-1, text=True, check=True).stdout
        )
    assert (
        subprocess.run([str(root / "usr/bin/nvidia-container-runtime-hook"), "prestart"], check=False).returncode == 0
    )


# ---- profiles and files ----


def test_every_profile_is_tested_and_no_two_gpus_are_the_same():
    profiles = {path.stem: json.loads(path.read_text()) for path in PROFILES.glob("*.json")}
    assert set(profiles) == {*ANSWERING, "lost", "mismatch", "hang"}
    uuids = [gpu["uuid"] for profile in profiles.values() for gpu in profile["gpus"]]
    assert len(uuids) == len(set(uuids))
    for name, profile in profiles.items():
        links = profile.get("links")
        if isinstance(links, list):
            assert links == [list(column) for column in zip(*links, strict=True)], name


def test_defaults_give_way_value_by_value(host):
    machine = host("l40s-4x")
    data = copy.deepcopy(machine.data)
    machine.data["gpus"][2]["memory"] = {"unlisted_mib": 1000}
    machine.data["gpus"][3]["power"] = None
    machine.write()
    gpus = machine.nvml()["gpus"]
    assert gpus[2]["memory"]["total"] == data["gpu_defaults"]["memory"]["total_mib"]
    assert gpus[2]["memory"]["used"] == 1000
    assert gpus[3]["power_limit"] is None and gpus[1]["power_limit"] == 350000
    assert machine.rows("memory.used", "power.limit")[2:] == [
        {"memory.used": "1000", "power.limit": "350.00"},
        {"memory.used": "0", "power.limit": "[N/A]"},
    ]


@pytest.mark.parametrize("path", sorted((DRIVER / "gpufleet_driver").glob("*.py")), ids=lambda path: path.name)
def test_commands_are_python_3_8(path):
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_everything_says_that_it_is_simulated():
    for path in (DRIVER / "bin").iterdir():
        assert "SIMULATED" in path.read_text().splitlines()[1], path

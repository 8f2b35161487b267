# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _nvml
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_nvml_binding import FUNCTIONS, Nvml
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import judge, new_gpu

GIB = 1 << 30
NOT_AVAILABLE = (1 << 64) - 1
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, GPU_IS_LOST = 3, 4, 9, 15


class FakeError(Exception):
    """As pynvml.NVMLError."""

    def __init__(self, value):
        super().__init__(value)
        self.value = value


def h100(bus, **values):
    """What NVML answers for one card, by function name without nvmlDeviceGet; values replace the usual answers."""
    return {
        "UUID": f"GPU-{bus}",
        "Name": "NVIDIA H100 80GB HBM3",
        "PciInfo": SimpleNamespace(busId=f"00000000:{bus}:00.0".encode(), pciDeviceId=0x233010DE),
        "MinorNumber": 0,
        "CudaComputeCapability": (9, 0),
        "Architecture": 9,
        "MemoryInfo": SimpleNamespace(total=80 * GIB, free=70 * GIB, used=9 * GIB, reserved=GIB),
        "MigMode": [0, 0],
        "EccMode": [1, 1],
        "PersistenceMode": 1,
        "ComputeMode": 0,
        "VirtualizationMode": 0,
        "AddressingMode": 0,
        "CurrPcieLinkGeneration": 5,
        "MaxPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "EnforcedPowerLimit": 700000,
        "PowerManagementLimitConstraints": [200000, 700000],
        "PowerUsage": 71254,
        "CurrentClocksThrottleReasons": 0b1001001,
        "RemappedRows": (0, 1, 1, 0),
        "ComputeRunningProcesses": [SimpleNamespace(pid=12, usedGpuMemory=8 * GIB, gpuInstanceId=0xFFFFFFFF)],
        "GraphicsRunningProcesses": [
            SimpleNamespace(pid=12, usedGpuMemory=8 * GIB, gpuInstanceId=0xFFFFFFFF),
            SimpleNamespace(pid=7, usedGpuMemory=NOT_AVAILABLE, gpuInstanceId=0xFFFFFFFF),
        ],
        **values,
    }


class FakeNvml:
    """pynvml as far as collect() calls it. A handle is the card's dictionary; what a card lacks is not supported."""

    NVMLError = FakeError

    def __init__(self, *cards, init=0, links=None):
        self.cards = cards
        self.init = init
        self.links = links or {}
        self.is_open = False

    def nvmlInit(self):
        if self.init:
            raise FakeError(self.init)
        self.is_open = True

    def nvmlShutdown(self):
        self.is_open = False

    def nvmlSystemGetDriverVersion(self):
        return b"580.95.05"

    def nvmlSystemGetNVMLVersion(self):
        return "13.580.95.05"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlSystemGetProcessName(self, pid):
        return f"/usr/bin/process-{pid}"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if isinstance(self.cards[index], int):
            raise FakeError(self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetNvLinkState(self, card, link):
        if link >= len(card.get("nvlinks", ())):
            raise FakeError(NOT_SUPPORTED)
        return card["nvlinks"][link] is not None

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card, link):
        return 2 if card["nvlinks"][link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card, link):
        return SimpleNamespace(busId=card["nvlinks"][link])

    def nvmlDeviceGetTopologyCommonAncestor(self, one, other):
        return one["ancestor"]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card, index):
        if index >= len(card["mig"]):
            raise FakeError(6)
        return card["mig"][index]

    def __getattr__(self, name):
        if name.startswith("__") or not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def function(card, *arguments):
            key = name.replace("nvmlDeviceGet", "")
            if key == "MemoryInfo" and arguments and card.get("driver_before_510"):
                raise FakeError(13)
            value = card.get(key, NOT_SUPPORTED)
            if key not in card and isinstance(value, int):
                raise FakeError(value)
            if isinstance(value, FakeError):
                raise value
            return value

        return function


def collect(*cards, **options):
    host, problems = _nvml.collect(FakeNvml(*cards, **options))
    return judge(host, problems)


def codes(problems):
    return [item["code"] for item in problems]


def test_a_card():
    host = collect(h100("18"))
    assert (host["driver_version"], host["cuda_driver_version"]) == ("580.95.05", "13.0")
    assert (host["library_version"], host["attached_gpus"], host["source"]) == ("580.95.05", 1, "nvml")
    gpu = host["gpus"][0]
    assert gpu.keys() == new_gpu(0).keys()
    assert (gpu["uuid"], gpu["pci_bus_id"], gpu["pci_device_id"]) == ("GPU-18", "00000000:18:00.0", "233010DE")
    assert (gpu["compute_capability"], gpu["compute_capability_source"]) == ("9.0", "driver")
    assert gpu["architecture"] == "Hopper"
    assert [gpu[f"memory_{key}_mib"] for key in ("total", "free", "used", "reserved")] == [81920, 71680, 9216, 1024]
    assert (gpu["memory_source"], gpu["memory_used_by_others_mib"]) == ("card", 9216)
    assert gpu["power"] == {
        "draw_w": 71.25,
        "limit_w": 700.0,
        "default_limit_w": None,
        "min_limit_w": 200.0,
        "max_limit_w": 700.0,
    }
    assert gpu["throttle_reasons"] == ["hw_slowdown", "hw_thermal_slowdown"]
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 1, "pending": True, "failure": False}
    assert gpu["ecc"]["mode"] == gpu["persistence_mode"] == "Enabled"
    assert [(entry["pid"], entry["type"], entry["used_memory_mib"]) for entry in gpu["processes"]] == [
        (7, "G", None),
        (12, "C+G", 8192),
    ]
    assert gpu["processes"][0]["name"] == "/usr/bin/process-7"
    assert (codes(host["errors"]), codes(host["notices"])) == ([], ["reset_pending", "slowed_down"])
    assert host["links"] == [["X"]]


def test_a_driver_before_510_tells_no_reserved_memory():
    gpu = collect(h100("18", driver_before_510=True))["gpus"][0]
    assert (gpu["memory_used_mib"], gpu["memory_reserved_mib"]) == (9216, None)


def test_a_lost_gpu_leaves_the_others():
    host = collect(h100("18", ancestor=50), GPU_IS_LOST, h100("5d", MemoryInfo=FakeError(GPU_IS_LOST)))
    assert [gpu["state"] for gpu in host["gpus"]] == ["ok", "gpu_lost", "gpu_lost"]
    assert [(error["code"], error["gpu"]) for error in host["errors"]] == [("gpu_lost", 1), ("gpu_lost", 2)]
    assert host["gpus"][2]["uuid"] == "GPU-5d"
    assert host["links"] == [["X", None, "SYS"], [None, "X", None], ["SYS", None, "X"]]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (NO_PERMISSION, "insufficient_permissions"),
        (DRIVER_NOT_LOADED, "driver_not_loaded"),
        (12, "nvml_library_missing"),
        (18, "driver_library_mismatch"),
        (999, "nvml_failed"),
    ],
)
def test_a_driver_that_does_not_answer(code, expected):
    host = collect(init=code)
    assert (host["gpus"], codes(host["errors"])) == ([], [expected])


def test_no_gpu():
    assert codes(collect()["errors"]) == ["no_gpu"]


def test_unified_memory():
    card = h100("01", MemoryInfo=FakeError(NOT_SUPPORTED), CudaComputeCapability=(12, 1), AddressingMode=2)
    host = collect(card)
    gpu = host["gpus"][0]
    assert (gpu["memory_total_mib"], gpu["addressing_mode"]) == (None, "ATS")
    assert codes(host["errors"]) == []
    assert "unified_memory" in codes(host["notices"])


def mig_device(index, size):
    return {
        "UUID": f"MIG-{index}",
        "Name": f"NVIDIA H100 80GB HBM3 MIG {size}g.{size * 10}gb",
        "GpuInstanceId": index + 3,
        "ComputeInstanceId": 0,
        "MemoryInfo": SimpleNamespace(total=size * 10 * GIB, free=size * 9 * GIB, used=GIB, reserved=0),
    }


def test_mig():
    card = h100("18", MigMode=[1, 1], MaxMigDeviceCount=7, mig=[mig_device(0, 3), mig_device(1, 1)])
    mig = collect(card)["gpus"][0]["mig"]
    assert (mig["mode"], mig["pending_mode"]) == ("Enabled", "Enabled")
    assert [(entry["uuid"], entry["profile"], entry["gpu_instance_id"]) for entry in mig["instances"]] == [
        ("MIG-0", "3g.30gb", 3),
        ("MIG-1", "1g.10gb", 4),
    ]
    assert mig["instances"][0]["memory_free_mib"] == 27 * 1024
    empty = collect(h100("18", MigMode=[1, 1], MaxMigDeviceCount=7, mig=[]))
    assert codes(empty["errors"]) == ["mig_without_instances"]


def test_links_direct_over_switches_and_over_pci():
    peer = {bus: f"00000000:{bus}:00.0" for bus in ("01", "02", "03")}
    host = collect(
        h100("01", ancestor=20, nvlinks=[peer["02"]] * 4 + [None, None]),
        h100("02", ancestor=40, nvlinks=[peer["01"]] * 4 + [None, None]),
        h100("03"),
    )
    assert host["links"] == [["X", "NV4", "PXB"], ["NV4", "X", "NODE"], ["PXB", "NODE", "X"]]
    switched = collect(h100("01", nvlinks=["switch"] * 18), h100("02", nvlinks=["switch"] * 18))
    assert switched["links"] == [["X", "NV18"], ["NV18", "X"]]


def test_recovery_action_is_an_error():
    field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=2))
    host = collect(h100("18", FieldValues=[field]))
    assert host["gpus"][0]["recovery_action"] == "Reboot"
    assert codes(host["errors"]) == ["recovery_action"]


@pytest.mark.parametrize(
    ("mask", "health"),
    [(0, None), (0b10101010, "Healthy"), (0b10011010, "Unhealthy (route_unhealthy)")],
)
def test_fabric_health(mask, health):
    assert _nvml._fabric_health(mask) == health


def test_the_driver_is_left_when_a_call_fails():
    nvml = FakeNvml(h100("18", PciInfo="not a structure"))
    with pytest.raises(AttributeError):
        _nvml.collect(nvml)
    assert nvml.is_open is False


def test_the_binding_without_a_library():
    host, problems = _nvml.collect(Nvml(libraries=("/nonexistent/libnvidia-ml.so.1",)))
    assert host["gpus"] == []
    assert codes(problems) == ["nvml_library_missing"]


def test_the_binding_has_pynvmls_functions():
    """Whatever collect() asks for by name exists in the binding, under pynvml's name."""
    asked = set()

    class Recorder(FakeNvml):
        def __getattribute__(self, name):
            if name.startswith("nvml"):
                asked.add(name)
            return super().__getattribute__(name)

    mig = {"MigMode": [1, 1], "MaxMigDeviceCount": 1, "mig": [mig_device(0, 1)]}
    _nvml.collect(Recorder(h100("01", nvlinks=["elsewhere"], ancestor=50, **mig), h100("02")))
    assert len(asked) > 40
    binding = Nvml()
    assert [name for name in asked if getattr(binding, name, None) is None] == []
    assert asked.issuperset(FUNCTIONS)

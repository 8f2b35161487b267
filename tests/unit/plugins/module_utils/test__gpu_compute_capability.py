# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _gpu_compute_capability as capability

#: Product names as the driver gives them (nvidia-smi -L), NVIDIA's lists of CUDA GPUs and vGPU documentation.
NAMES = {
    "12.1": ["NVIDIA GB10"],
    "12.0": [
        "NVIDIA GeForce RTX 5090",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA GeForce RTX 5070 Ti Laptop GPU",
        "NVIDIA GeForce RTX 5060",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 4500 Blackwell",
        "NVIDIA RTX PRO 2000 Blackwell Generation Laptop GPU",
        "NVIDIA RTX Pro 6000 Blackwell DC-24Q",
        "NVIDIA RTX 6000D",
    ],
    "11.0": ["NVIDIA Thor", "Thor (nvgpu)", "NVIDIA Jetson AGX Thor"],
    "10.3": ["NVIDIA B300 SXM6 AC", "NVIDIA GB300"],
    "10.0": ["NVIDIA B200", "NVIDIA GB200", "NVIDIA B100", "NVIDIA B200 MIG 1g.23gb"],
    "9.0": [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA H100L-2-24C",
        "NVIDIA H100XM-80C",
        "NVIDIA H200",
        "NVIDIA H200 NVL",
        "NVIDIA H200X-141C",
        "NVIDIA H800",
        "NVIDIA H20",
        "NVIDIA H20-3e",
        "NVIDIA GH200 480GB",
        "NVIDIA GH200 144G HBM3e",
    ],
    "8.9": [
        "NVIDIA L4",
        "NVIDIA L40",
        "NVIDIA L40S",
        "NVIDIA L40S-48C",
        "NVIDIA L40G",
        "NVIDIA L20",
        "NVIDIA L2",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA GeForce RTX 4060 Laptop GPU",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA RTX 5880 Ada Generation",
        "NVIDIA RTX 4000 SFF Ada Generation",
        "NVIDIA RTX 2000 Ada Generation Laptop GPU",
        "NVIDIA RTX6000-Ada-48Q",
    ],
    "8.7": ["Orin (nvgpu)", "NVIDIA Jetson AGX Orin"],
    "8.6": [
        "NVIDIA A2",
        "NVIDIA A10",
        "NVIDIA A10G",
        "NVIDIA A10-24Q",
        "NVIDIA A16",
        "NVIDIA A40",
        "NVIDIA A40-48Q",
        "NVIDIA GeForce RTX 3090",
        "GeForce RTX 3080",
        "NVIDIA GeForce RTX 3050 Ti Laptop GPU",
        "NVIDIA GeForce RTX 2050",
        "NVIDIA GeForce MX570",
        "NVIDIA RTX A6000",
        "RTX A6000",
        "NVIDIA RTXA5500-24Q",
        "NVIDIA RTX A500 Laptop GPU",
        "NVIDIA CMP 90HX",
    ],
    "8.0": [
        "NVIDIA A100-SXM4-80GB",
        "A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "GRID A100D-80C",
        "NVIDIA A100X",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA A30",
        "NVIDIA A30-1-6C",
        "NVIDIA CMP 170HX",
    ],
    "7.5": [
        "Tesla T4",
        "NVIDIA T4G",
        "GRID T4-16Q",
        "Quadro RTX 8000",
        "NVIDIA Quadro RTX 5000 with Max-Q Design",
        "GRID RTX8000-48Q",
        "GRID RTX6000P-6Q",
        "NVIDIA T1000 8GB",
        "NVIDIA T400 4GB",
        "NVIDIA T550 Laptop GPU",
        "Quadro T2000",
        "TITAN RTX",
        "NVIDIA GeForce RTX 2080 Ti",
        "NVIDIA GeForce GTX 1660 SUPER",
        "NVIDIA GeForce GTX 1650",
        "NVIDIA GeForce MX450",
    ],
    "7.2": ["Xavier (nvgpu)"],
    "7.0": [
        "Tesla V100-SXM2-32GB",
        "Tesla V100S-PCIE-32GB",
        "GRID V100DX-32C",
        "GRID V100D-8Q",
        "Quadro GV100",
        "NVIDIA TITAN V",
        "TITAN V CEO Edition",
    ],
    "6.2": ["NVIDIA Tegra X2"],
    "6.1": [
        "Tesla P4",
        "Tesla P40",
        "GRID P40-24Q",
        "GRID P4-1Q",
        "Quadro P6000",
        "Quadro P400",
        "Quadro P3200",
        "NVIDIA GeForce GTX 1080 Ti",
        "GeForce GT 1030",
        "TITAN X (Pascal)",
        "TITAN Xp COLLECTORS EDITION",
        "GeForce MX150",
        "P106-100",
    ],
    "6.0": ["Tesla P100-PCIE-16GB", "Tesla P100-SXM2-16GB", "Quadro GP100", "GRID P100X-16Q"],
    "5.3": ["NVIDIA Tegra X1"],
    "5.2": [
        "Tesla M60",
        "Tesla M40 24GB",
        "Tesla M4",
        "GRID M60-8Q",
        "Quadro M6000 24GB",
        "Quadro M4000",
        "GeForce GTX TITAN X",
        "GeForce GTX 980 Ti",
        "GeForce GTX 960",
        "GeForce GTX 970M",
    ],
    "5.0": ["Tesla M10", "GRID M10-8Q", "Quadro K2200", "Quadro M1000M", "GeForce GTX 750 Ti", "GeForce 940MX"],
    "3.7": ["Tesla K80"],
    "3.5": ["Tesla K40m", "Tesla K20Xm", "Quadro K6000", "GeForce GTX 780 Ti", "GeForce GTX TITAN Black"],
    "3.0": ["GRID K520", "GRID K2", "GRID K160Q", "Quadro K5000", "Quadro K420", "GeForce GTX 680"],
}

#: Device ids of the PCI ID repository (pci-ids.ucw.cz), one for each die; those of the newest as the cards tell them.
PCI_DEVICES = {
    0x0FF2: "3.0",  # GK107, GRID K1
    0x103C: "3.5",  # GK110, Quadro K5200
    0x102D: "3.7",  # GK210, Tesla K80
    0x1185: "3.0",  # GK104
    0x128B: "3.5",  # GK208
    0x13BD: "5.0",  # GM107, Tesla M10
    0x13F2: "5.2",  # GM204, Tesla M60
    0x17FD: "5.2",  # GM200, Tesla M40
    0x15F8: "6.0",  # GP100, Tesla P100
    0x1B38: "6.1",  # GP102, Tesla P40
    0x1DB6: "7.0",  # GV100, Tesla V100 32 GB
    0x1EB8: "7.5",  # TU104, Tesla T4
    0x2184: "7.5",  # TU116
    0x20B2: "8.0",  # GA100, A100 80 GB
    0x2236: "8.6",  # GA102, A10
    0x25B6: "8.6",  # GA107, A2 and A16
    0x26B9: "8.9",  # AD102, L40S
    0x27B8: "8.9",  # AD104, L4
    0x2330: "9.0",  # GH100, H100 SXM
    0x2335: "9.0",  # GH100, H200
    0x2342: "9.0",  # GH100, GH200
    0x2901: "10.0",  # GB100, B200
    0x2B00: "11.0",  # Thor
    0x2B85: "12.0",  # GB202, RTX 5090
    0x2E12: "12.1",  # GB20B, GB10
    0x31C2: "10.3",  # GB110, GB300
}


@pytest.mark.parametrize(("name", "expected"), [(name, key) for key, names in NAMES.items() for name in names])
def test_by_name(name, expected):
    assert capability.by_name(name) == expected


@pytest.mark.parametrize(
    "name", [None, "", "Graphics Device", "NVIDIA Graphics Device", "AMD Instinct MI300X", "Tesla"]
)
def test_unknown_name(name):
    assert capability.by_name(name) is None


@pytest.mark.parametrize(("device", "expected"), PCI_DEVICES.items())
def test_by_pci_device(device, expected):
    assert capability.by_pci_device(device) == expected
    assert capability.by_pci_device(f"{device:04X}10DE") == expected
    assert capability.by_pci_device(f"0x{device:04x}") == expected


@pytest.mark.parametrize("device", [None, "", "N/A", "FFFF10DE", 0x0001])
def test_unknown_pci_device(device):
    assert capability.by_pci_device(device) is None


def test_pci_ranges_are_in_order_and_apart():
    ranges = capability.PCI_DEVICES
    assert all(first <= last for first, last, unused in ranges)
    assert all(before[1] < after[0] for before, after in zip(ranges, ranges[1:], strict=False))


def test_every_capability_has_an_architecture():
    told = {value for unused, value in capability.PRODUCT_NAMES} | {row[2] for row in capability.PCI_DEVICES}
    assert {value: capability.architecture_of(value) for value in told if not capability.architecture_of(value)} == {}


def test_find_takes_the_surest_key():
    assert capability.find("NVIDIA GB300", "31C210DE", "Blackwell") == ("10.3", "product_name")
    assert capability.find("Graphics Device", "218410DE", None) == ("7.5", "pci_device_id")
    assert capability.find("Graphics Device", None, "Hopper") == ("9.0", "architecture")
    assert capability.find("Graphics Device", None, "Blackwell") == (None, None)

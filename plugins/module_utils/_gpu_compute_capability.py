# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute capability of an NVIDIA GPU for sources that lack it (nvidia-smi -q -x never tells it).

Private to the collection gpufleet.vllm. Data, from NVIDIA's lists at developer.nvidia.com/cuda-gpus and
developer.nvidia.com/cuda-legacy-gpus, NVIDIA's vGPU documentation (profile names) and the PCI ID repository
(pci-ids.ucw.cz, vendor 10de). Three keys, the surest first: the product name, the PCI device id (a card that the
driver calls "Graphics Device"), the architecture where it has but one capability.
"""

from __future__ import annotations

import re

#: (pattern over the product name without "NVIDIA", compute capability); the first that matches counts.
#: Names may carry a family in front (Tesla, Quadro, GeForce, GRID) and a form, size, vGPU or MIG profile behind.
PRODUCT_NAMES = (
    # Jetson, DRIVE, DGX Spark and other systems on a chip
    (r"\bGB10\b", "12.1"),
    (r"\bThor\b", "11.0"),
    (r"\bOrin\b", "8.7"),
    (r"\bXavier\b", "7.2"),
    (r"\bTegra X2\b|\bTX2\b|\bGP10B\b", "6.2"),
    (r"\bTegra X1\b|\bTX1\b|\bJetson Nano\b|\bGM20B\b", "5.3"),
    (r"\bTegra K1\b|\bTK1\b|\bGK20A\b", "3.2"),
    # workstation names that would collide with others below
    (r"\bRTX PRO \d{3,4}|\bRTX 6000D\b|\bBlackwell\b", "12.0"),
    (r"\bAda\b", "8.9"),
    (r"\bRTX ?A\d{3,4}", "8.6"),
    (r"\b(Quadro|GRID) RTX ?\d{4}|\bRTX[68]000P?-\d", "7.5"),
    # data centre, newest first; the letters behind the number are forms (A100X), vGPU families (H100XM-80C) and such
    (r"\bG?B300[A-Z]*\b", "10.3"),
    (r"\bG?B[12]00[A-Z]*\b", "10.0"),
    (r"\bG?H(20|100|200|800)[A-Z]*\b", "9.0"),
    (r"\bL(2|4|16|20|40|6000)[A-Z]?\b", "8.9"),
    (r"\bA(2|10|16|40)[A-Z]*\b", "8.6"),
    (r"\bA(30|100|800)[A-Z]*\b|\bPG50[69]\b|\bCMP 170HX\b", "8.0"),
    (r"\bT(4|10|40)G?\b", "7.5"),
    (r"\bG?V100[A-Z]*\b|\bTITAN V\b|\bPG50[034]\b", "7.0"),
    (r"\bG?P100[A-Z]*\b", "6.0"),
    (r"\bP(4|6|10|40)\b", "6.1"),
    (r"\b(Tesla|GRID) M10\b|\bM10-\d", "5.0"),
    (r"\bM(4|6|40|60)\b", "5.2"),
    (r"\bK80\b", "3.7"),
    (r"\bK(20|40)[A-Za-z]*\b", "3.5"),
    (r"\bK(10|1|2|8|340|520)\b|\bGRID K\d{3}Q\b", "3.0"),
    # GeForce, TITAN, mining cards
    (r"\bRTX 50[5-9]0", "12.0"),
    (r"\bRTX 40[5-9]0|\bRTX 3050 A\b", "8.9"),
    (r"\bRTX 30[5-9]0|\bRTX 2050\b|\bMX570\b|\bCMP (70|90)HX\b", "8.6"),
    (r"\bRTX 20[6-9]0|\bGTX 16[0-9]{2}|\bTITAN RTX\b|\bMX[45]50\b|\bCMP (30|40|50)HX\b", "7.5"),
    (r"\bGTX 10[5-8]0|\bGT 10[1-3]0\b|\bTITAN (Xp|X \(Pascal\))|\bMX(150|230|250|3[0-9]0)\b|\bP10[0-9]-", "6.1"),
    (r"\bTITAN X\b|\bGTX 9[5-8]0( Ti| SE| Mobile)?\b(?! ?M\b)|\b9(65|70|80)M\b", "5.2"),
    (
        r"\bGTX? 9[0-9]{2}M|\b9[0-9]{2}MX\b|\b9[3-6][05][MA]\b|\bGTX? 7(45|50)(?!M)|\bGTX 8[56]0M\b|\b8[34][05][MA]\b"
        r"|\bMX1[13]0\b",
        "5.0",
    ),
    (r"\bGTX TITAN\b|\bGTX 780(?!M)|\bGT 7[123]0\b|\b9[12]0M\b", "3.5"),
    (r"\bGTX? 6[0-9]{2}M?|\bGTX? 7[0-9]{2}M?|\bGTX 8[78]0M\b|\bGT 8[0-9]{2}M\b", "3.0"),
    # Quadro and its successors without the name
    (r"\bT(400|500|550|600|1000|1200|2000)\b|\bT4\d\d\b", "7.5"),
    (r"\bQuadro P\d{3,4}|\bP[1-6]\d{3}\b|\bP(400|500|520|600|620)\b", "6.1"),
    (r"\bQuadro M(2000|2200|3000M|4000|4000M|5000|5000M|5500|6000)\b", "5.2"),
    (r"\bQuadro M\d{3,4}M?\b|\bQuadro K(620|1200|2200)M?\b", "5.0"),
    (r"\bQuadro K(5200|6000)\b|\bQuadro K(510|610)M\b", "3.5"),
    (r"\bQuadro (K|410)", "3.0"),
)

#: (first PCI device id, last, compute capability), one row per GPU die of the PCI ID repository.
PCI_DEVICES = (
    (0x0FC0, 0x0FFF, "3.0"),  # GK107
    (0x1001, 0x103F, "3.5"),  # GK110, GK110B, GK180
    (0x1180, 0x11FF, "3.0"),  # GK104, GK106
    (0x1280, 0x12BF, "3.5"),  # GK208
    (0x1340, 0x13BF, "5.0"),  # GM108, GM107
    (0x13C0, 0x143F, "5.2"),  # GM204, GM206
    (0x15F0, 0x15FF, "6.0"),  # GP100
    (0x1617, 0x1667, "5.2"),  # GM204 mobile
    (0x174D, 0x179F, "5.0"),  # GM108, GM107 mobile
    (0x17C2, 0x17FD, "5.2"),  # GM200
    (0x1AD0, 0x1AFF, "7.5"),  # TU1xx functions
    (0x1B00, 0x1D7F, "6.1"),  # GP102, GP104, GP106, GP107, GP108
    (0x1D80, 0x1DFF, "7.0"),  # GV100
    (0x1E00, 0x1FFF, "7.5"),  # TU102, TU104, TU106, TU117
    (0x2080, 0x20FF, "8.0"),  # GA100
    (0x2180, 0x21FF, "7.5"),  # TU116
    (0x2200, 0x22FF, "8.6"),  # GA102
    (0x2300, 0x237F, "9.0"),  # GH100
    (0x2400, 0x25FF, "8.6"),  # GA103, GA104, GA106, GA107
    (0x2680, 0x28FF, "8.9"),  # AD102, AD103, AD104, AD106, AD107
    (0x2900, 0x29FF, "10.0"),  # GB100, GB102
    (0x2B80, 0x2DFF, "12.0"),  # GB202, GB203, GB206, GB207
    (0x2E00, 0x2E7F, "12.1"),  # GB20B
    (0x2F00, 0x2FFF, "12.0"),  # GB205
    (0x3180, 0x31FF, "10.3"),  # GB110
)
PCI_EXCEPTIONS = {0x102D: "3.7", 0x2B00: "11.0"}  # GK210 (Tesla K80), Thor

#: Architectures as NVIDIA names them (NVML, nvidia-smi's product_architecture) and their capabilities.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "Kepler": ("3.0", "3.2", "3.5", "3.7"),
    "Maxwell": ("5.0", "5.2", "5.3"),
    "Pascal": ("6.0", "6.1", "6.2"),
    "Volta": ("7.0", "7.2"),
    "Turing": ("7.5",),
    "Ampere": ("8.0", "8.6", "8.7"),
    "Ada Lovelace": ("8.9",),
    "Hopper": ("9.0",),
    "Blackwell": ("10.0", "10.3", "11.0", "12.0", "12.1"),
}


def by_name(name: str | None) -> str | None:
    """Compute capability ("9.0") by product name, vGPU profile or MIG device name; None if unknown."""
    plain = re.sub(r"^(NVIDIA\s+)+", "", " ".join((name or "").split()), flags=re.IGNORECASE)
    for pattern, capability in PRODUCT_NAMES:
        if re.search(pattern, plain, re.IGNORECASE):
            return capability
    return None


def by_pci_device(pci_device_id: str | int | None) -> str | None:
    """Compute capability by PCI device id, as nvidia-smi writes it ("233510DE"), or as a number (0x2335)."""
    number = pci_device_id
    if isinstance(number, str):
        match = re.match(r"(?i)\s*(?:0x)?([0-9a-f]{4})(?:10de)?\s*$", number)
        number = int(match.group(1), 16) if match else None
    if number is None:
        return None
    if number in PCI_EXCEPTIONS:
        return PCI_EXCEPTIONS[number]
    return next((capability for first, last, capability in PCI_DEVICES if first <= number <= last), None)


def by_architecture(architecture: str | None) -> str | None:
    """Compute capability by architecture name where that has but one; else None."""
    capabilities = ARCHITECTURES.get(architecture or "", ())
    return capabilities[0] if len(capabilities) == 1 else None


def architecture_of(capability: str | None) -> str | None:
    """Architecture name ("Hopper") of a compute capability ("9.0"); None if unknown."""
    for name, capabilities in ARCHITECTURES.items():
        if capability in capabilities:
            return name
    return None


def find(
    name: str | None = None, pci_device_id: str | int | None = None, architecture: str | None = None
) -> tuple[str | None, str | None]:
    """(compute capability, key that gave it: "product_name", "pci_device_id" or "architecture"), or (None, None)."""
    for key, capability in (
        ("product_name", by_name(name)),
        ("pci_device_id", by_pci_device(pci_device_id)),
        ("architecture", by_architecture(architecture)),
    ):
        if capability:
            return capability, key
    return None, None

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of NVML that _nvml.py calls, by ctypes, under the names and with the results of pynvml.

Private to the collection gpufleet.vllm. For hosts without pynvml, which is most of them: libnvidia-ml.so.1 comes
with every driver. Signatures and structures are those of nvml.h (NVIDIA's NVML API reference); a function that the
library does not have raises NVMLError(13), as in pynvml.
"""

from __future__ import annotations

from ctypes import (
    CDLL,
    Structure,
    Union,
    byref,
    c_char,
    c_int,
    c_longlong,
    c_ubyte,
    c_uint,
    c_ulong,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from typing import Any, Callable, Sequence

#: Where the library is when the dynamic linker does not know it: WSL2, NixOS, containers of GKE and EKS.
LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
)

LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE = 12, 13, 7


class NVMLError(Exception):
    """An NVML call failed; value is NVML's return code (nvmlReturn_t)."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML return code {value}")
        self.value = value


class PciInfo(Structure):
    """nvmlPciInfo_t"""

    _fields_ = [
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class Memory(Structure):
    """nvmlMemory_t"""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class MemoryV2(Structure):
    """nvmlMemory_v2_t"""

    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class ProcessV1(Structure):
    """nvmlProcessInfo_v1_t"""

    _fields_ = [("pid", c_uint), ("usedGpuMemory", c_ulonglong)]


class Process(Structure):
    """nvmlProcessInfo_t"""

    _fields_ = [
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class Utilization(Structure):
    """nvmlUtilization_t"""

    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class FabricInfo(Structure):
    """nvmlGpuFabricInfo_v2_t"""

    _fields_ = [
        ("version", c_uint),
        ("clusterUuid", c_ubyte * 16),
        ("status", c_uint),
        ("cliqueId", c_uint),
        ("state", c_ubyte),
        ("healthMask", c_uint),
    ]


class Value(Union):
    """nvmlValue_t"""

    _fields_ = [("uiVal", c_uint), ("ullVal", c_ulonglong)]


class FieldValue(Structure):
    """nvmlFieldValue_t"""

    _fields_ = [
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_longlong),
        ("latencyUsec", c_longlong),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", Value),
    ]


class AddressingMode(Structure):
    """nvmlDeviceAddressingMode_v1_t"""

    _fields_ = [("version", c_uint), ("value", c_uint)]


#: pynvml's name -> (symbols of the library, newest first; types of the arguments behind the device; types of the
#: results). One result is returned alone, more as a list.
FUNCTIONS = {
    "nvmlDeviceGetMinorNumber": (("nvmlDeviceGetMinorNumber",), (), (c_uint,)),
    "nvmlDeviceGetCudaComputeCapability": (("nvmlDeviceGetCudaComputeCapability",), (), (c_int, c_int)),
    "nvmlDeviceGetArchitecture": (("nvmlDeviceGetArchitecture",), (), (c_uint,)),
    "nvmlDeviceGetPciInfo": (("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), (), (PciInfo,)),
    "nvmlDeviceGetMigMode": (("nvmlDeviceGetMigMode",), (), (c_uint, c_uint)),
    "nvmlDeviceGetMaxMigDeviceCount": (("nvmlDeviceGetMaxMigDeviceCount",), (), (c_uint,)),
    "nvmlDeviceGetMigDeviceHandleByIndex": (("nvmlDeviceGetMigDeviceHandleByIndex",), (c_uint,), (c_void_p,)),
    "nvmlDeviceGetGpuInstanceId": (("nvmlDeviceGetGpuInstanceId",), (), (c_uint,)),
    "nvmlDeviceGetComputeInstanceId": (("nvmlDeviceGetComputeInstanceId",), (), (c_uint,)),
    "nvmlDeviceGetEccMode": (("nvmlDeviceGetEccMode",), (), (c_uint, c_uint)),
    "nvmlDeviceGetTotalEccErrors": (("nvmlDeviceGetTotalEccErrors",), (c_uint, c_uint), (c_ulonglong,)),
    "nvmlDeviceGetPersistenceMode": (("nvmlDeviceGetPersistenceMode",), (), (c_uint,)),
    "nvmlDeviceGetComputeMode": (("nvmlDeviceGetComputeMode",), (), (c_uint,)),
    "nvmlDeviceGetDisplayActive": (("nvmlDeviceGetDisplayActive",), (), (c_uint,)),
    "nvmlDeviceGetVirtualizationMode": (("nvmlDeviceGetVirtualizationMode",), (), (c_uint,)),
    "nvmlDeviceGetNumaNodeId": (("nvmlDeviceGetNumaNodeId",), (), (c_uint,)),
    "nvmlDeviceGetCurrPcieLinkGeneration": (("nvmlDeviceGetCurrPcieLinkGeneration",), (), (c_uint,)),
    "nvmlDeviceGetMaxPcieLinkGeneration": (("nvmlDeviceGetMaxPcieLinkGeneration",), (), (c_uint,)),
    "nvmlDeviceGetCurrPcieLinkWidth": (("nvmlDeviceGetCurrPcieLinkWidth",), (), (c_uint,)),
    "nvmlDeviceGetMaxPcieLinkWidth": (("nvmlDeviceGetMaxPcieLinkWidth",), (), (c_uint,)),
    "nvmlDeviceGetPowerUsage": (("nvmlDeviceGetPowerUsage",), (), (c_uint,)),
    "nvmlDeviceGetEnforcedPowerLimit": (("nvmlDeviceGetEnforcedPowerLimit",), (), (c_uint,)),
    "nvmlDeviceGetPowerManagementDefaultLimit": (("nvmlDeviceGetPowerManagementDefaultLimit",), (), (c_uint,)),
    "nvmlDeviceGetPowerManagementLimitConstraints": (
        ("nvmlDeviceGetPowerManagementLimitConstraints",),
        (),
        (c_uint, c_uint),
    ),
    "nvmlDeviceGetClockInfo": (("nvmlDeviceGetClockInfo",), (c_uint,), (c_uint,)),
    "nvmlDeviceGetMaxClockInfo": (("nvmlDeviceGetMaxClockInfo",), (c_uint,), (c_uint,)),
    "nvmlDeviceGetTemperature": (("nvmlDeviceGetTemperature",), (c_uint,), (c_uint,)),
    "nvmlDeviceGetUtilizationRates": (("nvmlDeviceGetUtilizationRates",), (), (Utilization,)),
    "nvmlDeviceGetCurrentClocksThrottleReasons": (
        ("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        (),
        (c_ulonglong,),
    ),
    "nvmlDeviceGetRetiredPagesPendingStatus": (("nvmlDeviceGetRetiredPagesPendingStatus",), (), (c_uint,)),
    "nvmlDeviceGetRemappedRows": (("nvmlDeviceGetRemappedRows",), (), (c_uint, c_uint, c_uint, c_uint)),
    "nvmlDeviceGetNvLinkState": (("nvmlDeviceGetNvLinkState",), (c_uint,), (c_uint,)),
    "nvmlDeviceGetNvLinkRemotePciInfo": (
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"),
        (c_uint,),
        (PciInfo,),
    ),
    "nvmlDeviceGetNvLinkRemoteDeviceType": (("nvmlDeviceGetNvLinkRemoteDeviceType",), (c_uint,), (c_uint,)),
    "nvmlDeviceGetTopologyCommonAncestor": (("nvmlDeviceGetTopologyCommonAncestor",), (c_void_p,), (c_uint,)),
}

#: pynvml's name -> length of the buffer that nvml.h asks for.
STRINGS = {"nvmlDeviceGetName": 96, "nvmlDeviceGetUUID": 96}
SYSTEM_STRINGS = {"nvmlSystemGetDriverVersion": 80, "nvmlSystemGetNVMLVersion": 80}


class Nvml:
    """NVML as an object with pynvml's functions; nvmlInit() loads the library."""

    NVMLError = NVMLError

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._libraries = libraries
        self._library: CDLL | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in FUNCTIONS:
            return lambda device, *values: self._device_call(name, device, values)
        if name in STRINGS:
            return lambda device: self._string(name, STRINGS[name], c_void_p(device))
        if name in SYSTEM_STRINGS:
            return lambda: self._string(name, SYSTEM_STRINGS[name])
        raise AttributeError(name)

    def nvmlInit(self) -> None:
        """Load the library and connect to the driver."""
        for name in self._libraries:
            try:
                self._library = CDLL(name)
                break
            except OSError:
                continue
        else:
            raise NVMLError(LIBRARY_NOT_FOUND)
        self._call(("nvmlInit_v2", "nvmlInit"))

    def nvmlShutdown(self) -> None:
        """Leave the driver."""
        self._call(("nvmlShutdown",))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        """13000 for CUDA 13.0, read from the installed libcuda where there is one."""
        version = c_int()
        self._call(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"), byref(version))
        return version.value

    def nvmlSystemGetProcessName(self, pid: int) -> bytes:
        """Path of a process's executable."""
        return self._string("nvmlSystemGetProcessName", 1024, c_uint(pid))

    def nvmlDeviceGetCount(self) -> int:
        """Number of GPUs, also of those that do not answer."""
        count = c_uint()
        self._call(("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"), byref(count))
        return count.value

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int | None:
        """Handle of a GPU."""
        handle = c_void_p()
        self._call(("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"), c_uint(index), byref(handle))
        return handle.value

    def nvmlDeviceGetMemoryInfo(self, device: int, version: int | None = None) -> Memory | MemoryV2:
        """Memory in bytes; with a version also what is reserved for the driver (510 and newer)."""
        memory: Memory | MemoryV2 = Memory()
        symbols = ("nvmlDeviceGetMemoryInfo",)
        if version:
            memory = MemoryV2(version=sizeof(MemoryV2) | (2 << 24))
            symbols = ("nvmlDeviceGetMemoryInfo_v2",)
        self._call(symbols, c_void_p(device), byref(memory))
        return memory

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:
        """Processes with a CUDA context."""
        return self._processes("nvmlDeviceGetComputeRunningProcesses", device)

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: int) -> list[Any]:
        """Processes with a graphics context."""
        return self._processes("nvmlDeviceGetGraphicsRunningProcesses", device)

    def nvmlDeviceGetRetiredPages(self, device: int, cause: int) -> list[int]:
        """Addresses of retired pages."""
        count = self._size_needed("nvmlDeviceGetRetiredPages", c_void_p(device), c_uint(cause))
        pages = (c_ulonglong * count.value)()
        self._call(("nvmlDeviceGetRetiredPages",), c_void_p(device), c_uint(cause), byref(count), pages)
        return list(pages[: count.value])

    def nvmlDeviceGetAddressingMode(self, device: int) -> int:
        """0 none, 1 HMM, 2 ATS."""
        mode = AddressingMode(version=sizeof(AddressingMode) | (1 << 24))
        self._call(("nvmlDeviceGetAddressingMode",), c_void_p(device), byref(mode))
        return int(mode.value)

    def nvmlDeviceGetCpuAffinity(self, device: int, words: int) -> list[int]:
        """Bit mask of the CPUs next to the GPU, in words of 64 bits."""
        mask = (c_ulong * words)()
        self._call(("nvmlDeviceGetCpuAffinity",), c_void_p(device), c_uint(words), mask)
        return list(mask)

    def nvmlDeviceGetMemoryAffinity(self, device: int, words: int, scope: int) -> list[int]:
        """Bit mask of the NUMA nodes next to the GPU, in words of 64 bits."""
        mask = (c_ulong * words)()
        self._call(("nvmlDeviceGetMemoryAffinity",), c_void_p(device), c_uint(words), mask, c_uint(scope))
        return list(mask)

    def nvmlDeviceGetFieldValues(self, device: int, fields: list[int]) -> Any:
        """Values that have no function of their own, each with its own return code."""
        values = (FieldValue * len(fields))()
        for value, field in zip(values, fields):
            value.fieldId = field
        self._call(("nvmlDeviceGetFieldValues",), c_void_p(device), c_int(len(fields)), values)
        return values

    def c_nvmlGpuFabricInfo_v2_t(self) -> FabricInfo:
        """An empty structure for nvmlDeviceGetGpuFabricInfoV."""
        return FabricInfo(version=sizeof(FabricInfo) | (2 << 24))

    def nvmlDeviceGetGpuFabricInfoV(self, device: int, info: Any) -> None:
        """Fill in the state of the NVLink fabric."""
        self._call(("nvmlDeviceGetGpuFabricInfoV",), c_void_p(device), info)

    def _processes(self, name: str, device: int) -> list[Any]:
        versions: tuple[tuple[str, type[Structure]], ...] = (("_v3", Process), ("_v2", Process), ("", ProcessV1))
        for suffix, structure in versions:
            if self._find((name + suffix,)):
                return self._process_list(name + suffix, structure, device)
        raise NVMLError(FUNCTION_NOT_FOUND)

    def _process_list(self, symbol: str, structure: type[Structure], device: int) -> list[Any]:
        count = self._size_needed(symbol, c_void_p(device))
        entries = (structure * count.value)()
        self._call((symbol,), c_void_p(device), byref(count), entries)
        return list(entries[: count.value])

    def _size_needed(self, symbol: str, *arguments: Any) -> c_uint:
        """NVML tells how many entries a list has; twice that and more, because it may grow before the next call."""
        count = c_uint(0)
        try:
            self._call((symbol,), *(arguments + (byref(count), None)))
        except NVMLError as error:
            if error.value != INSUFFICIENT_SIZE:
                raise
        return c_uint(count.value * 2 + 5)

    def _device_call(self, name: str, device: int, values: tuple[Any, ...]) -> Any:
        symbols, inputs, outputs = FUNCTIONS[name]
        arguments = [kind(value) for kind, value in zip(inputs, values)]
        results = [kind() for kind in outputs]
        self._call(symbols, c_void_p(device), *(arguments + [byref(result) for result in results]))
        plain = [result if isinstance(result, Structure) else result.value for result in results]
        return plain[0] if len(plain) == 1 else plain

    def _string(self, symbol: str, length: int, *arguments: Any) -> bytes:
        text = create_string_buffer(length)
        self._call((symbol,), *(arguments + (text, c_uint(length))))
        return text.value

    def _find(self, symbols: tuple[str, ...]) -> Any:
        return next((getattr(self._library, name) for name in symbols if hasattr(self._library, name)), None)

    def _call(self, symbols: tuple[str, ...], *arguments: Any) -> None:
        function = self._find(symbols)
        if function is None:
            raise NVMLError(FUNCTION_NOT_FOUND)
        code = function(*arguments)
        if code:
            raise NVMLError(code)

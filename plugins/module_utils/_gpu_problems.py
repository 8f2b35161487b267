# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What went wrong with a GPU, its driver or its container runtime, and what to do next.

Private to the collection gpufleet.vllm. A problem is a dict:
{"code": str, "message": what is wrong and where, "next_step": what to try, "gpu": index or None,
 "evidence": the line it was read from or None, "severity": "error|warning"}
Errors make a GPU, a host or a part of the facts unusable. Warnings leave the data valid.
"""

from __future__ import annotations

import re
from typing import Any, Sequence

#: code -> (severity, what is wrong, what to try next). NVIDIA's own wording is in SIGNATURES below.
PROBLEMS = {
    "attached_gpus_missing": (
        "warning",
        "The driver counts more GPUs than it describes",
        "Look for Xid lines in 'dmesg' and compare with 'lspci -d 10de:'.",
    ),
    "cdi_generation_failed": (
        "error",
        "nvidia-ctk cannot describe the GPUs for CDI: the driver library lacks a function",
        "Install matching versions of the driver and of nvidia-container-toolkit, then run"
        " 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'.",
    ),
    "cdi_stale": (
        "error",
        "A CDI specification names a device file that no longer exists",
        "Run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml' again (after each driver or hardware change).",
    ),
    "cdi_unresolvable": (
        "error",
        "No CDI specification describes the device that was asked for",
        "Run 'nvidia-ctk cdi list'; if it is empty, 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'.",
    ),
    "compute_prohibited": (
        "error",
        "The GPU's compute mode forbids every CUDA program",
        "Run 'nvidia-smi -i N -c DEFAULT'.",
    ),
    "container_cuda_requirement": (
        "error",
        "The image asks for a newer CUDA than the host's driver gives",
        "Update the NVIDIA driver of the host, or pin an image that was built for an older CUDA.",
    ),
    "container_device_access_lost": (
        "error",
        "NVML cannot reach the GPU devices: unknown error (in a running container: its device access was taken"
        " away, typically by 'systemctl daemon-reload' under the systemd cgroup driver)",
        "In a container: restart it, then use CDI devices or create /dev/char links with"
        " 'nvidia-ctk system create-dev-char-symlinks --create-all'. On a host: look for Xid lines in 'dmesg'.",
    ),
    "container_nvidia_runtime_missing": (
        "error",
        "The container engine does not know how to give GPUs to a container",
        "Install nvidia-container-toolkit, then run 'nvidia-ctk runtime configure --runtime=docker' and"
        " restart Docker.",
    ),
    "container_toolkit_failed": (
        "error",
        "The NVIDIA container toolkit could not prepare the container",
        "Run 'nvidia-smi' on the host itself first; if it works, 'nvidia-container-cli -k -d /dev/tty info'.",
    ),
    "device_error": (
        "error",
        "The driver sees this GPU but cannot open it",
        "Run 'dmesg | grep -i xid'; reset the GPU with 'nvidia-smi --gpu-reset -i N' or reboot the host.",
    ),
    "driver_library_mismatch": (
        "error",
        "The loaded NVIDIA kernel module and the driver library are of different versions",
        "Reboot the host (or unload and reload the nvidia modules) so that the installed driver is the loaded one.",
    ),
    "driver_not_installed": (
        "error",
        "There is an NVIDIA GPU, but no NVIDIA driver",
        "Install the NVIDIA data-centre driver for this kernel, then run 'nvidia-smi'.",
    ),
    "driver_not_loaded": (
        "error",
        "The NVIDIA kernel module is not loaded or does not answer",
        "Run 'modprobe nvidia' and 'dmesg | grep -i nvidia'; typical causes: a new kernel without a DKMS build,"
        " Secure Boot refusing the module, nouveau holding the card.",
    ),
    "driver_timeout": (
        "error",
        "The NVIDIA driver did not answer in time",
        "Run 'dmesg | grep -iE \"xid|nvidia\"'; a hung GPU needs a reset or a reboot. Without persistence mode the"
        " first call is slow: 'nvidia-smi -pm 1', or raise the option timeout.",
    ),
    "ecc_uncorrectable": (
        "warning",
        "The GPU's memory had uncorrectable ECC errors since the driver was loaded",
        "Drain the GPU and reset it ('nvidia-smi --gpu-reset -i N'); if they return, run NVIDIA's field diagnostic.",
    ),
    "external_power": (
        "error",
        "A GPU lacks external power",
        "Check the power cables of the card.",
    ),
    "fabric_manager_down": (
        "error",
        "There are NVSwitches, but the fabric manager does not run: CUDA fails with 'system not yet initialized'",
        "Run 'systemctl status nvidia-fabricmanager'; its version must equal the driver's. Then"
        " 'systemctl enable --now nvidia-fabricmanager'.",
    ),
    "fabric_not_ready": (
        "error",
        "The NVLink fabric of this GPU is not set up: CUDA fails with 'system not yet initialized'",
        "Run 'systemctl status nvidia-fabricmanager' (its version must equal the driver's), then start it.",
    ),
    "fabric_unhealthy": (
        "error",
        "The NVLink fabric of this GPU is not healthy",
        "Run 'nvidia-smi -q -i N' and look at Fabric/Health; see the log of nvidia-fabricmanager.",
    ),
    "gpu_lost": (
        "error",
        "The GPU has fallen off the bus",
        "Run 'dmesg | grep -i xid' (79 says so); reboot the host. If it comes back, check power, seating and"
        " temperature.",
    ),
    "gpu_requires_reset": (
        "error",
        "The GPU requires a reset before it can be used",
        "Stop its users and run 'nvidia-smi --gpu-reset -i N', or reboot the host.",
    ),
    "inforom_corrupted": (
        "warning",
        "The GPU's infoROM is corrupted; its data are valid, but nvidia-smi exits with 14",
        "The card works; ask the vendor for an infoROM update or a replacement.",
    ),
    "insufficient_permissions": (
        "error",
        "The user may not open the NVIDIA device files",
        "Run the task with 'become: true', or add the user to the group of /dev/nvidiactl; check SELinux.",
    ),
    "jetson_without_nvml": (
        "error",
        "This Jetson's system has neither nvidia-smi nor NVML",
        "Update it to JetPack 6 or newer.",
    ),
    "memory_unknown": (
        "error",
        "The driver does not tell this GPU's memory",
        "Run 'nvidia-smi -q -d MEMORY' as root on the host.",
    ),
    "mig_memory_not_readable": (
        "warning",
        "MIG is enabled and the whole GPU's memory may not be read by this user",
        "Run the task with 'become: true', or rely on the memory of the MIG instances.",
    ),
    "mig_without_instances": (
        "error",
        "MIG is enabled but has no instance: CUDA sees no device here",
        "Create instances ('nvidia-smi mig -cgi PROFILE -C') or switch MIG off ('nvidia-smi -i N -mig 0').",
    ),
    "no_gpu": (
        "error",
        "There is no NVIDIA GPU on this host",
        "Check 'lspci -d 10de:' and the inventory; in a virtual machine, check that the GPU is passed through.",
    ),
    "nouveau": (
        "error",
        "The nouveau driver holds the NVIDIA GPU",
        "Blacklist nouveau ('modprobe.blacklist=nouveau'), rebuild the initramfs, reboot, install the NVIDIA driver.",
    ),
    "nvidia_smi_failed": (
        "error",
        "nvidia-smi failed",
        "Run 'nvidia-smi' on the host and 'dmesg | grep -i nvidia'.",
    ),
    "nvidia_smi_missing": (
        "error",
        "nvidia-smi is not on this host's PATH",
        "Install the NVIDIA driver with its utilities (package nvidia-utils or nvidia-driver-cuda).",
    ),
    "nvidia_smi_usage": (
        "error",
        "This nvidia-smi does not know the option or field that it was asked for",
        "Update the NVIDIA driver; see 'nvidia-smi --help-query-gpu' for the fields of this one.",
    ),
    "nvlink_not_available": (
        "warning",
        "The GPU has no active NVLink",
        "None, unless NVLink is expected: then check the bridges or the fabric manager.",
    ),
    "nvml_failed": (
        "error",
        "NVML could not be used",
        "Run 'nvidia-smi' on the host and 'dmesg | grep -i nvidia'.",
    ),
    "nvml_function_missing": (
        "error",
        "The driver library lacks a function that was called",
        "Install tools and driver of the same release.",
    ),
    "nvml_library_missing": (
        "error",
        "libnvidia-ml.so.1, a part of the NVIDIA driver, is not installed or not found",
        "Install the NVIDIA driver with its libraries, then run 'ldconfig'.",
    ),
    "recovery_action": (
        "error",
        "The driver asks for a recovery of this GPU",
        "Do what the driver asks for: see 'nvidia-smi -q' under GPU Recovery Action.",
    ),
    "remapped_rows_failure": (
        "error",
        "The GPU could not replace failing memory rows",
        "Take the GPU out of service and ask the vendor for a replacement.",
    ),
    "reset_pending": (
        "warning",
        "Failing memory of the GPU is replaced at its next reset",
        "Reset the GPU at the next chance ('nvidia-smi --gpu-reset -i N').",
    ),
    "slowed_down": (
        "warning",
        "The GPU is slowed down by its hardware",
        "Check cooling, power supply and 'nvidia-smi -q -d PERFORMANCE'.",
    ),
    "topology_unknown": (
        "warning",
        "The connections between the GPUs could not be read",
        "Run 'nvidia-smi topo -m' on the host.",
    ),
    "unified_memory": (
        "warning",
        "CPU and GPU share one memory, of which the driver gives no figure: the host's memory counts",
        "Plan with a headroom (headroom_mib) for everything else that runs on this host.",
    ),
    "vfio": (
        "error",
        "The GPU is held by vfio-pci for a virtual machine",
        "Use the GPU inside that virtual machine, or give it back to the nvidia driver.",
    ),
    "vgpu_guest": (
        "warning",
        "This is a vGPU: it needs a licence, and has no NVLink and no peer access unless its profile gives them",
        "Check 'nvidia-smi -q | grep -i license'; without one, the driver slows the vGPU down after a while.",
    ),
    "wsl": (
        "warning",
        "This is WSL2: the driver is Windows's, and does not tell how much memory each process uses",
        "Treat the memory in use as that of others.",
    ),
    "wsl_driver_unavailable": (
        "error",
        "WSL2 cannot reach the Windows NVIDIA driver",
        "Update the Windows driver, run 'wsl --update' and 'wsl --shutdown', then try again.",
    ),
    "xml_unreadable": (
        "error",
        "The output of 'nvidia-smi -q -x' is not readable XML",
        "Run 'nvidia-smi -q -x' on the host; two calls at once, or a dying GPU, are known to break it.",
    ),
}

#: NVIDIA's, Docker's and the shell's messages, most telling first: a text is classified by the first that matches.
SIGNATURES = (
    (r"could not select device driver .*capabilities: \[\[.*gpu", "container_nvidia_runtime_missing"),
    (r"unknown or invalid runtime name: nvidia", "container_nvidia_runtime_missing"),
    (r"runtime .?nvidia.? (is )?not (found|registered)", "container_nvidia_runtime_missing"),
    (r"nvidia-container-runtime.*(no such file|executable file not found)", "container_nvidia_runtime_missing"),
    (r"unresolvable CDI devices", "cdi_unresolvable"),
    (r"failed to stat CDI host device|CDI .*no such file or directory", "cdi_stale"),
    (r"nvidia-ctk.*(symbol lookup error|undefined symbol)", "cdi_generation_failed"),
    (r"requirement error: unsatisfied condition|unsatisfied condition: cuda", "container_cuda_requirement"),
    (r"driver/library version mismatch", "driver_library_mismatch"),
    (r"GPU access blocked by the operating system", "wsl_driver_unavailable"),
    (r"(failed to initialize|shut ?down) NVML: N/A", "wsl_driver_unavailable"),
    (r"libnvidia-ml\.so(\.\d+)?.*cannot open shared object", "nvml_library_missing"),
    (
        r"couldn't find libnvidia-ml|NVML shared library not found|library .?libnvidia-ml\S* not found",
        "nvml_library_missing",
    ),
    (r"couldn't communicate with the NVIDIA driver|driver (is )?not loaded", "driver_not_loaded"),
    (r"nvml error: (driver )?not loaded|NVIDIA driver (is )?not (running|loaded)", "driver_not_loaded"),
    (r"GPU is lost|fallen off the bus|GPU has fallen", "gpu_lost"),
    (r"GPU requires reset|reset required", "gpu_requires_reset"),
    (r"unable to determine the device handle", "device_error"),
    (r"insufficient (external )?power", "external_power"),
    (
        r"insufficient permissions?|suff[ei]?[ce]+i?ent permissions|permission denied|no permission",
        "insufficient_permissions",
    ),
    (
        r"no devices were found|no (supported )?(GPUs|devices) (were )?found|device not found|"
        r"no CUDA-capable device",
        "no_gpu",
    ),
    (r"failed to initialize NVML: unknown error|nvml error: unknown error", "container_device_access_lost"),
    (r"info ?ROM is corrupted|corrupted info ?ROM", "inforom_corrupted"),
    (
        r"is not a valid field to query|invalid (combination|argument|option)|"
        r"must be used in conjunction with|unrecognized option|is not recognized\.",
        "nvidia_smi_usage",
    ),
    (r"does not have or support nvlink|all links are inactive|NVLink is not supported", "nvlink_not_available"),
    (r"function not found|undefined symbol|symbol lookup error", "nvml_function_missing"),
    (r"not well-formed|mismatched tag|ExpatError|</?supported_(graphics|mem)_clock>", "xml_unreadable"),
    (r"nvidia-container-cli|nvidia-container-runtime-hook|nvidia-ctk", "container_toolkit_failed"),
    (
        r"nvidia-smi.?:? (command not found|not found|No such file)|"
        r"executable file not found in|nvidia-smi.*cannot execute|command not found",
        "nvidia_smi_missing",
    ),
    (r"timed? ?out|timeout", "driver_timeout"),
    (r"NVML: \w+|NVIDIA-SMI has failed", "nvml_failed"),
)

#: Exit codes of nvidia-smi (its man page, "RETURN VALUE") and of the shell, for output that says nothing.
#: The same numbers are NVML's return codes (nvml.h, nvmlReturn_t).
RETURN_CODES = {
    2: "nvidia_smi_usage",
    4: "insufficient_permissions",
    6: "no_gpu",
    8: "external_power",
    9: "driver_not_loaded",
    10: "driver_timeout",
    12: "nvml_library_missing",
    13: "nvml_function_missing",
    14: "inforom_corrupted",
    15: "gpu_lost",
    16: "gpu_requires_reset",
    17: "wsl_driver_unavailable",
    18: "driver_library_mismatch",
    126: "insufficient_permissions",
    127: "nvidia_smi_missing",
}

_BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def problem(
    code: str, gpu: int | None = None, detail: str | None = None, evidence: str | None = None
) -> dict[str, Any]:
    """One problem of the table PROBLEMS, with the GPU's index, a detail (a value, a place) and its evidence."""
    severity, message, next_step = PROBLEMS[code]
    if gpu is not None:
        message = f"GPU {gpu}: {message}"
        next_step = next_step.replace("-i N", f"-i {gpu}")
    if detail:
        message = f"{message}: {detail}"
    return {
        "code": code,
        "severity": severity,
        "message": message,
        "next_step": next_step,
        "gpu": gpu,
        "evidence": evidence,
    }


def classify(text: str, return_code: int | None = None) -> dict[str, Any] | None:
    """The problem that a message of nvidia-smi, NVML, Docker or the shell tells of; None if it tells of none.

    text is whatever was printed (stdout and stderr together); return_code helps where the text says nothing.
    """
    for pattern, code in SIGNATURES:
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            line = _line_at(text, match.start())
            return problem(code, detail=bus_id_in(line), evidence=line)
    if not return_code:
        return None
    evidence = text.strip()[:400] or None
    return problem(
        RETURN_CODES.get(return_code, "nvidia_smi_failed"), detail=f"exit code {return_code}", evidence=evidence
    )


def bus_id_in(line: str | None) -> str | None:
    """The PCI bus id that a message names."""
    match = _BUS_ID.search(line or "")
    return match.group(0) if match else None


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def split(problems: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(errors, warnings) of a list of problems."""
    errors = [item for item in problems if item["severity"] == "error"]
    return errors, [item for item in problems if item["severity"] != "error"]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker, the NVIDIA container toolkit, and how a container keeps its GPUs. Private."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .case import DEPLOY, Case, Check, limits, older

CDI_MODES = ("cdi", "jit-cdi")


def docker(case: Case) -> Iterator[Check]:
    """Docker is there, answers, and knows --gpus."""
    facts = case.container_runtime
    if not facts:
        return
    version, oldest = facts.get("docker_version"), limits()["docker"]["oldest"]
    if version and not older(version, oldest):
        yield Check("docker", "ok", f"Docker {version}", "Docker")
    elif version:
        what, fix = f"Docker {version} does not know --gpus", f"Docker {oldest} or newer"
        yield Check("docker", "failed", what, "Docker", fix, "docker version")
    elif _installed(case):
        what = f"Docker does not answer: {facts.get('docker_error')}"
        fix = "start it, and let Ansible become root for the task"
        yield Check("docker", "failed", what, "Docker", fix, "systemctl status docker")
    else:
        what, fix = "Docker is not installed", "install it, or set vllm_host_install to true"
        yield _fixable(case, Check("docker", "failed", what, "Docker", fix), "vllm_host_install")


def _installed(case: Case) -> bool:
    return bool((case.resources.get("commands") or {}).get("docker"))


def nvidia_toolkit(case: Case) -> Iterator[Check]:
    """The NVIDIA container toolkit is there and fits the host's control groups and Docker's --gpus."""
    facts = case.container_runtime
    version = facts.get("toolkit_version")
    if not facts:
        return
    if not version:
        if not facts.get("nvidia_runtime"):
            what, fix = "the NVIDIA container toolkit is not installed", "install it, or set vllm_host_install to true"
            yield _fixable(case, Check("nvidia_toolkit", "failed", what, "Docker", fix), "vllm_host_install")
        return
    fault = _toolkit_fault(facts, version)
    if fault:
        yield Check("nvidia_toolkit", "failed", fault[0], "NVIDIA container toolkit", fault[1], "nvidia-ctk --version")
    else:
        yield Check("nvidia_toolkit", "ok", f"NVIDIA container toolkit {version}", "NVIDIA container toolkit")


def _toolkit_fault(facts: Mapping[str, Any], version: str) -> tuple[str, str] | None:
    """(what is wrong, what would be right)"""
    known = limits()["toolkit"]
    if str(facts.get("cgroup_version")) == "2" and older(version, known["cgroup_v2"]):
        return f"{version} does not know control groups v2, which this host has", f"{known['cgroup_v2']} or newer"
    if facts.get("toolkit_mode") in CDI_MODES and older(version, known["cdi_with_gpus_option"]):
        return f"{version} in mode {facts['toolkit_mode']} refuses --gpus", f"{known['cdi_with_gpus_option']} or newer"
    if facts.get("toolkit_no_cgroups") and not _by_cdi(facts):
        return "no-cgroups = true keeps the GPUs from containers of root", "no-cgroups = false in config.toml"
    return None


def nvidia_runtime(case: Case) -> Iterator[Check]:
    """Docker knows the runtime nvidia, which the systemd units of the engines use."""
    facts = case.container_runtime
    if not facts:
        return
    if facts.get("nvidia_runtime"):
        yield Check("nvidia_runtime", "ok", "Docker knows the runtime nvidia", "Docker")
        return
    what = "Docker does not know the runtime nvidia"
    if facts.get("cdi_devices"):
        what += " (it has CDI devices, but the units of the engines run with --runtime nvidia)"
    fix = "register it, or set vllm_host_configure_runtime to true"
    check = Check(
        "nvidia_runtime",
        "failed",
        what,
        "Docker",
        fix,
        "nvidia-ctk runtime configure --runtime=docker && systemctl reload docker",
    )
    yield _fixable(case, check, "vllm_host_configure_runtime")


def cgroup_driver(case: Case) -> Iterator[Check]:
    """Where systemd owns the containers' control groups and a hook adds the GPUs, a daemon-reload takes them away."""
    facts = case.container_runtime
    driver = facts.get("cgroup_driver")
    if not driver:
        return
    if driver != "systemd" or _by_cdi(facts) or facts.get("dev_char_links"):
        yield Check("cgroup_driver", "ok", f"containers keep their GPUs (cgroup driver {driver})", "Docker")
        return
    variable, command, will_be_fixed = _way_out(case)
    yield Check(
        check="cgroup_driver",
        status="failed",
        what=(
            "running containers lose their GPUs at the next 'systemctl daemon-reload' (each package update runs it): "
            f"cgroup driver systemd, and toolkit {facts.get('toolkit_version') or 'unknown'} does not inject by CDI"
        ),
        where="Docker",
        fix=(
            f"toolkit {limits()['toolkit']['cdi_by_default']} or newer; or vllm_host_cdi true; or "
            "vllm_host_cgroup_driver cgroupfs with vllm_host_restart_docker true"
        ),
        next=case.command(DEPLOY, command),
        fixed_by=variable,
        will_be_fixed=will_be_fixed,
    )


def _way_out(case: Case) -> tuple[str, str, bool]:
    """(variable, what to add to the command line, whether it is switched on): CDI, where the toolkit is new enough."""
    other = case.fixes.get("vllm_host_cgroup_driver") == "cgroupfs" and bool(case.fixes.get("vllm_host_restart_docker"))
    version = case.container_runtime.get("toolkit_version")
    if version and not other and not older(version, limits()["toolkit"]["cdi_with_gpus_option"]):
        return "vllm_host_cdi", "vllm_host_cdi=true", bool(case.fixes.get("vllm_host_cdi"))
    command = "'vllm_host_cgroup_driver=cgroupfs vllm_host_restart_docker=true'"
    return "vllm_host_cgroup_driver", command, other


def _by_cdi(facts: Mapping[str, Any]) -> bool:
    """Whether the runtime nvidia puts the devices into the container's specification, where systemd sees them."""
    mode, version = facts.get("toolkit_mode"), facts.get("toolkit_version")
    if mode in CDI_MODES:
        return True
    return mode in (None, "auto") and bool(version) and not older(str(version), limits()["toolkit"]["cdi_by_default"])


def _fixable(case: Case, check: Check, variable: str) -> Check:
    """The check with the variable that fixes it."""
    return Check(
        **{
            **vars(check),
            "next": check.next or case.command(DEPLOY, f"{variable}=true"),
            "fixed_by": variable,
            "will_be_fixed": bool(case.fixes.get(variable)),
        }
    )

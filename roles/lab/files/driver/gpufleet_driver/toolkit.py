# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-ins for the commands of the NVIDIA container toolkit, as far as facts are gathered from them."""

from __future__ import annotations

import sys

from .profile import Profile, load

DEFAULT_VERSION = "1.18.0"


def _version(profile: Profile | None) -> str:
    return str(profile.driver("container_toolkit_version", DEFAULT_VERSION)) if profile else DEFAULT_VERSION


def nvidia_ctk(arguments: list[str]) -> int:
    """--version, and cdi list: the lab registers the runtime and writes no CDI specification."""
    if arguments in (["--version"], ["-v"]):
        print(f"NVIDIA Container Toolkit CLI version {_version(load())}\ncommit: simulated")
    elif arguments[:2] == ["cdi", "list"]:
        print('time="2026-01-01T00:00:00Z" level=info msg="Found 0 CDI devices"', file=sys.stderr)
    else:
        print(f"nvidia-ctk {' '.join(arguments)} is not simulated (lab of gpufleet.vllm)", file=sys.stderr)
        return 1
    return 0


def nvidia_container_cli(arguments: list[str]) -> int:
    """--version and info."""
    profile = load()
    if arguments in (["--version"], ["-V"]):
        version = _version(profile)
        print(f"cli-version: {version}\nlib-version: {version}\nbuild revision: simulated")
        return 0
    if arguments[:1] != ["info"]:
        print(f"nvidia-container-cli {' '.join(arguments)} is not simulated (lab of gpufleet.vllm)", file=sys.stderr)
        return 1
    if profile is None or profile.error:
        print("nvidia-container-cli: initialization error: nvml error: driver not loaded", file=sys.stderr)
        return 1
    print(f"NVRM version:   {profile.version}\nCUDA version:   {profile.driver('cuda_version')}")
    for gpu in profile.gpus:
        print(f"\nDevice Index:   {gpu.index}\nDevice Minor:   {gpu.profile_index}")
        print(f"Model:          {gpu.identity('name')}\nBrand:          {gpu.identity('brand')}")
        print(f"GPU UUID:       {gpu.identity('uuid')}\nBus Location:   {gpu.raw('pci.bus_id')}")
        print(f"Architecture:   {gpu.identity('compute_capability')}")
    return 0

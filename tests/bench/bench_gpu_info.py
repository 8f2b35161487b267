# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long gpu_info takes for eight GPUs, beside "nvidia-smi -q -x" alone.

    PYTHONPATH=.collections python tests/bench/bench_gpu_info.py [--real] [--rounds N]

Uses the simulated driver of the lab, or with --real the driver of this machine. Prints the fastest run of each in
seconds and its ratio to nvidia-smi; ends with 1 if a whole run of the module by NVML takes longer than 0.5 s. The
simulated nvidia-smi and nvidia-ctk are Python programs without a device behind them: only --real says what the ratio
is on a real host.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DRIVER = REPOSITORY / "roles" / "lab" / "files" / "driver"
MODULE = "ansible_collections.gpufleet.vllm.plugins.modules.gpu_info"
LIMIT_S = 0.5


def simulated_host(root: Path) -> dict[str, str]:
    """Builds the simulated driver with eight H100 below root; the environment that makes it this machine's driver."""
    command = ["make", "-s", "-C", str(DRIVER), f"BUILD={root}/build", f"DESTDIR={root}", "PROFILE=h100-8x", "install"]
    subprocess.run(command, check=True)
    library = next(root.glob("usr/lib*/**/libnvidia-ml.so.1"))
    return {
        "PATH": f"{root}/usr/bin{os.pathsep}{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(library.parent),
        "GPUFLEET_DRIVER_LIBRARY": f"{root}/usr/lib/gpufleet-driver",
        "GPUFLEET_DRIVER_PROFILE": f"{root}/etc/gpufleet-driver/profile",
    }


def run_module(folder: Path, environment: dict[str, str], **arguments: object) -> dict[str, object]:
    """One run of the module in a process of its own, as Ansible starts it on a host."""
    file = folder / "arguments.json"
    file.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
    command = [sys.executable, "-W", "ignore", "-m", MODULE, str(file)]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    result: dict[str, object] = json.loads(output)
    return result


def fastest_seconds(action: Callable[[], object], rounds: int) -> float:
    """The fastest of several rounds, after one that warms the caches: other load only adds."""
    action()
    times = []
    for _round in range(rounds):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", action="store_true", help="this machine's own driver")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = dict(os.environ) if options.real else {**os.environ, **simulated_host(folder)}
        found = run_module(folder, environment, source="nvml", gather_subset=["topology"])
        gpus = found["gpus"]
        print(f"{len(gpus) if isinstance(gpus, list) else 0} GPUs, errors: {found['errors']}")
        cases: dict[str, Callable[[], object]] = {
            "nvidia-smi -q -x": lambda: subprocess.run(
                ["nvidia-smi", "-q", "-x"], env=environment, check=True, capture_output=True
            ),
            "python with AnsibleModule, nothing else": lambda: subprocess.run(
                [sys.executable, "-W", "ignore", "-c", "from ansible.module_utils.basic import AnsibleModule"],
                check=True,
            ),
            "gpu_info, source nvml, GPUs and topology": lambda: run_module(
                folder, environment, source="nvml", gather_subset=["topology"]
            ),
            "gpu_info, source nvml, everything": lambda: run_module(folder, environment, source="nvml", path="/"),
            "gpu_info, source nvidia-smi, everything": lambda: run_module(
                folder, environment, source="nvidia-smi", path="/"
            ),
        }
        seconds = {label: fastest_seconds(action, options.rounds) for label, action in cases.items()}
    for label, value in seconds.items():
        print(f"{value:7.3f} s  {value / seconds['nvidia-smi -q -x']:5.2f} x nvidia-smi  {label}")
    return int(seconds["gpu_info, source nvml, everything"] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _gpu_query, _nvml
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_command import call_in_child, run
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_problems import (
    PROBLEMS,
    RETURN_CODES,
    SIGNATURES,
    classify,
    problem,
)
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import judge, new_gpu, new_host

FIXTURES = Path(__file__).resolve().parents[3] / "unit" / "fixtures" / "nvidia_smi"


def codes(problems):
    return [item["code"] for item in problems]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(name="nvidia_smi")
def install_nvidia_smi(tmp_path, monkeypatch):
    """Puts a program nvidia-smi on PATH: {arguments: (exit code, stdout)}; what else is asked fails as usage does."""

    def install(answers):
        cases = []
        for number, (arguments, (code, output)) in enumerate(answers.items()):
            write(tmp_path / "answers" / str(number), output)
            cases.append(f"'{arguments}') cat {tmp_path}/answers/{number}; exit {code};;")
        script = f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in\n{chr(10).join(cases)}\nesac\nexit 2\n'
        write(tmp_path / "bin" / "nvidia-smi", script)
        (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return lambda: (tmp_path / "calls").read_text().splitlines()

    return install


@pytest.fixture(name="root")
def make_root(tmp_path):
    """An empty directory that stands for "/"."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def add_pci_gpu(root, name, driver=None, device="0x2330", numa="0", cpus="0-31"):
    path = root / "sys/bus/pci/devices" / name
    for file, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", device), ("numa_node", numa)):
        write(path / file, text + "\n")
    write(path / "local_cpulist", cpus + "\n")
    if driver:
        (path / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


# --- running programs and driver libraries with a limit -----------------------------------------------------------


def test_run_gives_code_and_both_outputs(tmp_path):
    assert run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], 5) == (3, "out\n", "err\n")
    assert run([str(tmp_path / "none")], 5)[0] == 127
    write(tmp_path / "file", "")
    code, unused, errors = run([str(tmp_path / "file")], 5)
    assert (code, "ermission denied" in errors) == (126, True)


def test_run_kills_what_hangs_with_its_children():
    start = time.monotonic()
    code, output, unused = run(["/bin/sh", "-c", "echo before; sleep 60 & sleep 60"], 0.2)
    assert (code, output) == (None, "before\n")
    assert time.monotonic() - start < 5


def test_call_in_child_gives_data_time_limit_and_end():
    assert call_in_child(lambda: {"a": ["x" * 200000]}, 5) == ({"a": ["x" * 200000]}, None)
    start = time.monotonic()
    assert call_in_child(lambda: time.sleep(60), 0.2) == (None, "timeout")
    assert time.monotonic() - start < 5
    result, failure = call_in_child(lambda: os.kill(os.getpid(), 9), 5)
    assert result is None and "status 9" in failure
    assert call_in_child(lambda: {}["missing"], 5) == (None, "KeyError: 'missing'")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


# --- which source -------------------------------------------------------------------------------------------------


def stand_in(monkeypatch, collect):
    monkeypatch.setattr(_nvml, "collect", collect)


def one_gpu(source):
    host = new_host(source)
    host["gpus"] = [dict(new_gpu(0), name="Tesla T4", memory_total_mib=15360)]
    return host


def test_nvml_that_hangs_is_given_up_and_nvidia_smi_not_asked(monkeypatch, nvidia_smi, tmp_path):
    nvidia_smi({})
    stand_in(monkeypatch, lambda nvml, topology: time.sleep(60))
    host, problems = _gpu_query.query("auto", 0.2)
    assert (host["gpus"], codes(problems)) == ([], ["driver_timeout"])
    assert "0.2 s" in problems[0]["message"]
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize("failure", ["crash", "library"])
def test_nvidia_smi_where_nvml_cannot_be_used(monkeypatch, nvidia_smi, failure):
    calls = nvidia_smi({"-q -x": (0, (FIXTURES / "gb10-unified-memory.xml").read_text())})
    crash = {
        "crash": lambda nvml, topology: os.kill(os.getpid(), 9),
        "library": lambda nvml, topology: (new_host("nvml"), [problem("nvml_library_missing")]),
    }
    stand_in(monkeypatch, crash[failure])
    host, problems = _gpu_query.query("auto", 5)
    assert (host["source"], host["gpus"][0]["name"], problems) == ("nvidia-smi", "NVIDIA GB10", [])
    assert calls() == ["-q -x"]
    assert _gpu_query.query("nvml", 5)[0]["gpus"] == []


def test_nvml_is_enough(monkeypatch, nvidia_smi, tmp_path):
    nvidia_smi({})
    stand_in(monkeypatch, lambda nvml, topology: (one_gpu("nvml"), []))
    assert _gpu_query.query("auto", 5)[0]["source"] == "nvml"
    assert not (tmp_path / "calls").exists()


# --- nvidia-smi ---------------------------------------------------------------------------------------------------


def test_mig_names_and_topology_cost_one_process_each(nvidia_smi):
    topology = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    topology += "GPU0\t X \tNV12\t0-31\t0\t\tN/A\nGPU1\tNV12\t X \t32-63\t1\t\t9\n"
    calls = nvidia_smi(
        {
            "-q -x": (0, (FIXTURES / "a100-mig-two-modes.xml").read_text()),
            "-L": (0, (FIXTURES / "a100-mig-list.txt").read_text()),
            "topo -m": (0, topology),
        }
    )
    host, problems = _gpu_query.query("nvidia-smi", 5)
    assert calls() == ["-q -x", "-L", "topo -m"]
    instances = host["gpus"][0]["mig"]["instances"]
    assert [instance["profile"] for instance in instances] == ["4g.40gb", "1c.2g.20gb", "1c.2g.20gb"]
    assert instances[2]["uuid"] == "MIG-00000003-0000-0000-0000-000000000000"
    assert host["links"] == [["X", "NV12"], ["NV12", "X"]]
    assert [(gpu["numa_node"], gpu["gpu_numa_id"], gpu["cpu_affinity"]) for gpu in host["gpus"]] == [
        (0, None, "0-31"),
        (1, 9, "32-63"),
    ]
    assert codes(problems) == ["inforom_corrupted"]


def test_topology_that_fails_is_told(nvidia_smi):
    text = (FIXTURES / "a100-mig-two-modes.xml").read_text()
    nvidia_smi({"-q -x": (0, text), "topo -m": (255, "")})
    host, problems = _gpu_query.query("nvidia-smi", 5)
    assert (host["links"], codes(problems)) == ([], ["inforom_corrupted", "topology_unknown"])


def test_the_driver_is_asked_for_the_capability_of_an_unknown_card(nvidia_smi):
    text = (
        (FIXTURES / "gb10-unified-memory.xml").read_text().replace("NVIDIA GB10", "NVIDIA R999").replace("2E12", "FFFF")
    )
    calls = nvidia_smi(
        {
            "-q -x": (0, text),
            " ".join(_gpu_query.CAPABILITY_QUERY): (0, "GPU-0f0f0f0f-1111-2222-3333-444444444444, 13.0\n"),
        }
    )
    gpu = _gpu_query.query("nvidia-smi", 5)[0]["gpus"][0]
    assert (gpu["compute_capability"], gpu["compute_capability_source"]) == ("13.0", "driver")
    assert len(calls()) == 2


def test_unreadable_xml_is_read_as_text(nvidia_smi):
    calls = nvidia_smi(
        {"-q -x": (0, "<nvidia_smi_log><gpu id='1'><x></gpu>"), "-q": (0, (FIXTURES / "h100-mig-q.txt").read_text())}
    )
    host, problems = _gpu_query.query("nvidia-smi", 5)
    assert host["gpus"][0]["memory_total_mib"] == 81559
    assert calls()[:2] == ["-q -x", "-q"]
    assert [(item["code"], item["severity"]) for item in problems] == [("xml_unreadable", "warning")]


@pytest.mark.parametrize("named", ["GPU 0000:0B:00.0", "GPU1: 0000:0B:00.0", "gpu 0000:0B:00.0"])
def test_a_lost_gpu_leaves_the_others(nvidia_smi, named):
    lost = f"Unable to determine the device handle for {named}: GPU is lost.  Reboot the system to recover this GPU\n"
    text = (FIXTURES / "gb10-unified-memory.xml").read_text().replace("<total>N/A<", "<total>4096 MiB<")
    nvidia_smi(
        {
            "-q -x": (15, lost),
            "-q -x -i 0": (0, text),
            "-q -x -i 1": (15, lost),
            "-q -x -i 2": (0, text),
            "-q -x -i 3": (6, "No devices were found\n"),
        }
    )
    host = judge(*_gpu_query.query("nvidia-smi", 5, topology=False))
    assert [(gpu["index"], gpu["state"], gpu["memory_total_mib"]) for gpu in host["gpus"]] == [
        (0, "ok", 4096),
        (1, "gpu_lost", None),
        (2, "ok", 4096),
    ]
    assert [(error["code"], error["gpu"]) for error in host["errors"]] == [("gpu_lost", 1)]
    assert "0000:0B:00.0" in host["errors"][0]["message"]
    assert host["driver_version"] == "580.95.05"


def test_nvidia_smi_that_hangs(nvidia_smi, tmp_path):
    nvidia_smi({})
    write(tmp_path / "bin" / "nvidia-smi", "#!/bin/sh\nsleep 60\n")
    start = time.monotonic()
    host, problems = _gpu_query.query("nvidia-smi", 0.2)
    assert (host["gpus"], codes(problems)) == ([], ["driver_timeout"])
    assert time.monotonic() - start < 5


# --- where there is no GPU ----------------------------------------------------------------------------------------


def explained(root, code, evidence=None):
    host = _gpu_query.complete(new_host("nvml"), [problem(code, evidence=evidence)], root=str(root))
    assert host["gpus"] == []
    return host


def test_no_card(root):
    assert codes(explained(root, "nvml_library_missing")["errors"]) == ["no_gpu"]


@pytest.mark.parametrize(
    ("kernel_driver", "code", "expected"),
    [
        ("nouveau", "nvml_library_missing", "nouveau"),
        ("vfio-pci", "driver_not_loaded", "vfio"),
        (None, "nvidia_smi_missing", "driver_not_installed"),
        (None, "driver_not_loaded", "driver_not_installed"),
        (None, "insufficient_permissions", "insufficient_permissions"),
    ],
)
def test_a_card_without_the_driver(root, kernel_driver, code, expected):
    add_pci_gpu(root, "0000:18:00.0", kernel_driver)
    host = explained(root, code)
    assert codes(host["errors"]) == [expected]
    assert host["pci_gpus"] == [
        {"pci_bus_id": "0000:18:00.0", "pci_device_id": "233010DE", "kernel_driver": kernel_driver}
    ]
    if expected != "insufficient_permissions":
        assert "0000:18:00.0" in host["errors"][0]["message"]


def test_an_installed_driver_that_is_not_loaded(root):
    add_pci_gpu(root, "0000:18:00.0")
    write(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05", "")
    assert codes(explained(root, "driver_not_loaded")["errors"]) == ["driver_not_loaded"]


def test_a_mismatch_names_both_versions(root):
    add_pci_gpu(root, "0000:18:00.0", "nvidia")
    write(root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.04", "")
    write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb\n")
    host = explained(root, "driver_library_mismatch", "NVML library version: 570.124")
    assert (host["kernel_module_version"], host["library_version"]) == ("570.124.06", "570.124.04")
    assert "kernel module 570.124.06, library 570.124.04" in host["errors"][0]["message"]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("proc/sys/kernel/osrelease", "5.15.90.1-microsoft-standard-WSL2", "wsl_driver_unavailable"),
        ("proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0000\0nvidia,tegra234\0", "jetson_without_nvml"),
    ],
)
def test_machines_of_their_own_kind(root, file, text, expected):
    write(root / file, text)
    assert codes(explained(root, "nvml_library_missing")["errors"]) == [expected]


# --- what /proc and /sys add --------------------------------------------------------------------------------------


def test_unified_memory_is_the_hosts(root):
    write(root / "proc/meminfo", "MemTotal:       125698048 kB\nMemAvailable:   104857600 kB\n")
    host = new_host("nvml")
    process = {"pid": 9, "name": "x", "type": "C", "used_memory_mib": 1000, "container": None, "gpu_instance_id": None}
    host["gpus"] = [dict(new_gpu(0), name="NVIDIA GB10", compute_capability="12.1", processes=[process])]
    write(root / "proc/9/cgroup", "0::/system.slice/docker-" + "a" * 64 + ".scope\n")
    gpu = _gpu_query.complete(host, [], ["vllm-chat"], {"a" * 64: "vllm-chat"}, str(root))["gpus"][0]
    assert (gpu["memory_total_mib"], gpu["memory_free_mib"], gpu["memory_source"]) == (122752, 102400, "host")
    assert gpu["memory_used_by_others_mib"] == 122752 - 102400 - 1000
    assert (codes(host["errors"]), codes(host["notices"])) == ([], ["unified_memory"])


def test_memory_of_others_is_not_the_sum_of_the_list(root):
    def process(pid, used):
        return {
            "pid": pid,
            "name": "x",
            "type": "C",
            "used_memory_mib": used,
            "container": None,
            "gpu_instance_id": None,
        }

    host = one_gpu("nvml")
    host["gpus"][0].update(memory_used_mib=9000, processes=[process(1, 3000), process(2, 1000), process(3, None)])
    write(root / "proc/1/cgroup", f"12:devices:/docker/{'b' * 64}\n1:name=systemd:/docker/{'b' * 64}\n")
    write(root / "proc/2/cgroup", f"0::/kubepods.slice/cri-containerd-{'c' * 64}.scope\n")
    gpu = _gpu_query.complete(host, [], ["vllm-chat"], {"b" * 64: "vllm-chat"}, str(root))["gpus"][0]
    assert [entry["container"] for entry in gpu["processes"]] == ["vllm-chat", "c" * 12, None]
    assert gpu["memory_used_by_others_mib"] == 6000


def test_locality_by_pci_with_wide_domains(root):
    add_pci_gpu(root, "f8cf:00:00.0", "nvidia", numa="1", cpus="32-63")
    add_pci_gpu(root, "000f:01:00.0", "nvidia", numa="-1", cpus="0-19")
    host = one_gpu("nvml")
    host["gpus"].append(dict(new_gpu(1), name="NVIDIA GB10", pci_bus_id="0000000F:01:00.0", memory_total_mib=1))
    host["gpus"][0]["pci_bus_id"] = "0000F8CF:00:00.0"
    gpus = _gpu_query.complete(host, [], root=str(root))["gpus"]
    assert [(gpu["numa_node"], gpu["cpu_affinity"]) for gpu in gpus] == [(1, "32-63"), (None, "0-19")]


def nvswitch_host(root, running):
    (root / "proc/driver/nvidia-nvswitch/devices/0000:85:00.0").mkdir(parents=True)
    if running == "unit":
        (root / "sys/fs/cgroup/system.slice/nvidia-fabricmanager.service").mkdir(parents=True)
    if running == "process":
        write(root / "proc/77/comm", "nv-fabricmanage\n")


@pytest.mark.parametrize(("running", "errors"), [("unit", []), ("process", []), (None, ["fabric_manager_down"])])
def test_fabric_manager(root, running, errors):
    nvswitch_host(root, running)
    host = _gpu_query.complete(one_gpu("nvml"), [], root=str(root))
    assert host["fabric_manager"] == {"nvswitches": 1, "running": bool(running)}
    assert codes(host["errors"]) == errors


def test_a_ready_fabric_needs_no_look_at_the_fabric_manager(root):
    nvswitch_host(root, None)
    host = one_gpu("nvml")
    host["gpus"][0]["fabric"].update(state="Completed", status="Success")
    assert codes(_gpu_query.complete(host, [], root=str(root))["errors"]) == []


def test_no_fabric_manager_without_nvswitches(root):
    assert _gpu_query.complete(one_gpu("nvml"), [], root=str(root))["fabric_manager"] is None


# --- the table of problems ----------------------------------------------------------------------------------------


def test_every_problem_says_what_to_do():
    assert {code for unused, code in SIGNATURES} | set(RETURN_CODES.values()) <= set(PROBLEMS)
    for severity, message, next_step in PROBLEMS.values():
        assert severity in ("error", "warning") and message and next_step.endswith(".")


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("NVIDIA-SMI has failed because you do not have suffecient permissions.", 4, "insufficient_permissions"),
        ("Failed to initialize NVML: Driver Not Loaded", 9, "driver_not_loaded"),
        ("No devices were found", 6, "no_gpu"),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 12, "nvml_library_missing"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", 17, "wsl_driver_unavailable"),
        ('could not select device driver "" with capabilities: [[gpu]].', 125, "container_nvidia_runtime_missing"),
        (
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia.",
            125,
            "container_nvidia_runtime_missing",
        ),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8", 1, "container_cuda_requirement"),
        ("nvidia-container-cli: mount error: failed to add device rules", 1, "container_toolkit_failed"),
        ("", 15, "gpu_lost"),
        ("", 77, "nvidia_smi_failed"),
    ],
)
def test_messages(text, code, expected):
    assert classify(text, code)["code"] == expected


def test_silence_is_no_problem():
    assert classify("") is None
    assert classify("Mon Nov 30 2026, all is well", 0) is None

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils import _host_container_runtime as container_runtime
from ansible_collections.gpufleet.vllm.plugins.module_utils import _host_facts

CAPTURES = Path(__file__).resolve().parents[5] / "shared" / "data" / "nvidia_smi" / "container"
ONE, TWO = "1" * 64, "2" * 64


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# --- containers of processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"0::/system.slice/docker-{ONE}.scope", [ONE]),
        (f"0::/../docker-{ONE}.scope", [ONE]),
        (f"0::/docker/{ONE}", [ONE]),
        (f"13:devices:/docker/{ONE}\n1:name=systemd:/docker/{ONE}\n0::/", [ONE]),
        (f"4:memory:/\n3:devices:/system.slice/docker-{ONE}.scope", [ONE]),
        (f"0::/docker/{ONE}/docker/{TWO}", [ONE, TWO]),
        (f"0::/docker/{ONE}/system.slice/docker-{TWO}.scope", [ONE, TWO]),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/cri-containerd-{ONE}.scope",
            [ONE],
        ),
        (f"11:cpu:/kubepods/besteffort/pod0b5d/{ONE}", [ONE]),
        (f"0::/kubepods.slice/kubepods-pod1.slice/crio-{ONE}.scope/container", [ONE]),
        (f"0::/machine.slice/libpod-{ONE}.scope/container", [ONE]),
        (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ONE}.scope", [ONE]),
        (f"0::/system.slice/nerdctl-{ONE}.scope", [ONE]),
        ("0::/lxc.payload.gpu-box/system.slice/x.service", ["gpu-box"]),
        ("7:devices:/lxc/gpu-box", ["gpu-box"]),
        ("0::/user.slice/user-1000.slice/session-3.scope", []),
        ("0::/", []),
        ("", []),
        (None, []),
    ],
)
def test_container_ids(text, expected):
    assert _host_facts.container_ids(text) == expected


def gpus_with(*pids):
    return [{"processes": [{"pid": pid, "container": None} for pid in pids]}]


def test_container_names(tmp_path):
    write(tmp_path / "proc/1/cgroup", f"0::/docker/{ONE}/docker/{TWO}\n")
    write(tmp_path / "proc/2/cgroup", "0::/lxc.payload.gpu-box\n")
    write(tmp_path / "proc/3/cgroup", "0::/user.slice\n")
    gpus = gpus_with(1, 2, 3, 4)
    for names, expected in (({ONE: "outer"}, "outer"), ({TWO: "inner"}, "inner"), ({}, TWO[:12])):
        _host_facts.name_containers(gpus, names, str(tmp_path))
        assert [process["container"] for process in gpus[0]["processes"]] == [expected, "gpu-box", None, None]


def test_a_host_that_is_a_container_itself(tmp_path):
    write(tmp_path / "proc/self/cgroup", f"0::/docker/{ONE}/system.slice/ssh.service\n")
    write(tmp_path / "proc/1/cgroup", f"0::/docker/{ONE}/system.slice/sshd.service\n")
    write(tmp_path / "proc/2/cgroup", f"0::/docker/{ONE}/docker/{TWO}\n")
    write(tmp_path / "proc/3/cgroup", f"0::/docker/{TWO}\n")
    found = [_host_facts.process_container_ids(pid, str(tmp_path)) for pid in (1, 2, 3)]
    assert found == [[], [TWO], [TWO]]


# --- disk ---------------------------------------------------------------------------------------------------------

MOUNTS = r"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 22 253:1 / {data} rw shared:2 - xfs /dev/mapper/vg-data rw
31 22 0:50 / {data}/nfs rw shared:3 master:7 - nfs4 server:/models rw,vers=4.2
32 22 0:51 / {data}/with\040blank ro,relatime - overlay overlay rw,lowerdir=/a
33 22 0:52 / {data}/tank rw - zfs tank/models rw
34 22 8:17 / {data}/usb rw - ext4 /dev/sdb1 ro
"""


@pytest.fixture(name="disks")
def make_disks(tmp_path):
    """(root, data): an NVMe system disk, a mirror over NVMe and a hard disk, and mounts of other kinds below data."""
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    for name in ("nfs", "with blank", "tank", "usb"):
        (data / name).mkdir()
    write(root / "proc/self/mountinfo", MOUNTS.format(data=data))
    devices = root / "sys/devices"
    for disk, rotational in (("nvme0n1", 0), ("sda", 1), ("sdb", 1)):
        write(devices / disk / "queue/rotational", f"{rotational}\n")
    for path in ("nvme0n1/nvme0n1p2", "nvme0n1/nvme0n1p3", "sda/sda1", "sdb/sdb1", "dm-1/slaves", "md0/slaves"):
        (devices / path).mkdir(parents=True)
    for slave in ("md0",):
        (devices / "dm-1/slaves" / slave).symlink_to(devices / slave)
    for slave in ("nvme0n1/nvme0n1p3", "sda/sda1"):
        (devices / "md0/slaves" / os.path.basename(slave)).symlink_to(devices / slave)
    (root / "sys/dev/block").mkdir(parents=True)
    for number, path in (("259:2", "nvme0n1/nvme0n1p2"), ("253:1", "dm-1"), ("8:17", "sdb/sdb1")):
        (root / "sys/dev/block" / number).symlink_to(devices / path)
    return root, data


def disk(disks, name):
    root, data = disks
    return _host_facts.disk(str(data / name), str(root))


def test_disk_of_a_directory_that_is_not_there_yet(disks):
    found = disk(disks, "models/chat")
    assert (found["exists"], found["mount_point"], found["file_system"]) == (False, str(disks[1]), "xfs")
    assert found["source"] == "/dev/mapper/vg-data"
    assert found["rotational"] is True
    assert found["total_mib"] >= found["free_mib"] > 0


@pytest.mark.parametrize(
    ("name", "file_system", "network", "rotational", "read_only"),
    [
        ("nfs/x", "nfs4", True, None, False),
        ("with blank", "overlay", False, None, True),
        ("tank", "zfs", False, None, False),
        ("usb", "ext4", False, True, True),
        ("../elsewhere", "ext4", False, False, False),
    ],
)
def test_disk_by_kind(disks, name, file_system, network, rotational, read_only):
    found = disk(disks, name)
    assert (found["file_system"], found["network"], found["rotational"], found["read_only"]) == (
        file_system,
        network,
        rotational,
        read_only,
    )


def test_disk_of_this_machine(tmp_path):
    found = _host_facts.disk(str(tmp_path))
    assert found["exists"] and found["mount_point"] and found["file_system"]


def test_memory_of_this_machine():
    found = _host_facts.memory()
    assert found["memory_total_mib"] >= found["memory_available_mib"] > 0


def test_kernel_module_versions_of_both_flavours(tmp_path):
    for text in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86.05  Fri Jul 14 20:46:33 UTC 2023\nGCC version:  12\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.86.05  Release Build  (dvs-builder@U16)\n",
    ):
        write(tmp_path / "proc/driver/nvidia/version", text)
        assert _host_facts.kernel_module_version(str(tmp_path)) == "535.86.05"
    assert _host_facts.kernel_module_version(str(tmp_path / "none")) is None


# --- Docker, the toolkit, CDI -------------------------------------------------------------------------------------


@pytest.fixture(name="docker")
def serve_docker(tmp_path):
    """Starts a Docker Engine API on a socket that answers {path: data}; gives the sockets to ask."""
    servers = []

    def serve(answers):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(answers[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self):
                return "socket"

            def log_message(self, *_arguments):
                """Quiet."""

        server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "docker.sock"), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return (str(tmp_path / "none.sock"), str(tmp_path / "docker.sock"))

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_docker_is_asked_over_its_socket(docker, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    info = {
        "ServerVersion": "28.2.2",
        "CgroupDriver": "systemd",
        "CgroupVersion": "2",
        "DockerRootDir": "/var/lib/docker",
        "DefaultRuntime": "runc",
        "Runtimes": {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}},
        "CDISpecDirs": ["/nonexistent"],
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}, {"Source": "cdi", "ID": "vendor/nic=1"}],
    }
    ports = [{"PublicPort": 8000, "Type": "tcp"}, {"PublicPort": 53, "Type": "udp"}, {"PrivatePort": 9, "Type": "tcp"}]
    containers = [{"Id": ONE, "Names": ["/vllm-chat"], "Ports": ports}, {"Id": TWO, "Names": []}]
    images = [{"RepoTags": ["a:1", "<none>:<none>"], "RepoDigests": ["a@sha256:0"]}, {"RepoTags": None}]
    sockets = docker({"/info": info, "/containers/json": containers, "/images/json": images})
    facts = container_runtime.container_runtime(5, sockets)
    assert facts["docker_error"] is None
    assert (facts["docker_version"], facts["cgroup_driver"], facts["cgroup_version"]) == ("28.2.2", "systemd", "2")
    assert (facts["runtimes"], facts["nvidia_runtime"]) == (["nvidia", "runc"], True)
    assert facts["cdi_devices"] == ["nvidia.com/gpu=0"]
    assert facts["images"] == ["a:1", "a@sha256:0"]
    assert facts["disk"]["path"] == "/var/lib/docker"
    assert container_runtime.container_names(5, sockets) == {ONE: "vllm-chat"}
    assert container_runtime.published_ports(5, sockets) == {8000: "vllm-chat"}


def test_docker_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    sockets = (str(tmp_path / "none.sock"),)
    facts = container_runtime.container_runtime(5, sockets)
    assert facts["docker_error"] == f"no socket at {sockets[0]}"
    assert (facts["docker_version"], facts["nvidia_runtime"], facts["images"]) == (None, False, [])
    assert container_runtime.published_ports(5, sockets) == {}
    assert container_runtime.container_names(5, sockets) == {}
    write(tmp_path / "dead.sock", "")
    assert str(tmp_path / "dead.sock") in container_runtime.docker_get("/info", 5, (str(tmp_path / "dead.sock"),))[1]


CDI_YAML = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: "0:1"
- name: all
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - hookName: createContainer
"""


def test_cdi_specifications():
    expected = ["nvidia.com/gpu=0", "nvidia.com/gpu=0:1", "nvidia.com/gpu=all"]
    assert container_runtime.parse_cdi_specification(CDI_YAML) == expected
    as_json = {"kind": "nvidia.com/gpu", "devices": [{"name": "0"}, {"name": "0:1"}, {"name": "all"}]}
    assert container_runtime.parse_cdi_specification(json.dumps(as_json)) == expected
    for other in (None, "", "kind: management.nvidia.com/gpu\ndevices:\n- name: all\n", '{"devices": []}', "[1]"):
        assert container_runtime.parse_cdi_specification(other) == []


def test_toolkit_configuration():
    text = '[nvidia-container-cli]\n#no-cgroups = false\nno-cgroups = true\n[nvidia-container-runtime]\nmode = "cdi"\n'
    assert container_runtime._toolkit_config(text) == {"toolkit_mode": "cdi", "toolkit_no_cgroups": True}
    newer = container_runtime._toolkit_config('[nvidia-container-runtime]\nmode = "jit-cdi"\n')
    assert newer == {"toolkit_mode": "jit-cdi", "toolkit_no_cgroups": None}
    assert container_runtime._toolkit_config(None) == {"toolkit_mode": None, "toolkit_no_cgroups": None}


def test_toolkit_version_by_dpkg():
    status = "Package: nvidia-container-toolkit-base\nStatus: install ok installed\nVersion: 9.9.9-1\n\n"
    status += (
        "Package: nvidia-container-toolkit\nStatus: install ok installed\nArchitecture: arm64\nVersion: 1.19.0~rc.2-1\n"
    )
    assert container_runtime.dpkg_version("nvidia-container-toolkit", status) == "1.19.0~rc.2"
    removed = status.replace("install ok installed\nArch", "deinstall ok config-files\nArch")
    assert container_runtime.dpkg_version("nvidia-container-toolkit", removed) is None
    assert container_runtime.dpkg_version("nvidia-container-toolkit", None) is None


def test_docker_info_capture():
    path = CAPTURES / "docker-info-28.2-nvidia-runtime-and-cdi.json"
    if not path.exists():
        print(f"skipped: no captures at {CAPTURES}")
        pytest.skip(f"no captures at {CAPTURES}")
    facts = container_runtime.describe_docker_info(json.loads(path.read_text()))
    entries = [json.loads(line) for line in (CAPTURES.parent / "index.jsonl").read_text().splitlines()]
    expected = next(entry["expected"] for entry in entries if entry["file"] == f"container/{path.name}")
    assert {key: facts[key] for key in expected} == expected

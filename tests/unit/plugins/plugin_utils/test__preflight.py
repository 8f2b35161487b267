# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each trouble of a host by itself, starting from a host without any."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_problems import PROBLEMS, problem, split
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._preflight import CHECK_NAMES, preflight, table
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._preflight.case import COMMANDS, DEPLOY, limits, older
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._preflight.resources import overlaps

IMAGE = "vllm/vllm-openai:v0.32.0"
INSTANCE = {"name": "chat", "image": IMAGE, "checkpoint": "/models/chat"}


def a_gpu(index=0, **values):
    gpu = dict(new_gpu(index), uuid=f"GPU-{index}", name="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    return {**gpu, "memory_total_mib": 81920, "memory_source": "card", "persistence_mode": "Enabled", **values}


def a_host(**values):
    """A host with two A100 that has all it needs."""
    host = {**new_host("nvml"), "driver_version": "580.95.05", "cuda_driver_version": "13.0", "fabric_manager": None}
    host["gpus"] = [a_gpu(0), a_gpu(1)]
    disk = {"path": "/var/lib/docker", "file_system": "ext4", "source": "/dev/nvme0n1p2", "free_mib": 200 * 1024}
    disk.update(network=False, rotational=False, read_only=False)
    host["container_runtime"] = {
        "docker_version": "28.2.2",
        "docker_error": None,
        "cgroup_driver": "systemd",
        "cgroup_version": "2",
        "nvidia_runtime": True,
        "toolkit_version": "1.18.2",
        "toolkit_mode": "auto",
        "toolkit_no_cgroups": False,
        "cdi_devices": [],
        "dev_char_links": False,
        "images": [],
        "disk": disk,
    }
    host["host"] = {
        "memory_total_mib": 512 * 1024,
        "memory_available_mib": 500 * 1024,
        "machine": "x86_64",
        "systemd": True,
        "commands": {name: f"/usr/bin/{name}" for name in ("bash", "curl", "docker", "python3")},
        "listening": [{"port": 22, "address": "0.0.0.0", "pid": 1, "process": "sshd", "container": None}],
    }
    host["disk"] = {**disk, "path": "/models"}
    return {**host, **values}


def changed(host, part, **values):
    """The host with other values in one of its parts."""
    return {**copy.deepcopy(host), part: {**host[part], **values}}


def not_ok(host, *plans, **arguments):
    """{check: (status, what)} of all that is not ok."""
    checks = preflight(host, plans or (INSTANCE,), host="gpu1", **arguments)
    return {check["check"]: (check["status"], check["what"]) for check in checks if check["status"] != "ok"}


def only(host, name, *plans, **arguments):
    """The one check that is not ok; it says all that a reader needs."""
    checks = [c for c in preflight(host, plans or (INSTANCE,), host="gpu1", **arguments) if c["status"] != "ok"]
    assert [check["check"] for check in checks] == [name]
    assert all(checks[0][key] for key in ("what", "where", "fix", "next"))
    return checks[0]


def with_problems(*problems, **values):
    errors, notices = split(problems)
    return a_host(errors=errors, notices=notices, **values)


def test_a_host_that_has_all():
    assert not_ok(a_host()) == {}
    checks = [check["check"] for check in preflight(a_host(), [INSTANCE])]
    assert set(checks) <= set(CHECK_NAMES)
    assert {"driver", "gpu", "driver_for_image", "card_for_image", "docker", "image_disk", "port"} <= set(checks)


def test_without_instances_the_host_alone_is_judged():
    assert not {"port", "driver_for_image"} & {check["check"] for check in preflight(a_host())}


def test_facts_without_the_other_subsets_are_judged_as_far_as_they_go():
    host = a_host()
    for part in ("container_runtime", "host", "disk"):
        del host[part]
    assert {check["check"] for check in preflight(host, [INSTANCE])} == {
        "driver",
        "gpu",
        "persistence_mode",
        "driver_for_image",
        "card_for_image",
    }


# --- driver and GPUs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for code, entry in PROBLEMS.items() if entry[0] == "error"])
def test_every_error_of_gpu_info_fails_and_has_a_command(code):
    """Whether it is of the host or of a GPU that every engine uses."""
    name = "fabric_manager" if code.startswith("fabric_") else None
    for gpu in (None, 1):
        check = only(with_problems(problem(code, gpu=gpu)), name or ("driver" if gpu is None else "gpu"))
        assert check["status"] == "failed"
        assert check["where"] == ("host" if gpu is None else "GPU 1")
        assert not check["next"].endswith(".")


def test_no_gpu_is_one_failure_and_not_many():
    host = with_problems(problem("driver_not_installed"), gpus=[], driver_version=None)
    assert only(host, "driver")["what"].startswith("There is an NVIDIA GPU, but no NVIDIA driver")


def test_one_row_for_the_same_fault_of_several_gpus():
    check = only(
        with_problems(*(problem("fabric_not_ready", gpu=index, detail="x") for index in (0, 1))), "fabric_manager"
    )
    assert check["where"] == "GPU 0, 1"


@pytest.mark.parametrize(
    ("code", "status"),
    [("remapped_rows_failure", "warning"), ("gpu_lost", "failed"), ("device_error", "failed")],
)
def test_a_fault_of_a_gpu_that_no_engine_uses(code, status):
    """One that is lost keeps NVIDIA's runtime from starting any container; others concern their card alone."""
    host = with_problems(problem(code, gpu=1))
    assert only(host, "gpu", {**INSTANCE, "gpus": [0]})["status"] == status
    assert only(host, "gpu", {**INSTANCE, "devices": {"gpu1": ["GPU-0"]}})["status"] == status
    assert only(host, "gpu", {**INSTANCE, "gpus": ["GPU-1"]})["status"] == "failed"


def test_a_mig_device_uses_its_gpu():
    host = with_problems(problem("remapped_rows_failure", gpu=1))
    host["gpus"][1]["mig"] = {"mode": "Enabled", "instances": [{"uuid": "MIG-1"}]}
    assert only(host, "gpu", {**INSTANCE, "devices": {"gpu1": ["MIG-1"]}})["status"] == "failed"


def test_notices_warn():
    assert only(with_problems(problem("ecc_uncorrectable", gpu=0, detail="3")), "gpu")["status"] == "warning"
    assert only(with_problems(problem("wsl")), "driver")["status"] == "warning"
    assert not_ok(with_problems(problem("slowed_down", gpu=1)), {**INSTANCE, "gpus": ["0"]}) == {}


def test_unified_memory_asks_for_headroom():
    host = with_problems(problem("unified_memory", gpu=0, detail="NVIDIA GB10"))
    assert only(host, "unified_memory")["status"] == "warning"
    assert not_ok(host, {**INSTANCE, "headroom_mib": 8192}) == {}


def test_persistence_mode():
    host = a_host(gpus=[a_gpu(0), a_gpu(1, persistence_mode="Disabled")])
    check = only(host, "persistence_mode")
    assert (check["status"], check["where"], check["will_be_fixed"]) == ("warning", "GPU 1", False)
    assert check["next"].endswith("--limit gpu1 --extra-vars vllm_host_persistence_mode=true")
    assert only(host, "persistence_mode", fixes={"vllm_host_persistence_mode": True})["will_be_fixed"]
    assert not_ok(host, {**INSTANCE, "gpus": ["GPU-0"]}) == {}
    assert not_ok(a_host(gpus=[a_gpu(0, persistence_mode=None)])) == {}


# --- images -------------------------------------------------------------------------------------------------------


def test_a_driver_that_is_too_old_for_the_image():
    host = a_host(driver_version="470.57.02")
    check = only(host, "driver_for_image")
    assert check["status"] == "failed"
    assert "470.57.02" in check["what"] and "580.65.06" in check["what"]
    assert check["where"] == f"image {IMAGE} of chat"


@pytest.mark.parametrize(
    ("name", "image", "environment"),
    [
        ("NVIDIA A100-SXM4-80GB", IMAGE, {"VLLM_ENABLE_CUDA_COMPATIBILITY": 1}),
        ("NVIDIA GeForce RTX 3090", "vllm/vllm-openai:v0.19.0", {"NVIDIA_DISABLE_REQUIRE": "true"}),
    ],
)
def test_an_older_driver_on_the_condition_that_the_instance_meets(name, image, environment):
    """Forward compatibility on data-centre cards, CUDA's minor-version compatibility on the others."""
    host = a_host(driver_version="535.183.01", gpus=[a_gpu(name=name)])
    variable = next(iter(environment))
    refused = only(host, "driver_for_image", {**INSTANCE, "image": image})
    assert refused["status"] == "failed" and variable in refused["fix"]
    off = {**INSTANCE, "image": image, "environment": {variable: "0"}}
    assert only(host, "driver_for_image", off)["status"] == "failed"
    on = {**INSTANCE, "image": image, "environment": environment}
    assert only(host, "driver_for_image", on)["status"] == "warning"


def test_a_card_without_kernels_in_the_image():
    host = a_host(gpus=[a_gpu(0), a_gpu(1, name="Tesla P100-PCIE-16GB", compute_capability="6.0")])
    assert only(host, "card_for_image")["status"] == "failed"
    assert not_ok(host, {**INSTANCE, "gpus": ["GPU-0"]}) == {}


def test_a_card_that_does_not_answer_is_not_judged():
    gpus = [a_gpu(0), {**new_gpu(1), "state": "gpu_lost"}]
    assert not_ok(a_host(gpus=gpus)) == {}


def test_the_processor_of_the_host_decides_which_kernels_there_are():
    host = a_host(gpus=[a_gpu(compute_capability="7.5")])
    assert not_ok(host) == {}
    assert only(changed(host, "host", machine="aarch64"), "card_for_image")["status"] == "failed"


def test_an_image_that_is_no_release():
    check = only(a_host(), "release", {**INSTANCE, "image": "vllm/vllm-openai:latest"})
    assert check["status"] == "failed" and "latest" in check["what"]


def test_one_row_for_an_image_of_several_instances():
    rows = preflight(a_host(driver_version="470.57.02"), [INSTANCE, {**INSTANCE, "name": "embed", "port": 8001}])
    assert [row["where"] for row in rows if row["check"] == "driver_for_image"] == [f"image {IMAGE} of chat, embed"]


# --- Docker -------------------------------------------------------------------------------------------------------

NO_DOCKER = {"docker_version": None, "docker_error": "no socket at /run/docker.sock", "cgroup_driver": None}
NO_DOCKER.update(nvidia_runtime=False, toolkit_version=None, cgroup_version=None)


def test_no_docker():
    host = changed(a_host(), "container_runtime", **NO_DOCKER)
    host["host"]["commands"]["docker"] = None
    found = not_ok(host)
    assert {name: status for name, (status, _what) in found.items()} == dict.fromkeys(
        ("docker", "nvidia_toolkit", "nvidia_runtime"), "failed"
    )
    assert found["docker"][1] == "Docker is not installed"
    fixes = {"vllm_host_install": True, "vllm_host_configure_runtime": True}
    fixed = {row["check"]: row["fixed_by"] for row in preflight(host, [INSTANCE], fixes=fixes) if row["will_be_fixed"]}
    assert fixed == {
        "docker": "vllm_host_install",
        "nvidia_toolkit": "vllm_host_install",
        "nvidia_runtime": "vllm_host_configure_runtime",
    }


def test_docker_that_does_not_answer():
    host = changed(a_host(), "container_runtime", docker_version=None, docker_error="Permission denied")
    check = only(host, "docker", fixes={"vllm_host_install": True})
    assert "Permission denied" in check["what"]
    assert (check["next"], check["will_be_fixed"]) == ("systemctl status docker", False)


def test_docker_that_is_too_old():
    assert only(changed(a_host(), "container_runtime", docker_version="18.09.1"), "docker")["status"] == "failed"


def test_the_runtime_is_not_registered():
    host = changed(a_host(), "container_runtime", nvidia_runtime=False, cdi_devices=["nvidia.com/gpu=all"])
    check = only(host, "nvidia_runtime")
    assert check["status"] == "failed" and "CDI" in check["what"]
    assert "nvidia-ctk runtime configure" in check["next"]


@pytest.mark.parametrize(
    ("facts", "part"),
    [
        ({"toolkit_version": "1.7.0", "cgroup_driver": "cgroupfs"}, "control groups v2"),
        ({"toolkit_version": "1.17.4", "toolkit_mode": "cdi"}, "refuses --gpus"),
        ({"toolkit_version": "1.17.8", "cgroup_driver": "cgroupfs", "toolkit_no_cgroups": True}, "no-cgroups"),
    ],
)
def test_a_toolkit_that_does_not_fit(facts, part):
    check = only(changed(a_host(), "container_runtime", **facts), "nvidia_toolkit")
    assert check["status"] == "failed" and part in check["what"]


@pytest.mark.parametrize(
    ("facts", "keeps"),
    [
        ({"toolkit_version": "1.17.8"}, False),
        ({"toolkit_version": "1.17.8", "toolkit_mode": None}, False),
        ({"toolkit_version": "1.18.2", "toolkit_mode": "legacy"}, False),
        ({"toolkit_version": None}, False),
        ({"toolkit_version": "1.17.8", "cgroup_driver": "cgroupfs"}, True),
        ({"toolkit_version": "1.17.8", "dev_char_links": True}, True),
        ({"toolkit_version": "1.17.8", "toolkit_mode": "cdi"}, True),
        ({"toolkit_version": "1.18.0~rc.2", "toolkit_mode": None}, True),
    ],
)
def test_gpus_after_a_daemon_reload(facts, keeps):
    host = changed(a_host(), "container_runtime", **facts)
    if keeps:
        assert not_ok(host) == {}
    else:
        assert only(host, "cgroup_driver")["status"] == "failed"


@pytest.mark.parametrize(
    ("version", "fixes", "variable", "will_be_fixed"),
    [
        ("1.17.8", {}, "vllm_host_cdi", False),
        ("1.17.8", {"vllm_host_cdi": True}, "vllm_host_cdi", True),
        ("1.14.3", {"vllm_host_cdi": True}, "vllm_host_cgroup_driver", False),
        ("1.14.3", {"vllm_host_cgroup_driver": "cgroupfs"}, "vllm_host_cgroup_driver", False),
        (
            "1.14.3",
            {"vllm_host_cgroup_driver": "systemd", "vllm_host_restart_docker": True},
            "vllm_host_cgroup_driver",
            False,
        ),
        (
            "1.17.8",
            {"vllm_host_cgroup_driver": "cgroupfs", "vllm_host_restart_docker": True},
            "vllm_host_cgroup_driver",
            True,
        ),
    ],
)
def test_ways_to_keep_the_gpus(version, fixes, variable, will_be_fixed):
    check = only(changed(a_host(), "container_runtime", toolkit_version=version), "cgroup_driver", fixes=fixes)
    assert (check["fixed_by"], check["will_be_fixed"]) == (variable, will_be_fixed)
    assert check["next"] == COMMANDS[DEPLOY] + " --limit gpu1" if will_be_fixed else variable in check["next"]


# --- the host -----------------------------------------------------------------------------------------------------


def test_systemd_and_commands():
    assert only(changed(a_host(), "host", systemd=False), "systemd")["status"] == "failed"
    commands = a_host()["host"]["commands"]
    check = only(changed(a_host(), "host", commands={**commands, "curl": None}), "commands")
    assert "needs curl" in check["what"]
    check = only(changed(a_host(), "host", commands={**commands, "docker": "/snap/bin/docker"}), "commands")
    assert "/snap/bin/docker" in check["what"] and check["status"] == "failed"


def with_docker_disk(**values):
    host = a_host()
    return changed(host, "container_runtime", disk={**host["container_runtime"]["disk"], **values})


def test_room_for_images():
    needed = limits()["image"]["unpacked_gib"] + limits()["image"]["compressed_gib"]
    small = with_docker_disk(free_mib=int((needed - 1) * 1024))
    check = only(small, "image_disk")
    assert check["status"] == "failed" and IMAGE in check["what"] and check["where"].startswith("/var/lib/docker")
    assert not_ok(with_docker_disk(free_mib=int((needed + 1) * 1024))) == {}
    assert not_ok(small, image_gib=10) == {}
    other = {**INSTANCE, "name": "b", "port": 8001, "image": "vllm/vllm-openai:v0.31.0"}
    assert set(not_ok(with_docker_disk(free_mib=int((needed + 1) * 1024)), INSTANCE, other)) == {"image_disk"}


@pytest.mark.parametrize(
    ("image", "there", "found"),
    [
        (IMAGE, [IMAGE], True),
        ("docker.io/" + IMAGE, [IMAGE], True),
        (IMAGE + "@sha256:12", ["vllm/vllm-openai@sha256:12"], True),
        (IMAGE + "@sha256:12", [IMAGE], True),
        ("mirror:5000/vllm:v0.32.0@sha256:12", ["mirror:5000/vllm@sha256:12"], True),
        (IMAGE, ["vllm/vllm-openai:v0.31.0"], False),
        (IMAGE, ["vllm/vllm-openai@sha256:12"], False),
    ],
)
def test_an_image_that_is_there_needs_no_room(image, there, found):
    host = changed(with_docker_disk(free_mib=100), "container_runtime", images=there)
    assert ("image_disk" in not_ok(host, {**INSTANCE, "image": image})) is not found


def test_docker_on_a_network_or_read_only_disk():
    assert only(with_docker_disk(network=True), "image_disk")["status"] == "failed"
    assert only(with_docker_disk(read_only=True), "image_disk")["status"] == "failed"


@pytest.mark.parametrize(
    ("disk", "part"),
    [
        ({"network": True, "file_system": "nfs4", "source": "server:/models"}, "network"),
        ({"rotational": True, "source": "/dev/sda1"}, "rotating"),
        ({"rotational": True, "source": "/dev/vda1"}, None),
        ({"rotational": None}, None),
    ],
)
def test_the_disk_of_the_checkpoints(disk, part):
    host = changed(a_host(), "disk", **disk)
    if part:
        check = only(host, "model_disk")
        assert check["status"] == "warning" and part in check["what"] and "/models" in check["where"]
    else:
        assert not_ok(host) == {}


def test_ram():
    host = changed(a_host(), "host", memory_total_mib=64 * 1024, memory_available_mib=60 * 1024)
    assert not_ok(host) == {}
    offload = {**INSTANCE, "engine_args": {"cpu_offload_gb": 40, "tensor_parallel_size": 2}}
    check = only(host, "memory", offload)
    assert check["status"] == "failed" and "about 84 GiB" in check["what"]  # 2 x (2 + 40)
    kv = {**INSTANCE, "arguments": [{"name": "kv_offloading_size", "value": 60}]}
    assert only(host, "memory", kv)["status"] == "warning"


@pytest.mark.parametrize(
    ("wanted", "taken", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("0.0.0.0", "10.0.0.5", True),
        ("10.0.0.4", "10.0.0.5", False),
        ("127.0.0.1", "::", True),
        ("::", "10.0.0.5", True),
        ("[::1]", "::1", True),
        ("127.0.0.1", "::1", False),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        ("gpu1.example", "127.0.0.1", False),
    ],
)
def test_sockets_that_exclude_each_other(wanted, taken, expected):
    assert overlaps(wanted, taken) is expected


@pytest.mark.parametrize(
    ("listener", "part"),
    [
        ({"process": "docker-proxy", "pid": 9, "container": "vllm-other"}, "the container vllm-other"),
        ({"process": "nginx", "pid": 9, "container": None}, "nginx (process 9)"),
        ({"process": None, "pid": None, "container": None}, "another user"),
        ({"process": "docker-proxy", "pid": 9, "container": "vllm-chat"}, None),
    ],
)
def test_a_port_that_is_taken(listener, part):
    host = changed(a_host(), "host", listening=[{"port": 8000, "address": "0.0.0.0", **listener}])
    if part:
        check = only(host, "port")
        assert check["status"] == "failed" and part in check["what"] and "instance chat, port 8000" in check["where"]
    else:
        assert not_ok(host) == {}
    assert not_ok(host, {**INSTANCE, "port": 8001}) == {}


def test_what_is_tolerated_only_warns():
    host = with_docker_disk(free_mib=100)
    assert only(host, "image_disk", tolerate=["image_disk"])["status"] == "warning"
    assert only(host, "image_disk", tolerate=["port"])["status"] == "failed"


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("20.10.24+dfsg1", "19.03", False),
        ("18.09", "19.03", True),
        ("1.19.0~rc.2", "1.18.0", False),
        ("28.2.2", "28.2.2", False),
        ("unknown", "1.0", True),
    ],
)
def test_versions(version, than, expected):
    assert older(version, than) is expected


# --- the table ----------------------------------------------------------------------------------------------------


def text_of(host, *plans, **arguments):
    return table(preflight(host, plans or (INSTANCE,), host="gpu1", **arguments), "gpu1")


def test_a_host_without_trouble_is_one_line():
    assert text_of(a_host()) == "gpu1 can run this: 0 failed, 0 warnings, 14 ok\n"


def test_failures_first_in_100_columns_and_the_next_command_last():
    host = with_problems(problem("gpu_lost", gpu=1, detail="00000000:41:00.0"), driver_version="470.57.02")
    host["gpus"][0]["persistence_mode"] = "Disabled"
    text = text_of(changed(host, "host", commands={"curl": None}))
    lines = text.splitlines()
    assert lines[0].startswith("gpu1 cannot run this: 3 failed, 1 warning, ")
    assert max(map(len, lines)) <= 92  # Ansible indents a message by 8
    assert [line.split()[1] for line in lines if line.startswith("  FAILED")] == ["gpu", "driver_for_image", "commands"]
    assert text.index("FAILED") < text.index("warning  ")
    assert lines[-1] == "Next, on gpu1: dmesg | grep -i xid"


def test_a_playbook_is_a_command_of_the_controller():
    lines = text_of(a_host(gpus=[a_gpu(persistence_mode="Disabled")])).splitlines()
    assert lines[-1].startswith("Next: ansible-playbook gpufleet.vllm.deploy_vllm --limit gpu1")


def test_what_will_be_fixed_does_not_keep_a_host_from_running():
    host = changed(a_host(), "container_runtime", nvidia_runtime=False)
    text = text_of(host, fixes={"vllm_host_configure_runtime": True})
    assert text.startswith("gpu1 can run this after what is to be fixed: 1 failed")
    assert "will be fixed: vllm_host_configure_runtime is set" in text

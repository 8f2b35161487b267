# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_problems import problem
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import judge as judge_host
from ansible_collections.gpufleet.vllm.plugins.module_utils._gpu_shape import new_gpu, new_host, new_mig_instance
from ansible_collections.gpufleet.vllm.plugins.modules import wait_gpu_memory as module


def process(pid, used, container=None, name="python3", gpu_instance=None):
    return {
        "pid": pid,
        "name": name,
        "container": container,
        "used_memory_mib": used,
        "type": "C",
        "gpu_instance_id": gpu_instance,
    }


def host_with(free, *processes, **facts):
    host = new_host("nvml")
    gpu = dict(new_gpu(0), uuid="GPU-a", name="NVIDIA L40S", memory_total_mib=46068, memory_free_mib=free)
    host["gpus"] = [dict(gpu, processes=list(processes), **facts)]
    return host


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(name="wait")
def wait_for_host():
    """wait(hosts as they are at each look, **parameters) -> (result, number of looks)."""

    def wait(*hosts, needed=40000, uuid="GPU-a", **params):
        clock, looks = Clock(), []

        def look():
            looks.append(clock.now)
            return hosts[min(len(looks), len(hosts)) - 1]

        params = {"own_containers": [], "before_stop": False, "timeout": 5, **params}
        params["gpus"] = [{"uuid": uuid, "needed_gib": needed / 1024}]
        return module.wait(params, look, clock.sleep, clock.monotonic), len(looks)

    return wait


def test_enough_is_free_at_once(wait):
    result, looks = wait(host_with(45000))
    assert (result["waited_seconds"], looks) == (0, 1)
    assert result["gpus"][0]["free_mib"] == 45000
    assert module.lacking(result["gpus"]) == []


def test_it_goes_on_as_soon_as_the_memory_is_released(wait):
    held = host_with(5000, process(7, 40000, "vllm-chat"))
    result, looks = wait(held, held, host_with(45000), own_containers=["vllm-chat"])
    assert (result["waited_seconds"], looks) == (2, 3)


def test_who_holds_the_memory_is_named_when_the_time_is_over(wait):
    held = host_with(5000, process(7, 30000, "vllm-old"), process(8, None, name=None))
    result, looks = wait(held)
    assert looks == 6
    told = module.failure_message(module.lacking(result["gpus"]), result["waited_seconds"])
    assert "after 5 s" in told
    assert "GPU GPU-a (NVIDIA L40S): 5000 MiB free, 40000 MiB needed; held by " in told
    assert "pid 7 python3 in container vllm-old, 30000 MiB, pid 8 ?" in told
    assert "docker ps --filter name=vllm-old" in told


@pytest.mark.parametrize(("holders", "following"), [((process(9, 1),), "ps -fp 9"), ((), "Next: nvidia-smi")])
def test_the_next_command_suits_the_holder(wait, holders, following):
    result, _looks = wait(host_with(0, *holders), timeout=0)
    assert following in module.failure_message(result["gpus"], 0)


def test_what_is_stopped_next_counts_as_free(wait):
    held = host_with(5000, process(7, 38000, "vllm-chat"), process(8, 2000, "vllm-other"))
    params = {"own_containers": ["vllm-chat"], "timeout": 0}
    before, _looks = wait(held, before_stop=True, **params)
    assert before["gpus"][0]["free_mib"] == 43000
    assert [holder["pid"] for holder in before["gpus"][0]["holders"]] == [8]
    after, _looks = wait(held, before_stop=False, **params)
    assert module.lacking(after["gpus"])


@pytest.mark.parametrize(
    ("host", "before_stop"),
    [(host_with(None), False), (host_with(5000, process(7, None, "vllm-chat")), True)],
)
def test_without_a_figure_it_does_not_wait(wait, host, before_stop):
    result, looks = wait(host, own_containers=["vllm-chat"], before_stop=before_stop)
    assert (looks, result["gpus"][0]["free_mib"], module.lacking(result["gpus"])) == (1, None, [])


def test_a_mig_device_has_its_own_memory_and_processes(wait):
    device = dict(new_mig_instance(1), uuid="MIG-b", profile="3g.40gb", gpu_instance_id=2, memory_free_mib=100)
    host = host_with(None, process(7, 1, gpu_instance=1), process(8, 39000, gpu_instance=2))
    host["gpus"][0]["mig"] = {"mode": "Enabled", "pending_mode": "Enabled", "instances": [device]}
    result, _looks = wait(host, uuid="MIG-b")
    (gpu,) = module.lacking(result["gpus"])
    assert gpu["name"] == "NVIDIA L40S MIG 3g.40gb"
    assert [holder["pid"] for holder in gpu["holders"]] == [8]


def test_a_gpu_by_its_index(wait):
    assert wait(host_with(45000), uuid="0")[0]["gpus"][0]["free_mib"] == 45000


@pytest.mark.parametrize(
    ("host", "uuid", "message"),
    [
        (host_with(1), "GPU-b", "no GPU GPU-b on this host. There are: GPU-a."),
        (host_with(1, state="gpu_lost"), "GPU-a", "GPU GPU-a does not work: gpu_lost"),
        (
            judge_host(new_host("nvml"), [problem("driver_not_loaded")]),
            "GPU-a",
            problem("driver_not_loaded")["next_step"][:20],
        ),
    ],
)
def test_what_can_never_become_free_fails_at_once(wait, host, uuid, message):
    with pytest.raises(module.GpuError, match=message):
        wait(host, uuid=uuid)

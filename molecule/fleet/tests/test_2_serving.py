"""An engine that served and ends, and what it runs on: it comes back by itself, or stays down and says so."""

from __future__ import annotations

import subprocess

from fleet import KEY, OLD


def test_after_an_hour_it_crashes_and_comes_back(host):
    before, archived = host.invocation, host.failures()
    # An hour is over at once.
    host.replay(clock_rate=36000, faults=[{"fault": "illegal_memory_access", "after_seconds": 3600}])
    host.wait_until(lambda: host.unit("SubState") == ["auto-restart"])
    host.replay()
    assert host.wait_until(host.serves) == OLD
    assert host.invocation != before
    (failure,) = [folder for folder in host.failures() if folder not in archived]
    assert "an illegal memory access was encountered" in host.read(f"cat {failure}/log")
    assert KEY not in host.read(f"cat {failure}/*")


def test_a_crash_loop_stays_down_and_keeps_its_first_failure(host, deploy):
    archived = host.failures()
    host.replay(clock_rate=36000, faults=["nccl_init", {"fault": "oom_serving", "after_seconds": 3600}])
    host.wait_until(lambda: host.unit("ActiveState") == ["failed"], 120)
    assert host.read("docker ps --quiet") == ""
    added = [folder for folder in host.failures() if folder not in archived]
    # What killed the engine that served, not what the restarts met.
    assert "CUDA out of memory" in host.read(f"cat {added[0]}/log")
    assert "NCCL error" not in host.read(f"cat {added[0]}/log")
    # The deployment that follows says why it does not start, and starts it when the cause is gone.
    deploy(host).failed_with("NCCL error")
    host.replay()
    deploy(host).succeeded()
    assert host.serves() == OLD


def test_it_outlives_a_restart_of_docker(host):
    host.read("systemctl restart docker")
    assert host.wait_until(host.serves) == OLD


def test_it_is_back_after_a_reboot(host, deploy):
    subprocess.run(["docker", "restart", host.container], check=True, capture_output=True, timeout=120)
    assert host.wait_until(host.serves, 120) == OLD
    host.wait_until(lambda: host.run("systemctl is-active ssh").returncode == 0)
    before = host.invocation
    deploy(host).succeeded()
    assert host.invocation == before

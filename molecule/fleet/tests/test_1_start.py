"""A new release that does not start: the old one is back, and the message says why."""

from __future__ import annotations

import json

import pytest
from fleet import KEY, NEW, OLD


@pytest.mark.parametrize(
    ("number", "fault", "said"),
    [
        (0, "kernel_backend", "Could not find nvcc"),
        (1, "oom_kv_cache", "CUDA out of memory"),
        (2, "killed", "SIGKILL"),
    ],
    ids=["crash", "out of GPU memory", "killed"],
)
def test_the_old_release_is_back(fleet, deploy, number, fault, said):
    host = fleet[number]
    host.replay(faults=[{"fault": fault, "release": NEW}])
    before, archived = host.release()["number"], host.failures()
    deploy(host, fleet_release=NEW).failed_with(host.name, said, f"back to release {before}", f":v{OLD}", "failures/")
    assert host.serves() == OLD
    assert host.release()["number"] == before
    assert host.unit("ActiveState", "NRestarts") == ["active", "0"]
    # systemd may have tried again before the controller looked: the first is the one that is asked for.
    failure = [folder for folder in host.failures() if folder not in archived][0]
    assert said in host.read(f"cat {failure}/log {failure}/failure.json")
    assert NEW in json.loads(host.read(f"cat {failure}/plan.json"))["image"]
    assert KEY not in host.read(f"cat {failure}/*")


def test_an_engine_that_asks_nobody_for_a_key_is_not_kept(host, deploy):
    host.replay(faults=[{"fault": "no_key_check", "release": NEW}])
    deploy(host, fleet_release=NEW).failed_with("without a key", "HTTP 200 instead of 401", "back to release")
    assert host.serves() == OLD
    assert host.request("/v1/models", key="wrong")[0] == 401


def test_memory_that_is_released_late_is_waited_for(host, deploy):
    host.replay(memory_release_seconds=8)
    host.read("systemctl restart vllm-demo")
    host.wait_until(host.serves)
    deploy(host, fleet_release=NEW).succeeded()
    assert host.serves() == NEW

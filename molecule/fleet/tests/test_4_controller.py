"""The controller, or the way to it, is lost in the middle of a deployment; or there are two of them."""

from __future__ import annotations

import pytest
from fleet import NEW, OLD

#: Long enough to be caught in the middle.
SLOW = {"phase_seconds": {"loading": 6}}


def caught(host, start):
    """A deployment of the new release, caught while its engine starts."""
    deployment = start(host, fleet_release=NEW)
    host.wait_until(lambda: NEW in host.read("docker ps --format '{{.Image}}'"), 120)
    assert deployment.process.poll() is None, deployment.end
    return deployment


@pytest.fixture
def starting(host, start):
    host.replay(**SLOW)
    return caught(host, start)


def test_ssh_is_lost_in_the_middle(host, starting, deploy):
    with host.without_ssh():
        starting.finish()
        assert starting.process.returncode != 0
        assert "UNREACHABLE" in starting.output
        # What was started goes on without anybody.
        assert host.wait_until(host.serves) == NEW
    before = host.invocation
    deploy(host, fleet_release=NEW).succeeded()
    assert (host.serves(), host.invocation) == (NEW, before)
    assert host.release()["state"] == "served"


def test_the_controller_is_killed_in_the_middle_and_run_again(host, starting, deploy):
    starting.kill()
    result = deploy(host, fleet_release=NEW).succeeded()
    assert "taken over" in result.output or "is gone" in result.output
    assert host.serves() == NEW
    assert host.release()["state"] == "served"


def test_the_controller_is_killed_and_what_it_started_does_not_start(host, start, deploy):
    host.replay(**SLOW, faults=[{"fault": "kernel_backend", "release": NEW}])
    caught(host, start).kill()
    deploy(host, fleet_release=NEW).failed_with("Could not find nvcc", "back to release")
    assert host.serves() == OLD


def test_two_controllers_at_once(host, start, deploy):
    # The first is still at it when the second has planned, which takes its time on a busy machine.
    host.replay(phase_seconds={"loading": 45})
    starting = caught(host, start)
    deploy(host, fleet_release=OLD).failed_with(host.name, "another deployment", "vllm_break_lock")
    starting.finish().succeeded()
    assert host.serves() == NEW

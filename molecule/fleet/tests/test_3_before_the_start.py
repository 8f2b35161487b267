"""What makes a deployment impossible is found before the old engine is touched: it never stops serving."""

from __future__ import annotations

import contextlib

import pytest
from fleet import KEY, NEW, OLD, SCENARIO

MODEL = "/data/models/tiny-chat"


@pytest.fixture
def untouched(host):
    """The host; at the end the engine that served before serves on, never stopped."""
    before, release = host.invocation, host.release()["number"]
    yield host
    assert host.serves() == OLD
    assert host.invocation == before
    assert host.release()["number"] == release


def test_a_port_that_is_taken(untouched, deploy):
    untouched.read("systemd-run --unit stranger python3 -m http.server 8001")
    try:
        deploy(untouched, fleet_instance={"port": 8001}).failed_with(untouched.name, "8001", "python3")
    finally:
        untouched.read("systemctl stop stranger")


def test_a_gpu_that_is_taken_between_plan_and_start(untouched, deploy):
    # The new plan needs the second GPU, too, which was idle.
    result = deploy(
        untouched,
        fleet_instance={"engine_args": {"tensor_parallel_size": 2}},
        vllm_before_batch=f"{SCENARIO}/tests/take_gpu.yml",
        vllm_instance_memory_timeout=5,
    )
    result.failed_with(untouched.name, "/opt/train/bin/python", "4711")


def test_a_truncated_shard(untouched, deploy):
    untouched.read(
        f"rm -rf /srv/truncated && cp -r {MODEL} /srv/truncated && truncate --size -1000 /srv/truncated/*.safetensors"
    )
    deploy(untouched, fleet_instance={"checkpoint": "/srv/truncated"}).failed_with(
        untouched.name, "/srv/truncated", "safetensors"
    )


def test_a_wrong_digest(untouched, deploy):
    wrong = {"image": f"gpufleet-lab-replay:v{NEW}@sha256:{'0' * 64}"}
    deploy(untouched, fleet_release=NEW, fleet_instance=wrong).failed_with(untouched.name, "0" * 12, "digest")


@pytest.mark.parametrize("key", ["", "two\nlines"])
def test_a_key_that_is_none(untouched, deploy, key):
    result = deploy(untouched, vllm_api_key=key).failed_with(untouched.name, "API key", "demo")
    assert not key or key not in result.output


def test_no_room_while_the_image_is_loaded(untouched, deploy):
    untouched.run(f"docker rmi gpufleet-lab-replay:v{NEW}")
    # Docker unpacks an archive there first.
    with untouched.small_disk("/var/lib/docker/tmp", "size=30m"):
        deploy(untouched, fleet_release=NEW).failed_with(untouched.name, "no space left on device", NEW)
    assert untouched.run(f"docker image inspect gpufleet-lab-replay:v{NEW}").returncode != 0


@pytest.mark.parametrize(
    ("options", "said"),
    [("size=1m", "free"), ("nr_inodes=3", "became full")],
    ids=["before the copy", "during the copy"],
)
def test_no_room_for_the_model(untouched, deploy, options, said):
    asked = {"checkpoint": "/srv/small/model", "checkpoint_source": {"path": MODEL, "on": "host"}}
    with untouched.small_disk("/srv/small", options):
        deploy(untouched, fleet_instance=asked).failed_with(untouched.name, "/srv/small", said)
        assert untouched.run("test -e /srv/small/model").returncode != 0
    untouched.read("rmdir /srv/small")


def test_a_host_that_is_refused_stops_all(fleet, deploy):
    before = [host.invocation for host in fleet]
    with contextlib.ExitStack() as end:
        fleet[2].read("systemd-run --unit stranger python3 -m http.server 8001")
        end.callback(fleet[2].read, "systemctl stop stranger")
        deploy(*fleet, fleet_release=NEW, fleet_instance={"port": 8001}).failed_with(
            fleet[2].name, "nothing was changed"
        )
    assert [host.invocation for host in fleet] == before
    assert [host.serves() for host in fleet] == [OLD] * 3


def test_a_key_that_was_changed_on_the_host_is_put_right(host, deploy):
    host.read("sed -i s/=.*/=strange/ /etc/vllm/demo/engine.env && systemctl restart vllm-demo")
    host.wait_until(lambda: host.serves("strange"))
    assert host.request("/v1/models")[0] == 401
    result = deploy(host).succeeded()
    assert host.serves() == OLD
    assert host.request("/v1/models", key="strange")[0] == 401
    assert KEY not in result.output and "strange" not in result.output

"""What can go wrong when an engine over two hosts is deployed: it is refused, or all members go back."""

from __future__ import annotations

import pytest
from pair import NEW, OLD, playbook


def test_the_new_release_and_nothing_restarts_the_next_time(pair):
    playbook(pair_release=NEW).succeeded()
    assert pair.serves() == NEW
    before = pair.invocations
    assert "changed=0" in playbook(pair_release=NEW).succeeded().output
    assert pair.invocations == before
    playbook(name="rollback_vllm", pair_release=NEW).succeeded()
    assert pair.serves() == OLD


@pytest.mark.parametrize(("rank", "host"), [(0, "gpu1"), (1, "gpu2")])
def test_one_failure_takes_all_back(pair, rank, host):
    pair.replay(faults=[{"fault": "oom_weights", "node_rank": rank, "release": NEW}])
    playbook(pair_release=NEW).failed_with(
        f"{host}: vllm-demo failed to start", "CUDA out of memory", "back to release"
    )
    assert pair.serves() == OLD
    assert pair.first.plan == pair.second.plan


def test_an_image_that_is_another_on_one_member(pair):
    pair.second.read(f"docker tag gpufleet-lab-replay:v{OLD} gpufleet-lab-replay:v{NEW}")
    before = pair.invocations
    try:
        # Nothing is fetched: what has the name is taken for it.
        playbook(pair_release=NEW, vllm_image_source={}).failed_with("gpu2", "image")
        assert pair.invocations == before
    finally:
        pair.second.read(f"docker rmi gpufleet-lab-replay:v{NEW}")


def test_a_port_that_a_firewall_blocks(pair):
    before = pair.invocations
    with pair.first.firewall("INPUT --protocol tcp --syn --dport 29000 --jump REJECT"):
        result = playbook(pair_release=NEW)
    result.failed_with("does not answer on port 29000", "let all TCP ports through", "nothing was changed")
    assert pair.invocations == before


def test_a_name_that_does_not_resolve(pair):
    wanted = {"tensor_parallel_size": 2, "master_addr": "rank0.invalid"}
    playbook(pair_engine_args=wanted).failed_with("the name rank0.invalid does not resolve", "master_addr")
    assert pair.serves() == OLD


def test_a_member_that_is_left_out(pair):
    playbook("--limit", "gpu1", pair_release=NEW).failed_with("names gpu2, which is not planned in this run")
    assert pair.serves() == OLD

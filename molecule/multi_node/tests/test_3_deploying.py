"""What can go wrong when an engine over two hosts is deployed: it is refused, or all members go back."""

from __future__ import annotations

from pair import NEW, OLD, playbook


def test_a_port_that_a_firewall_blocks_and_a_name_that_does_not_resolve(pair):
    before = pair.invocations
    for member in pair.members:
        # No name server answers in the lab. By itself the resolver asks again and again.
        member.read("echo options timeout:1 attempts:1 >> /etc/resolv.conf")
    pair.first.firewall("INPUT --protocol tcp --syn --dport 29000 --jump REJECT")
    wanted = {"tensor_parallel_size": 2, "master_addr": "rank0.invalid"}
    playbook(pair_release=NEW, pair_engine_args=wanted).failed_with(
        "does not answer on port 29000",
        "let all TCP ports through",
        "the name rank0.invalid does not resolve",
        "nothing was changed",
    )
    assert pair.invocations == before


def test_one_failure_takes_all_back(pair):
    kept = [len(member.failures()) for member in pair.members]
    pair.replay(faults=[{"fault": "oom_weights", "node_rank": 1, "release": NEW}])
    playbook(pair_release=NEW).failed_with("gpu2: vllm-demo failed to start", "CUDA out of memory", "back to release")
    assert pair.serves() == OLD
    assert pair.first.plan == pair.second.plan
    logs = [
        " ".join(member.read(f"cat {folder}/log") for folder in member.failures()[number:])
        for member, number in zip(pair.members, kept, strict=True)
    ]
    assert "CUDA out of memory" in logs[1]
    assert all(NEW in log for log in logs)


def test_an_image_that_is_another_on_one_member(pair):
    """Nothing is fetched: what has the name is taken for it. The test before left the new image on both hosts."""
    name = f"gpufleet-lab-replay:v{NEW}"
    right = pair.second.read(f"docker image inspect --format '{{{{.Id}}}}' {name}")
    pair.second.read(f"docker tag gpufleet-lab-replay:v{OLD} {name}")
    before = pair.invocations
    try:
        playbook(pair_release=NEW, vllm_image_source={}).failed_with(f"{name} is not the same image on every host")
        assert pair.invocations == before
    finally:
        pair.second.read(f"docker tag {right} {name}")


def test_the_new_release_and_the_way_back(pair):
    playbook(pair_release=NEW).succeeded()
    assert pair.serves() == NEW
    playbook(name="rollback_vllm", pair_release=NEW).succeeded()
    assert pair.serves() == OLD

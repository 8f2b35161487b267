"""A member of an engine that served is lost, at each phase: the engine ends as a whole and comes back as a whole."""

from __future__ import annotations

from pair import NERVOUS, OLD, PATIENCE

PHASES = ("starting", "loading", "compiling", "profiling", "allocating", "capturing", "warming")


def all_anew(pair, before):
    """Whether every member has begun another start."""
    return all(new != old for new, old in zip(pair.invocations, before, strict=True))


def test_a_rank_that_is_killed_takes_the_others_along(pair):
    before = pair.invocations
    pair.second.read("docker kill vllm-demo")
    pair.wait_until(lambda: all_anew(pair, before))
    assert pair.wait_until(pair.serves) == OLD


def test_a_rank_that_is_lost_at_each_phase_of_a_start(pair):
    """One start after the other, each lost one phase later. The engines themselves notice nothing."""
    for member in pair.members:
        member.drop_in("patience", PATIENCE)
    before = [len(member.failures()) for member in pair.members]
    faults = [
        {"fault": "killed", "phase": phase, "node_rank": 1, "starts": number} for number, phase in enumerate(PHASES, 1)
    ]
    pair.replay(faults=faults)
    pair.second.read("docker kill vllm-demo")
    pair.wait_until(lambda: len(pair.second.failures()) >= before[1] + 1 + len(PHASES), 180)
    assert pair.wait_until(pair.serves) == OLD
    assert [member.state for member in pair.members] == ["running", "running"]
    # The log of every rank is kept, of the one that was lost and of the one that was ended for it.
    first, second = (member.failures()[number:] for member, number in zip(pair.members, before, strict=True))
    assert len(second) == 1 + len(PHASES)
    assert len(first) >= len(second) - 1
    assert "killed" in pair.second.read(f"cat {second[1]}/*.json").lower()


def test_the_network_is_cut_while_it_serves_and_comes_back(pair):
    # The engines have the patience of real ones from their next start on.
    for member in pair.members:
        member.drop_in("nervous", NERVOUS, "vllm-members@demo")
        member.read("systemctl restart vllm-members@demo")
    before = pair.invocations
    pair.cut()
    pair.wait_until(lambda: all_anew(pair, before))
    assert [member.state for member in pair.members] == ["start-pre", "start-pre"]
    assert pair.serves() is None
    pair.wait_until(lambda: "cannot be reached" in pair.first.read("journalctl -u vllm-demo --lines 5 --output cat"))
    for member in pair.members:
        told = member.read("journalctl -u vllm-members@demo --lines 20 --output cat")
        assert "has not answered for" in told, told
    pair.heal()
    for member in pair.members:
        member.read("systemctl daemon-reload; systemctl restart vllm-members@demo")
    assert pair.wait_until(pair.serves) == OLD


def test_a_member_that_fails_again_and_again_stays_down(pair):
    pair.replay(faults=[{"fault": "oom_weights", "node_rank": 1}])
    pair.second.read("docker kill vllm-demo")
    pair.wait_until(lambda: pair.second.read("systemctl is-failed vllm-demo || true") == "failed", 120)
    # The other waits, bounded, and does not run half an engine.
    pair.wait_until(lambda: pair.first.state in ("start-pre", "failed"))
    assert pair.serves() is None
    assert "CUDA out of memory" in pair.second.read(f"cat {pair.second.failures()[-1]}/log")

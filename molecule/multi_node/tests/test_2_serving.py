"""A member of an engine that served is lost, at each phase: the engine ends as a whole and comes back as a whole."""

from __future__ import annotations

import pytest
from pair import OLD

PHASES = ("starting", "loading", "compiling", "profiling", "allocating", "capturing", "warming")


def test_a_rank_that_is_killed_takes_the_others_along(pair):
    before = pair.invocations
    pair.second.read("docker kill vllm-demo")
    pair.wait_until(lambda: all(new != old for new, old in zip(pair.invocations, before, strict=True)))
    assert pair.wait_until(pair.serves) == OLD


@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_is_lost_while_all_start(pair, phase):
    """The engines themselves notice nothing: a heartbeat that long is a hang for a user."""
    starts = len(pair.second.failures())
    fault = {"fault": "killed", "phase": phase, "node_rank": 1, "starts": 1}
    pair.replay(faults=[fault], heartbeat_timeout_seconds=600)
    pair.second.read("rm -f /var/cache/vllm/*/replay-starts-*")
    for member in pair.members:
        member.read("systemctl restart --no-block vllm-demo")
    pair.wait_until(lambda: len(pair.second.failures()) > starts)
    pair.replay()
    assert pair.wait_until(pair.serves) == OLD
    assert [member.state for member in pair.members] == ["running", "running"]


def test_the_network_is_cut_while_it_serves_and_comes_back(pair):
    # Without the watchers, the engines would notice after ten minutes.
    pair.replay(heartbeat_timeout_seconds=600)
    before = pair.invocations
    peer = pair.first.address
    with pair.second.firewall(f"INPUT --source {peer} --jump DROP", f"OUTPUT --destination {peer} --jump DROP"):
        pair.wait_until(lambda: all(new != old for new, old in zip(pair.invocations, before, strict=True)))
        assert [member.state for member in pair.members] == ["start-pre", "start-pre"]
        assert pair.serves() is None
        assert "cannot be reached" in pair.first.read("journalctl --unit vllm-demo --lines 5 --output cat")
    assert pair.wait_until(pair.serves) == OLD


def test_a_member_that_fails_again_and_again_stays_down(pair):
    pair.replay(faults=[{"fault": "oom_weights", "node_rank": 1}])
    pair.second.read("docker kill vllm-demo")
    pair.wait_until(lambda: pair.second.read("systemctl is-failed vllm-demo || true") == "failed", 120)
    # The other waits, bounded, and does not run half an engine.
    pair.wait_until(lambda: pair.first.state in ("start-pre", "failed"))
    assert pair.serves() is None
    assert "CUDA out of memory" in pair.second.read(f"cat {pair.second.failures()[-1]}/log")

"""A deployment of the whole fleet: batch by batch, up to the first bad one; and the way back."""

from __future__ import annotations

from fleet import NEW, OLD


def test_a_bad_batch_ends_it_and_the_rest_is_left_alone(fleet, deploy):
    first, bad, last = fleet
    untouched = last.invocation
    bad.replay(faults=[{"fault": "oom_weights", "release": NEW}])
    result = deploy(*fleet, fleet_release=NEW, vllm_batches=[1])
    result.failed_with(bad.name, "CUDA out of memory", "back to release", f"Not touched: {last.name}")
    assert [host.serves() for host in fleet] == [NEW, OLD, OLD]
    assert last.invocation == untouched
    # On demand, too: the release to go back to may not start any more.
    first.replay(faults=[{"fault": "oom_weights", "release": OLD}])
    result = deploy(first, playbook="rollback_vllm", vllm_roll_back=["demo"])
    result.failed_with("CUDA out of memory", "back to release", f":v{NEW}", "which serves again")
    assert first.serves() == NEW
    first.replay()
    deploy(first, playbook="rollback_vllm").succeeded()
    assert first.serves() == OLD

"""A start that hangs."""

from __future__ import annotations

from fleet import NEW, OLD


def test_a_start_that_hangs_is_given_up(host, deploy):
    host.replay(faults=[{"fault": "hang", "phase": "compiling", "release": NEW}])
    before = host.release()["number"]
    result = deploy(host, fleet_release=NEW, vllm_instance_start_timeout=10)
    result.failed_with(host.name, "unchanged for", f"back to release {before}")
    assert host.serves() == OLD

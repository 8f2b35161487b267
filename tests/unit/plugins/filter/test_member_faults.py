# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.gpufleet.vllm.plugins.filter.member_faults import FilterModule

member_faults = FilterModule().filters()["member_faults"]
PLAN = {"name": "big", "hosts": ["a", "b"], "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/models/m"}
GOOD = {"name": "big", "restart": True, "image": "sha256:1", "model_manifest": "sha256:2"}


def fault(text, followed=False):
    return {"name": "big", "fault": text, "followed": followed}


def faults(a, b, here=("a", "b"), **more):
    return member_faults(PLAN, {"a": a, "b": b}, here=list(here), **more)


def test_equal_members_go_on():
    assert faults(GOOD, GOOD) == []


def test_who_met_the_fault_comes_before_who_followed():
    assert faults(fault("a: was ended", followed=True), fault("b: out of memory")) == ["b: out of memory"]
    # Before ansible-core 2.19 what is told is text.
    assert faults(fault("a: was ended", followed="True"), fault("disk full", followed="False")) == ["b: disk full"]


def test_if_all_followed_that_is_said():
    assert len(faults(fault("x", followed=True), fault("y", followed=True))) == 2


def test_a_member_that_did_not_come_stops_all():
    (told,) = faults(GOOD, {"name": "another", "restart": True})
    assert told.startswith("b: did not come so far")


def test_a_lost_connection_stops_all_unless_the_engine_runs_already():
    assert "connection was lost" in faults(GOOD, {}, here=["a"])[0]
    assert faults(GOOD, {}, here=["a"], lost_is_fault=False) == []
    met, lost = faults(fault("a: waits for b"), {}, here=["a"], lost_is_fault=False)
    assert met == "a: waits for b" and lost.startswith("b: the connection was lost")


def test_another_image_or_checkpoint_is_named_with_its_host():
    (told,) = faults(GOOD, {**GOOD, "image": "sha256:3"})
    assert "the image vllm/vllm-openai:v0.32.0 is not the same on all hosts (a: 1; b: 3)" in told
    (told,) = faults(GOOD, {**GOOD, "model_manifest": "sha256:4"})
    assert "the checkpoint /models/m is not the same" in told
    assert "Next, on each: sha256sum" in told

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.plan_digest import FilterModule as DigestModule
from ansible_collections.gpufleet.vllm.plugins.filter.unapproved import FilterModule

plan_digest = DigestModule().filters()["plan_digest"]
unapproved = FilterModule().filters()["unapproved"]


def plan(*hosts: str, port: int = 8000) -> dict:
    arguments = [{"name": "max_model_len", "value": 8192}]
    return {"name": "chat", "hosts": list(hosts), "port": port, "verdict": "fits", "arguments": arguments}


FLEET = [plan("gpu1"), plan("gpu2")]


@pytest.mark.parametrize("nothing", ["", None, {}])
def test_without_an_approved_digest_everything_is_approved(nothing):
    assert unapproved(FLEET, nothing) == []


def test_the_digest_of_the_fleet_approves_exactly_this_fleet():
    approved = plan_digest(FLEET)["fleet"]
    assert unapproved(FLEET, f" {approved}\n") == []
    assert unapproved(FLEET[:1], approved) == ["gpu1"]
    assert unapproved(FLEET, "0" * 64) == ["gpu1", "gpu2"]


def test_the_digests_by_host_approve_some_of_the_hosts_and_name_the_others():
    approved = json.loads(json.dumps(plan_digest(FLEET)))
    assert unapproved(FLEET[:1], approved) == []
    assert unapproved([plan("gpu1"), plan("gpu2", port=9000)], approved) == ["gpu2"]
    assert unapproved([*FLEET, plan("gpu1", port=8001)], approved) == ["gpu1"]
    assert unapproved([plan("new")], approved) == ["new"]


def test_an_engine_over_two_hosts_counts_for_both():
    approved = plan_digest([plan("gpu1", "gpu2")])
    assert sorted(approved["hosts"]) == ["gpu1", "gpu2"]
    assert unapproved([plan("gpu1", "gpu2", port=9000)], approved) == ["gpu1", "gpu2"]


@pytest.mark.parametrize("value", [8, ["a"], {"fleet": "a"}, {"hosts": "a"}])
def test_what_is_no_digest_is_refused(value):
    with pytest.raises(AnsibleFilterError, match="vllm_approved_digest .* is neither the digest .* plan_vllm"):
        unapproved(FLEET, value)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.experience import experience

CHECKPOINT = {"architecture": "Qwen3ForCausalLM", "weights": {"total_bytes": 16 << 30}, "layers": []}
RECEIPT = {
    "release": "0.32.0",
    "card": "NVIDIA L4",
    "tensor_parallel_size": 1,
    "arguments": {"max_num_seqs": 8},
    "measured": {"kv_tokens": 1000},
}


def added(text, *receipts, time="2026-11-30T12:00:00Z"):
    return experience(text, list(receipts), path="/data/models/Qwen3-8B", checkpoint=CHECKPOINT, time=time)


def test_receipts_are_kept_with_their_model():
    (entry,) = json.loads(added("", RECEIPT))["receipts"]
    assert entry["model"] == {
        "architecture": "Qwen3ForCausalLM",
        "checkpoint": "Qwen3-8B",
        "weights_bytes": 16 << 30,
    }
    assert entry["receipt"] == RECEIPT


def test_what_is_of_one_fleet_alone_is_left_out():
    own = {
        "image": "registry.corp.example:5000/ai/vllm-openai:v0.32.0",
        "arguments": {
            "max_num_seqs": 8,
            "kv_cache_dtype": "fp8",
            "enforce_eager": True,
            "chat_template": "/srv/alice/template.jinja",
            "master_addr": "10.0.0.1",
            "hf_overrides": {"x": "y"},
        },
    }
    (entry,) = json.loads(added("", {**RECEIPT, **own}))["receipts"]
    assert entry["receipt"]["image"] == "vllm-openai:v0.32.0"
    assert entry["receipt"]["arguments"] == {"max_num_seqs": 8, "kv_cache_dtype": "fp8", "enforce_eager": True}


def test_of_equal_starts_the_newest_counts():
    newer = {**RECEIPT, "measured": {"kv_tokens": 1001}}
    other = {**RECEIPT, "arguments": {"max_num_seqs": 16}}
    text = added(added("", RECEIPT, other), newer, time="2026-12-01T12:00:00Z")
    assert sorted(entry["receipt"]["measured"]["kv_tokens"] for entry in json.loads(text)["receipts"]) == [1000, 1001]


def test_the_same_again_changes_nothing():
    text = added("", RECEIPT)
    assert added(text, RECEIPT, time="2026-12-01T12:00:00Z") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [("hello", "not JSON"), ("[]", "lacks the list"), ('{"version": 2, "receipts": []}', "version 2")],
)
def test_another_file_is_not_overwritten(text, said):
    with pytest.raises(AnsibleFilterError, match=said):
        added(text, RECEIPT)

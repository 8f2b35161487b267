# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.with_experience import with_experience

CARD = "NVIDIA H100 80GB HBM3"
HOSTS = [{"gpus": [{"name": CARD}]}]
CHECKPOINTS = {"/data/models/Qwen3-8B": {"architecture": "Qwen3ForCausalLM", "weights": {"total_bytes": 16 << 30}}}
INSTANCE = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/data/models/Qwen3-8B"}


def an_entry(gib=16, architecture="Qwen3ForCausalLM", **receipt):
    model = {"architecture": architecture, "checkpoint": "other", "weights_bytes": gib << 30}
    whole = {"release": "0.32.0", "card": CARD, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, **receipt}
    return {"model": model, "time": "2026-11-30T12:00:00Z", "receipt": whole}


def found(*entries, instance=None, receipts=None):
    text = json.dumps({"version": 1, "receipts": list(entries)})
    return with_experience(receipts or {}, text, instances=[instance or INSTANCE], checkpoints=CHECKPOINTS, hosts=HOSTS)


@pytest.mark.parametrize(
    "entry",
    [
        an_entry(release="0.31.0"),
        an_entry(card="NVIDIA L4"),
        an_entry(architecture="Qwen3MoeForCausalLM"),
    ],
)
def test_what_is_no_neighbour_is_not_taken(entry):
    assert found(entry) == {}


def test_the_nearest_neighbour_is_taken():
    far, near = an_entry(gib=60, why="far"), an_entry(gib=8, why="near")
    assert found(far, near)["chat"]["why"] == "near"


def test_the_same_model_comes_before_the_same_division():
    same, other = an_entry(tensor_parallel_size=2, why="same"), an_entry(gib=15, why="other")
    assert found(other, same)["chat"]["why"] == "same"


def test_the_division_that_is_pinned_comes_first():
    one, two = an_entry(why="one"), an_entry(tensor_parallel_size=2, why="two")
    pinned = {**INSTANCE, "engine_args": {"tensor_parallel_size": 2}}
    assert found(one, two)["chat"]["why"] == "one"
    assert found(one, two, instance=pinned)["chat"]["why"] == "two"


def test_a_receipt_of_its_own_stays():
    own = {"chat": {"release": "0.32.0", "why": "own"}}
    assert found(an_entry(), receipts=own) == own


def test_a_checkpoint_may_be_a_published_config():
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    }
    text = json.dumps({"version": 1, "receipts": [an_entry(why="near")]})
    checkpoints = {"/data/models/Qwen3-8B": config}
    told = with_experience({}, text, instances=[INSTANCE], checkpoints=checkpoints, hosts=HOSTS)
    assert told["chat"]["why"] == "near"


def test_an_empty_file_adds_nothing():
    assert with_experience({}, "", instances=[INSTANCE], checkpoints=CHECKPOINTS, hosts=HOSTS) == {}


def test_another_file_is_told():
    with pytest.raises(AnsibleFilterError, match="vllm_experience names no experience file"):
        with_experience({}, "{}", instances=[INSTANCE], checkpoints=CHECKPOINTS, hosts=HOSTS)

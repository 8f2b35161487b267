# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.explain import FilterModule as ExplainModule
from ansible_collections.gpufleet.vllm.plugins.filter.plan import FilterModule as PlanModule
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config

plan, explain = PlanModule().filters()["plan"], ExplainModule().filters()["explain"]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
CHECKPOINTS = {"/models/qwen3-8b": describe_config(CONFIG)}
HOST = {
    "driver_version": "580.95.05",
    "cuda_driver_version": "13.0",
    "links": [["X"]],
    "errors": [],
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-a",
            "name": "NVIDIA H100 80GB HBM3",
            "compute_capability": "9.0",
            "memory_total_mib": 81559,
            "memory_free_mib": 81008,
            "memory_used_by_others_mib": 0,
            "processes": [],
        }
    ],
}
INSTANCE = {"name": "chat", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": "/models/qwen3-8b"}


def planned(**variables):
    return plan([{**INSTANCE, **variables}], [HOST], CHECKPOINTS, ["gpu1"])


def test_explain_says_the_verdict_first_in_100_columns():
    text = explain(planned(workload={"context": 8192, "sequences": 8}))
    assert text.startswith("FITS: chat on vLLM 0.32.0")
    assert max(map(len, text.splitlines())) <= 100
    for word in ("KV pool", "max_model_len = 8192", "why:", "cost:", "gpu1 GPU 0"):
        assert word in text


def test_explain_parts_several_plans():
    both = planned() + planned(name="second")
    assert explain(both).count("on vLLM 0.32.0") == 2


def test_what_is_on_hosts_and_not_in_the_inventory_is_told_at_the_end():
    text = explain(planned(), others={"gpu1": ["old"], "gpu2": ["old", "tried"], "gpu3": []}, commands={"remove": "go"})
    assert text.splitlines()[-6:] == [
        "On hosts and not in the inventory: left alone, with the memory and the ports that they hold",
        "  * old on gpu1, gpu2",
        "  * tried on gpu2",
        "",
        "Next, to remove one:",
        """  go -e '{"vllm_remove": ["old"]}'""",
    ]
    assert explain(planned(), others={"gpu1": []}) == explain(planned())


def test_explain_refuses_what_is_no_plan():
    for other in ({}, "text", 3, [{"verdict": "fits"}]):
        with pytest.raises(AnsibleFilterError, match="not a plan"):
            explain(other)


class Page(HTMLParser):
    """Collects what a page needs from elsewhere, and checks that what is opened is closed."""

    EMPTY = {"meta", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere():
    text = explain(planned(workload={"context": 8192, "sequences": 8}) + planned(name="second"), format="html")
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    assert all(f'id="{link[1:]}"' in text for link in page.links)
    assert "prefers-color-scheme: dark" in text
    assert "://" not in text


def test_the_page_says_warnings_first_and_escapes_names():
    (plan,) = planned(engine_args={"gpu_memory_utilization": 0.98, "max_model_len": 8192})
    text = explain([{**plan, "name": "<b>odd"}], format="html")
    assert "<b>odd" not in text
    assert text.index("run out of memory") < text.index("<h2>Instances</h2>")


def test_an_unknown_format_is_refused():
    with pytest.raises(AnsibleFilterError, match="text, summary or html"):
        explain(planned(), format="pdf")

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from tuning_examples import tuned

from ansible_collections.gpufleet.vllm.plugins.filter.explain_tuning import explain_tuning
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.tuning import score


@pytest.fixture
def text():
    return explain_tuning(tuned(), "gpu01", "chat", command="ansible-playbook -i inventory gpufleet.vllm.deploy_vllm")


@pytest.fixture
def page():
    return explain_tuning(tuned(), "gpu01", "chat", format="html")


def test_the_text_has_a_line_for_each_step(text):
    assert max(map(len, text.splitlines())) <= 100
    assert "chat on gpu01: 5 steps in 14 minutes" in text
    assert re.search(r"^4 +max_num_seqs +16 +32 +961 +kept: ", text, re.MULTILINE)
    assert re.search(r"^5 +max_num_seqs +32 +64 +– +the boundary: The GPU ran out of memory", text, re.MULTILINE)


def test_it_ends_with_what_to_put_into_the_inventory(text):
    start = text.index("  engine_args:")
    told = yaml.safe_load(text[start : text.index("Next:")])
    assert told == {
        "engine_args": {
            "max_model_len": 4096,
            "gpu_memory_utilization": 0.9,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 2048,
        }
    }
    assert "+298.8% against what it was" in text
    assert text.endswith("gpufleet.vllm.deploy_vllm\n")


def test_what_it_means_is_told(text):
    assert "kv_cache_dtype was left alone: the GPUs do not compute FP8." in text


def test_a_tuning_that_was_interrupted_says_so():
    assert "it goes on" in explain_tuning(tuned(3), "gpu01", "chat")


def test_the_page_needs_nothing_from_elsewhere(page):
    assert not re.search(r"<script|<link|https?://|@import|url\(", page)
    assert page == explain_tuning(tuned(), "gpu01", "chat", format="html")


def test_the_page_has_a_curve_for_the_objective_and_for_each_bound(page):
    labels = re.findall(r"<figcaption>(\S+) <small>(\w+)", page)
    assert labels == [("max_num_seqs", "output_throughput"), ("max_num_seqs", "p99_ttft_ms")]
    curve = page[page.index("<svg") : page.index("</svg>")]
    assert curve.count("<circle") == 3
    assert 'class="failed"' in curve
    assert "8: 241; 16: 481; 32: 961; 64: did not run" in curve
    assert 'class="bound"' in page[page.rindex("<svg") :]


def test_the_page_has_the_figures_of_the_kv_cache(page):
    assert "99,968" in page


def test_names_cannot_break_the_page():
    assert "<b>" not in explain_tuning(tuned(), "<b>gpu", "chat", format="html").replace("<b>Weights", "")


def test_no_tuning_is_told():
    with pytest.raises(AnsibleFilterError, match="tells of no tuning"):
        explain_tuning([{"release": 1}], "gpu01", "chat")


def test_another_format_is_refused():
    with pytest.raises(AnsibleFilterError, match="write text or html"):
        explain_tuning(tuned(), "gpu01", "chat", format="pdf")


def test_the_first_start_counts_for_the_cards_that_the_inventory_gives_it():
    rows = tuned()
    given = score(rows[0], "output_throughput")
    for names in (["tensor"], ["pipeline"]):
        values = {**rows[0]["case"]["values"], **{f"{name}_parallel_size": 2 for name in names}}
        row = {**rows[0], "case": {**rows[0]["case"], "values": values}}
        assert score(row, "output_throughput") == given / 2

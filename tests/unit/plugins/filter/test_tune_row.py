# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from tuning_examples import PROBLEM, result, tuned

from ansible_collections.gpufleet.vllm.plugins.filter.tune_row import tune_row
from ansible_collections.gpufleet.vllm.plugins.filter.tune_step import tune_step


def test_a_row_has_the_verdict():
    rows = tuned(2)
    step = tune_step(PROBLEM, rows)
    row = tune_row(step, PROBLEM, rows, result(step))
    assert (row["kind"], row["number"], row["kept"]) == ("tune", 3, True)
    assert row["verdict"].startswith("kept: +")
    assert row["receipt"]["measured"]["kv_tokens"] == 100000 - 16


def test_only_the_first_row_holds_the_case():
    assert ["case" in row for row in tuned(3)] == [True, False, False]


def test_what_is_no_step_is_refused():
    with pytest.raises(AnsibleFilterError, match="must be a step to try"):
        tune_row({"verdict": "done"}, PROBLEM, [], {"outcome": "serves"})


def test_what_is_no_outcome_is_refused():
    with pytest.raises(AnsibleFilterError, match="must be one of serves, failed, refused, not well"):
        tune_row(tune_step(PROBLEM, []), PROBLEM, [], {"outcome": "well"})

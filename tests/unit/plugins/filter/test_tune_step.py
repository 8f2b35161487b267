# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from tuning_examples import PROBLEM, tuned

from ansible_collections.gpufleet.vllm.plugins.filter.tune_step import tune_step


def test_the_first_step_is_the_engine_as_it_is():
    step = tune_step(PROBLEM, [])
    assert (step["verdict"], step["number"], step["stage"], step["changes"]) == ("try", 1, "as it is", {})


def test_the_last_one_says_what_stays():
    step = tune_step(PROBLEM, tuned()[:-1])
    assert (step["verdict"], step["changes"]["engine_args.max_num_seqs"]) == ("done", 32)


@pytest.mark.parametrize(
    ("now", "verdict"), [("21:59", "paused"), ("22:00", "try"), ("03:00", "try"), ("05:00", "paused")]
)
def test_outside_of_its_window_it_pauses(now, verdict):
    assert tune_step({**PROBLEM, "window": "22:00-05:00", "now": now}, tuned(3))["verdict"] == verdict


def test_in_a_window_of_the_day_it_goes_on():
    assert tune_step({**PROBLEM, "window": "12:00-13:30", "now": "12:10"}, [])["verdict"] == "try"


def test_a_pause_leaves_the_engine_as_it_was():
    assert tune_step({**PROBLEM, "window": "22:00-05:00", "now": "12:00"}, tuned(3))["changes"] == {}


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ({**PROBLEM, "window": "10pm", "now": "12:00"}, "vllm_tune_window 10pm is no window"),
        ({**PROBLEM, "maximize": "fun"}, "vllm_tune_maximize: fun is unknown"),
        ({"instance": {}}, "lacks 'plan'"),
    ],
)
def test_what_cannot_be_tuned_is_told(problem, said):
    with pytest.raises(AnsibleFilterError, match=said):
        tune_step(problem, [])

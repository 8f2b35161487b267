# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.rollout import FilterModule

rollout = FilterModule().filters()["rollout"]
TEN = [f"gpu{number}" for number in range(1, 11)]


def test_the_canary_comes_first_and_the_last_size_is_repeated():
    assert rollout(TEN, [1, "30%"])["serial"] == [1, 3, 3, 3]


@pytest.mark.parametrize(("sizes", "serial"), [(["100%"], [10]), ([4], [4, 4, 2]), ("50%", [5, 5]), (["1%"], [1] * 10)])
def test_sizes_are_those_of_serial(sizes, serial):
    assert rollout(TEN, sizes)["serial"] == serial


def test_no_host_is_lost_or_named_twice():
    assert sorted(rollout(TEN, [1, 2, "40%"], {"x": ["gpu9", "gpu2"], "y": ["gpu2", "gpu5"]})["hosts"]) == sorted(TEN)


def test_an_engine_over_several_hosts_is_never_torn():
    result = rollout(["a", "b", "c", "d"], [1], {"x": ["a", "c"]})
    assert result["batches"] == [["a", "c"], ["b"], ["d"]]
    assert result["hosts"] == ["a", "c", "b", "d"]
    assert result["batch_of"] == {"a": 0, "c": 0, "b": 1, "d": 2}


def test_engines_that_share_a_host_stay_together():
    result = rollout(["a", "b", "c", "d"], [1], {"x": ["a", "b"], "y": ["b", "d"]})
    assert result["batches"] == [["a", "b", "d"], ["c"]]
    assert result["rounds"] == [{"a": "x", "b": "x"}, {"b": "y", "d": "y"}]


def test_engines_without_a_common_host_are_deployed_side_by_side():
    result = rollout(["a", "b", "c", "d"], ["100%"], {"y": ["c", "d"], "x": ["a", "b"]})
    assert result["rounds"] == [{"a": "x", "b": "x", "c": "y", "d": "y"}]


@pytest.mark.parametrize("size", [0, -1, "half", "0%", "101%", True, None, 1.5])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(AnsibleFilterError, match="vllm_batches: .* is no size of a batch"):
        rollout(TEN, [1, size])


def test_no_size_at_all_is_refused():
    with pytest.raises(AnsibleFilterError, match="vllm_batches: there is no size"):
        rollout(TEN, [])

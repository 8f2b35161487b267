# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.spans import FilterModule

spans = FilterModule().filters()["spans"]
GROUPS = {"pair": ["gpu1", "gpu2"]}


def test_lists_and_groups_and_no_span():
    instances = [{"name": "x", "span": "pair"}, {"name": "y", "span": ["gpu2", "gpu3"]}, {"name": "z"}]
    assert spans(instances, GROUPS) == {"x": ["gpu1", "gpu2"], "y": ["gpu2", "gpu3"]}


def test_a_group_that_is_not_there():
    with pytest.raises(AnsibleFilterError, match=r"vllm_instances\[x\]\.span 'trio' is no group"):
        spans([{"name": "x", "span": "trio"}], GROUPS)

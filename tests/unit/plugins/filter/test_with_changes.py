# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.with_changes import with_changes

INSTANCE = {"name": "chat", "port": 8000, "engine_args": {"dtype": "auto", "quantization": "awq"}}


def test_changes_are_put_where_they_belong_and_the_instance_stays():
    changes = {"engine_args.max_num_seqs": 64, "environment.NCCL_P2P_DISABLE": "1", "port": 8001}
    changed = with_changes(INSTANCE, changes)
    assert changed["engine_args"] == {"dtype": "auto", "quantization": "awq", "max_num_seqs": 64}
    assert (changed["environment"], changed["port"]) == ({"NCCL_P2P_DISABLE": "1"}, 8001)
    assert INSTANCE == {"name": "chat", "port": 8000, "engine_args": {"dtype": "auto", "quantization": "awq"}}


def test_nothing_takes_a_variable_away():
    assert with_changes(INSTANCE, {"engine_args.quantization": None})["engine_args"] == {"dtype": "auto"}


def test_what_is_no_instance_is_refused():
    with pytest.raises(AnsibleFilterError, match="an entry of vllm_instances"):
        with_changes("chat", {})

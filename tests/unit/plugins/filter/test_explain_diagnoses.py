# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.diagnose_evidence import diagnose_evidence
from ansible_collections.gpufleet.vllm.plugins.filter.explain_diagnoses import explain_diagnoses

OOM = "(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache blocks."
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
CONTEXT = {"instance": {"name": "chat", "engine_args": {"gpu_memory_utilization": 0.8}}}


def text_of(*logs, **more):
    return explain_diagnoses([diagnose_evidence(log, CONTEXT, source="engine.log") for log in logs], **more)


def test_the_text_is_a_table_the_findings_and_the_next_command():
    lines = text_of(OOM, bundle="/tmp/x.tar.gz", commands=["ansible-playbook playbooks/deploy_vllm.yml"]).splitlines()
    assert lines[0].split() == ["HOST", "INSTANCE", "STATE", "CAUSE", "CHANGE"]
    assert "oom_kv_cache" in lines[1]
    assert "engine_args.gpu_memory_utilization: 0.8 -> 0.85" in lines[1]
    assert "  Change: vllm_instances[chat].engine_args.gpu_memory_utilization: 0.8 -> 0.85" in lines
    assert "  Evidence, line 1 of engine.log:" in lines
    assert lines[-2:] == ["Next:", "  ansible-playbook playbooks/deploy_vllm.yml"]


def test_no_line_is_wider_than_a_terminal():
    long = f"RuntimeError: CUDA error: no kernel image is available {'x' * 300} {'y ' * 300}"
    assert max(map(len, text_of(OOM, TOO_OLD, long, "hello").splitlines())) <= 100


def test_where_nothing_is_found_the_text_says_so():
    assert "nothing that is known to go wrong" in text_of("INFO:     Application startup complete.")
    assert explain_diagnoses([]) == "There is no instance to diagnose."


def test_a_finding_without_a_change_says_none():
    assert "  Change: none" in text_of(TOO_OLD).splitlines()


def test_what_is_no_list_of_diagnoses_is_refused():
    with pytest.raises(AnsibleFilterError, match="list of what"):
        explain_diagnoses([{"host": "gpu01"}])

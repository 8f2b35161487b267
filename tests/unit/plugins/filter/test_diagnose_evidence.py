# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.diagnose_evidence import diagnose_evidence

OOM = "(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache blocks."
CONTEXT = {"instance": {"name": "chat", "engine_args": {"gpu_memory_utilization": 0.8}}}


def evidence(log="", active="active", phase="serving", failures=(), samples=(), **unit):
    return {
        "name": "chat",
        "unit": {
            "name": "vllm-chat.service",
            "load_state": "loaded",
            "active_state": active,
            "sub_state": "running",
            "n_restarts": 0,
            **unit,
        },
        "phase": phase,
        "log": log,
        "container": None,
        "samples": list(samples),
        "request": None,
        "failures": list(failures),
        "files": {"plan.json": '{"name": "chat", "release": {"version": "0.32.0"}}'},
        "host": {"df.txt": "full"},
        "errors": [],
    }


def failure(log, **told):
    return {"number": "0007", "files": {"log": log, "failure.json": json.dumps(told), "plan.json": "{}"}}


def test_an_engine_that_serves_has_no_finding():
    told = diagnose_evidence(evidence("INFO:     Application startup complete."), CONTEXT, "gpu01")
    assert (told["state"], told["findings"], told["earlier"]) == ("serving", [], None)


def test_the_current_log_of_a_failed_engine_counts():
    told = diagnose_evidence(evidence(OOM, "failed", "failed"), CONTEXT, "gpu01")
    assert told["findings"][0]["class"] == "oom_kv_cache"
    assert told["findings"][0]["change"] == {
        "variable": "engine_args.gpu_memory_utilization",
        "from": 0.8,
        "to": 0.85,
    }
    assert told["source"] == "the journal of the current start"


def test_the_archived_failure_counts_where_the_journal_says_nothing():
    archived = failure(OOM, time="2026-05-30T18:55:07Z", what="The engine ended by itself with exit code 1.")
    told = diagnose_evidence(evidence("", "failed", "failed", [archived]), CONTEXT, "gpu01")
    assert (told["findings"][0]["class"], told["source"]) == ("oom_kv_cache", "failures/0007/log")


def test_an_engine_that_serves_again_tells_of_its_last_failure_apart():
    archived = failure(OOM, time="2026-05-30T18:55:07Z", what="The engine ended by itself with exit code 1.")
    told = diagnose_evidence(evidence("INFO:     Application startup complete.", failures=[archived]), CONTEXT, "gpu01")
    assert told["findings"] == []
    assert told["earlier"]["title"] == "No memory is left for the KV cache"


def test_the_kernel_killed_it_says_the_archive():
    archived = failure("INFO 05-30 [x.py:1] Starting to load model", oom_killed=True)
    told = diagnose_evidence(evidence("", "failed", "failed", [archived]), CONTEXT, "gpu01")
    assert "ran out of memory" in told["findings"][0]["title"]


def test_who_sent_the_signal_is_known_to_the_archive():
    line = "vllm-chat.service: Main process exited, code=exited, status=137/n/a"
    for oom_killed, title in (
        (True, "The kernel killed the engine"),
        (False, "The engine was ended by SIGKILL, and not"),
    ):
        told = diagnose_evidence(evidence(line, "failed", "failed", [failure(line, oom_killed=oom_killed)]))
        assert told["findings"][0]["title"].startswith(title)
        assert told["earlier"]["title"].startswith(title)


def test_a_unit_that_restarts_and_one_that_is_not_there():
    restarting = evidence(OOM, "activating", "failed", sub_state="auto-restart", n_restarts=2)
    assert diagnose_evidence(restarting)["state"] == "restarting (2 times)"
    assert diagnose_evidence(evidence("", "inactive", "stopped", load_state="not-found"))["state"] == "not deployed"


def test_the_looks_at_a_running_engine_count():
    text = "vllm:num_requests_running {}\nvllm:num_requests_waiting 5\nvllm:kv_cache_usage_perc 0.1\n"
    samples = [
        {"seconds": second, "metrics": text.format(8) + f"vllm:generation_tokens_total {second}", "healthy": True}
        for second in (0.0, 5.0)
    ]
    context = {"instance": {"name": "chat", "engine_args": {"max_num_seqs": 8}}}
    told = diagnose_evidence(evidence("INFO:     Application startup complete.", samples=samples), context)
    assert told["findings"][0]["title"] == "Requests wait for max_num_seqs"


def test_what_is_neither_evidence_nor_a_log_is_refused():
    with pytest.raises(AnsibleFilterError, match="is list"):
        diagnose_evidence([])

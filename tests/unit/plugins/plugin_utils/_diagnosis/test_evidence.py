# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import io
import json
import stat
import tarfile

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpufleet.vllm.plugins.filter.diagnose_evidence import diagnose_evidence
from ansible_collections.gpufleet.vllm.plugins.filter.explain_diagnoses import explain_diagnoses
from ansible_collections.gpufleet.vllm.plugins.filter.support_files import support_files
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._diagnosis.bundle import bundle_files, write_bundle

OOM = "(EngineCore pid=9) ERROR 05-30 18:55:07 [core.py:700] ValueError: No available memory for the cache blocks."
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
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
    with pytest.raises(AnsibleFilterError, match="list of what"):
        explain_diagnoses([{"host": "gpu01"}])


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


SECRET = "planted0123456789"
HOSTS = {
    "gpu01": {
        "__vllm_diagnose_gpu_info": {"gpus": [], "invocation": {"module_args": {}}},
        "_vllm_diagnoses": [],
        "vllm_api_key": SECRET,
        "__vllm_evidence": {
            "results": [
                evidence(
                    f"INFO args: Namespace(api_key='{SECRET}') /home/alice/models https://bob:{SECRET}@host/x",
                    failures=[failure(f"Authorization: Bearer {SECRET} hf_abcdefghijABCDEFGHIJ12")],
                    samples=[{"seconds": 0.0, "metrics": None, "healthy": False}],
                )
            ]
        },
    }
}


def test_the_bundle_has_a_folder_for_each_host_and_instance():
    assert sorted(support_files(HOSTS)) == [
        "gpu01/chat/df.txt",
        "gpu01/chat/failures/0007/failure.json",
        "gpu01/chat/failures/0007/log",
        "gpu01/chat/failures/0007/plan.json",
        "gpu01/chat/log",
        "gpu01/chat/metrics-1.txt",
        "gpu01/chat/plan.json",
        "gpu01/chat/unit.json",
        "gpu01/diagnoses.json",
        "gpu01/gpu_info.json",
    ]


def test_no_planted_secret_is_in_the_bundle(tmp_path):
    path = tmp_path / "vllm-support.tar.gz"
    write_bundle(path, bundle_files(support_files(HOSTS), [SECRET]))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive.getmembers()}
    assert "vllm-support/README" in texts
    for name, text in texts.items():
        for secret in (SECRET, "alice", "bob:", "hf_abc"):
            assert secret not in text, name
    assert "gpu01/chat/log" in texts["vllm-support/README"]


def test_a_path_cannot_leave_the_archive():
    assert set(bundle_files({"/etc/x": "a", "../../y": "b"})) == {"README", "etc/x", "y"}


def test_data_becomes_json_without_secrets():
    text = bundle_files({"x.json": {"api_key": SECRET, "port": 8000}})["x.json"]
    assert json.load(io.StringIO(text))["port"] == 8000
    assert SECRET not in text

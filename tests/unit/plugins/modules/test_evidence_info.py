# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest

from ansible_collections.gpufleet.vllm.plugins.modules import evidence_info as module

KEY = "planted-key-0123456789"
PARAMS = {
    "name": "chat",
    "address": "0.0.0.0",
    "port": 8000,
    "lines": 100,
    "samples": 2,
    "interval": 5.0,
    "timeout": 1.0,
    "request_timeout": 30,
    "failures": 1,
}
LOG = f"INFO 05-30 [x.py:1] vLLM API server version 0.24.0\nINFO seen {KEY}\nERROR No available memory\n"


@pytest.fixture
def host(tmp_path):
    for path, text in {
        "etc/vllm/chat/engine.env": f"VLLM_API_KEY={KEY}\nHF_HUB_OFFLINE=1\n",
        "etc/vllm/chat/plan.json": '{"name": "chat"}',
        "etc/vllm/chat/smoke.sh": "#!/bin/sh",
        "var/lib/vllm/chat/failures/0001/log": "the first",
        "var/lib/vllm/chat/failures/0002/log": f"the second with {KEY}",
        "var/lib/vllm/chat/failures/0002/failure.json": '{"exit_code": 1}',
        "var/lib/vllm/chat/failures/0003.tmp/log": "half made",
    }.items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path


def runner(active="active", log=LOG):
    def run(command):
        if command[0] == "systemctl":
            return 0, f"LoadState=loaded\nActiveState={active}\nSubState=running\nInvocationID=abc\n", ""
        if command[0] == "docker":
            return 0, json.dumps({"State": {"ExitCode": 1}, "Args": ["--api-key", KEY]}), ""
        if "journalctl" in command and "--dmesg" in command:
            return 0, "kernel: NVRM: Xid 79\nkernel: usb 1-1\nkernel: Out of memory: Killed process 9\n", ""
        if "journalctl" in " ".join(command):
            return 0, log, ""
        return 0, f"ran {command[2]}", ""

    return run


@pytest.fixture
def answers(monkeypatch):
    looked = []

    def get(url, timeout):
        looked.append(url)
        return (200, f"vllm:num_requests_running {len(looked)}") if url.endswith("metrics") else (200, "")

    monkeypatch.setattr(module, "get", get)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: looked.append(round(seconds)))
    return looked


def test_everything_is_collected(host, answers):
    told = module.evidence_info(runner(), PARAMS, str(host))
    assert [failure["number"] for failure in told["failures"]] == ["0002"]
    assert told["failures"][0]["files"]["failure.json"] == '{"exit_code": 1}'
    assert told["files"] == {"plan.json": '{"name": "chat"}'}
    assert told["container"]["State"] == {"ExitCode": 1}
    assert told["host"]["kernel.txt"].count("\n") == 1
    assert told["phase"] == "serving"


def test_two_looks_some_seconds_apart(host, answers):
    told = module.evidence_info(runner(), PARAMS, str(host))
    assert answers == [
        "http://127.0.0.1:8000/health",
        "http://127.0.0.1:8000/metrics",
        5,
        "http://127.0.0.1:8000/health",
        "http://127.0.0.1:8000/metrics",
    ]
    assert [sample["metrics"] for sample in told["samples"]] == [
        "vllm:num_requests_running 2",
        "vllm:num_requests_running 5",
    ]


def test_a_request_is_sent_between_the_looks(host, answers):
    assert module.evidence_info(runner(), PARAMS, str(host))["request"]["output"].startswith("ran /")
    assert module.evidence_info(runner(), {**PARAMS, "request_timeout": 0}, str(host))["request"] is None


def test_an_engine_that_is_down_is_not_asked(host, answers):
    told = module.evidence_info(runner(active="failed"), PARAMS, str(host))
    assert (told["samples"], answers, told["phase"]) == ([], [], "failed")


def test_the_key_leaves_the_host_nowhere(host, answers):
    assert KEY not in json.dumps(module.evidence_info(runner(), PARAMS, str(host)))


def test_an_instance_that_was_never_deployed(tmp_path, answers):
    told = module.evidence_info(runner(active="inactive", log=""), PARAMS, str(tmp_path))
    assert (told["failures"], told["files"], told["log"], told["errors"]) == ([], {}, "", [])


def test_a_file_that_cannot_be_read_is_said(host, answers):
    (host / "etc/vllm/chat/plan.json").unlink()
    (host / "etc/vllm/chat/plan.json").mkdir()
    told = module.evidence_info(runner(), PARAMS, str(host))
    assert len(told["errors"]) == 1
    assert "plan.json cannot be read" in told["errors"][0]

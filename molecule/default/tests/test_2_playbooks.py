"""The playbooks as a user runs them against hosts that are deployed already."""

from __future__ import annotations

import re

from conftest import run_playbook


def changed(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"changed=(\d+)", output)]


def test_check_mode_shows_no_change_after_a_deployment():
    result = run_playbook("playbooks/deploy_vllm.yml", "--check", "--diff")
    assert result.returncode == 0, result.stdout
    assert changed(result.stdout) == [0]


def test_the_plan_is_shown_and_nothing_changes():
    result = run_playbook("playbooks/plan_vllm.yml")
    assert result.returncode == 0, result.stdout
    assert set(changed(result.stdout)) == {0}
    assert "max_model_len" in result.stdout


def test_the_smoke_test_prints_the_completion():
    result = run_playbook("playbooks/smoke_vllm.yml")
    assert result.returncode == 0, result.stdout
    assert "Hello from a real vLLM on a simulated GPU host." in result.stdout
    assert "curl http://127.0.0.1:18011/v1/chat/completions" in result.stdout


def test_an_instance_without_a_key_is_refused():
    result = run_playbook("playbooks/deploy_vllm.yml", "--extra-vars", '{"vllm_api_key": ""}')
    assert result.returncode != 0
    assert "no API key for demo" in result.stdout
    assert changed(result.stdout) == [0]


def test_the_tag_latest_is_refused():
    instance = '{"name": "demo", "image": "vllm/vllm-openai:latest", "checkpoint": "/data/models/tiny-chat"}'
    result = run_playbook("playbooks/deploy_vllm.yml", "--extra-vars", f'{{"vllm_instances": [{instance}]}}')
    assert result.returncode != 0
    assert "latest" in result.stdout
    assert changed(result.stdout) == [0]


def test_no_output_holds_the_key(host, api_key):
    result = run_playbook("playbooks/deploy_vllm.yml", "--check", "--diff", "-vvv")
    assert result.returncode == 0, result.stdout
    assert api_key not in result.stdout + result.stderr

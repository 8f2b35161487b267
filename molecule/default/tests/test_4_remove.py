"""Removal, and what a deployment from nothing would do; the last file, since it takes the engine away."""

from __future__ import annotations

from conftest import run_playbook


def test_the_instance_is_removed(host):
    result = run_playbook("playbooks/remove_vllm.yml")
    assert result.returncode == 0, result.stdout
    assert not host.service("vllm-demo").is_running
    assert not host.file("/etc/vllm/demo").exists
    assert not host.file("/var/lib/vllm/demo").exists
    assert not host.file("/etc/systemd/system/vllm-demo.service").exists
    assert host.check_output("docker ps --all --quiet --filter name=vllm-demo") == ""


def test_removing_it_again_changes_nothing():
    result = run_playbook("playbooks/remove_vllm.yml")
    assert result.returncode == 0, result.stdout
    assert "changed=0" in result.stdout


def test_check_mode_shows_the_files_before_a_deployment(host):
    result = run_playbook("playbooks/deploy_vllm.yml", "--check", "--diff")
    assert result.returncode == 0, result.stdout
    assert "(wanted; the engine is started anew)" in result.stdout
    assert "+max_model_len: 2048" in result.stdout
    assert not host.file("/etc/vllm/demo").exists

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._command import next_command, reach_command


@pytest.fixture(name="clone")
def make_clone(tmp_path, monkeypatch):
    """A clone of the collection as the working directory."""
    (tmp_path / "playbooks").mkdir()
    for name in ("deploy_vllm", "plan_vllm"):
        (tmp_path / f"playbooks/{name}.yml").touch()
    (tmp_path / "deploy_vllm.yml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def given(playbook, *inventory, **options):
    return {"args": (playbook,), "inventory": inventory, **options}


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("playbooks/plan_vllm.yml", "playbooks/deploy_vllm.yml"),
        ("gpufleet.vllm.plan_vllm", "gpufleet.vllm.deploy_vllm"),
        ("site.yml", "deploy_vllm.yml"),
        ("elsewhere/site.yml", "gpufleet.vllm.deploy_vllm"),
    ],
)
def test_the_playbook_is_written_as_the_running_one_was(clone, started, expected):
    assert next_command("deploy_vllm", given(started)) == f"ansible-playbook {expected}"


def test_a_playbook_of_the_folder_below_is_found(clone):
    assert next_command("plan_vllm", given("deploy_vllm.yml")) == "ansible-playbook playbooks/plan_vllm.yml"


def test_inventories_are_repeated_as_one_types_them_and_the_default_one_is_not(clone):
    sources = [f"{clone}/inventory/fleet.yml", "/etc/fleet", "a,b"]
    command = next_command("deploy_vllm", given("gpufleet.vllm.plan_vllm", *sources), [f"{clone}/inventories/lab"])
    assert command == "ansible-playbook -i inventory/fleet.yml -i /etc/fleet -i a,b gpufleet.vllm.deploy_vllm"
    same = given("gpufleet.vllm.plan_vllm", f"{clone}/inventories/lab")
    assert (
        next_command("deploy_vllm", same, [f"{clone}/inventories/lab"]) == "ansible-playbook gpufleet.vllm.deploy_vllm"
    )


def test_what_the_next_run_needs_too_is_repeated_and_secrets_are_not():
    options = {
        "subset": "gpu01:&rack 2",
        "become_ask_pass": True,
        "ask_pass": False,
        "vault_password_files": ["vault.sh"],
        "extra_vars": ("@more.yml", "vllm_api_key=secret", "vllm_report=fleet.html"),
        "verbosity": 3,
    }
    command = next_command("deploy_vllm", given("gpufleet.vllm.plan_vllm", **options), [], ["vllm_facts_directory="])
    assert command == (
        "ansible-playbook gpufleet.vllm.deploy_vllm --limit 'gpu01:&rack 2' --ask-become-pass "
        "--vault-password-file vault.sh -e @more.yml -e vllm_facts_directory="
    )


def test_without_a_command_line_the_full_name_is_written():
    assert next_command("plan_vllm", {}) == "ansible-playbook gpufleet.vllm.plan_vllm"


def test_hosts_are_reached_with_the_same_inventory_and_user():
    options = {"subset": "gpu01", "remote_user": "admin"}
    assert reach_command("vllm", given("x.yml", "/etc/fleet", **options)) == (
        "ansible -i /etc/fleet vllm -m ansible.builtin.ping --user admin"
    )

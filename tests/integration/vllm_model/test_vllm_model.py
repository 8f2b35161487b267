# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The role vllm_model, with this machine as the controller and as two hosts. About 40 s."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_examples import write_checkpoint

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "source" / "tiny")


@pytest.fixture(autouse=True)
def jobs_of_the_test():
    """As root, the jobs of this machine leave their states where those of a host do."""
    folder = Path("/var/lib/vllm/jobs")
    before = set(folder.glob("*"))
    yield
    for path in set(folder.glob("checkpoint*")) - before:
        path.unlink()


@pytest.fixture
def play(tmp_path):
    """Runs the role vllm_model on hosts that are this machine; returns (exit code, the facts it set, output)."""

    def run(path, source, *arguments, host="gpu1", entry="main", **variables):
        facts = tmp_path / "facts.json"
        facts.unlink(missing_ok=True)
        playbook = tmp_path / "play.json"
        fact = (
            "{{ {'facts': ansible_facts.vllm_model_facts | default({}), "
            "'descriptions': vllm_model_descriptions | default({})} }}"
        )
        tasks = [
            {"ansible.builtin.include_role": {"name": "gpufleet.vllm.vllm_model", "tasks_from": entry}},
            {"ansible.builtin.copy": {"content": fact, "dest": str(facts)}, "check_mode": False, "diff": False},
        ]
        playbook.write_text(json.dumps([{"hosts": host, "gather_facts": False, "tasks": tasks}]))
        given = {"vllm_model_path": str(path), "vllm_model_source": source, **variables}
        inventory = tmp_path / "hosts.json"
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory.write_text(json.dumps({"all": {"hosts": {"gpu1": local, "gpu2": local}}}))
        environment = {
            **{name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"},
            "ANSIBLE_COLLECTIONS_PATH": str(REPOSITORY / ".collections"),
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "LC_ALL": "C.UTF-8",
            "PWD": str(tmp_path),
        }
        ansible = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(inventory), str(playbook)]
        ran = subprocess.run(
            [*ansible, "-e", json.dumps(given), *arguments],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        told = json.loads(facts.read_text()) if facts.exists() else {}
        return ran.returncode, told, " ".join((ran.stdout + ran.stderr).split())

    return run


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_from_the_controller_once(play, source, tmp_path):
    target = tmp_path / "models" / "tiny"
    where = {"path": "source/tiny", "on": "controller"}  # counts from where ansible-playbook was started
    code, told, output = play(target, where, "--check", "--diff")
    assert (code, target.exists(), "changed: [gpu1]" in output) == (0, False, True)
    code, told, output = play(target, where)
    assert (code, contents(target), "changed: [gpu1]" in output) == (0, contents(source), True)
    digest = told["facts"][str(target)]["manifest_digest"]
    code, told, output = play(target, where)
    assert (code, told["facts"][str(target)]["manifest_digest"]) == (0, digest)
    assert "copying" not in output


def test_from_another_host(play, source, tmp_path):
    target = tmp_path / "models" / "tiny"
    where = {"path": str(source), "on": "gpu2", "transfer_address": "127.0.0.1"}
    code, told, output = play(target, where, entry="describe")
    assert (code, told["descriptions"][str(target)]["path"], target.exists()) == (0, str(target), False)
    code, told, output = play(target, where, "-vvv")
    assert (code, contents(target)) == (0, contents(source)), output
    assert told["facts"][str(target)]["source"]["on"] == "gpu2"
    assert output.count("the output has been hidden due to the fact that 'no_log: true'") == 1
    assert '"token": ' not in output.replace('"token": "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"', "")


def test_a_failure_names_the_host_the_cause_and_the_next_command(play, source, tmp_path):
    os.truncate(source / "model-00002-of-00002.safetensors", 100)
    code, _told, output = play(tmp_path / "models" / "tiny", {"path": str(source), "on": "controller"})
    assert code != 0
    assert "gpu1: On the controller:" in output
    assert "model-00002-of-00002.safetensors is damaged" in output
    assert "Next: Copy or download" in output


def test_the_host_itself_may_be_named(play, source, tmp_path):
    target = tmp_path / "models" / "tiny"
    code, told, output = play(target, {"path": str(source), "on": "gpu1"})
    assert (code, contents(target)) == (0, contents(source)), output

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan_vllm.yml and upgrade_report.yml with recorded facts: no host is needed, so they run here as users run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
}


def run(playbook: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """ansible-playbook of the Python that runs the tests; a port where nothing answers, so that a connection fails."""
    command = [str(PLAYBOOK), f"{ROOT}/playbooks/{playbook}", "-e", "ansible_port=1", *arguments]
    environment = {**os.environ, "ANSIBLE_CONFIG": f"{ROOT}/ansible.cfg", "PWD": str(cwd)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def words(result: subprocess.CompletedProcess[str]) -> str:
    """All that was printed, without the line breaks that YAML puts into long messages."""
    return " ".join((result.stdout + result.stderr).split())


def changed(output: str) -> int:
    return sum(map(int, re.findall(r"changed=(\d+)", output)))


def test_hosts_that_do_not_exist_are_planned_and_reported(tmp_path: Path) -> None:
    arguments = ["-i", f"{ROOT}/inventories/example", "-l", "gpu01,rtx4090", "--diff", "-e", "vllm_report=fleet.html"]
    result = run("plan_vllm.yml", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "FITS: qwen on vLLM" in result.stdout
    assert "DOES NOT FIT: distill on vLLM" in result.stdout
    assert "Not deployed yet." in result.stdout
    page = (tmp_path / "fleet.html").read_text(encoding="utf-8")
    assert "<h3>gpu01</h3>" in page and "<h3>rtx4090</h3>" in page
    again = run("plan_vllm.yml", *arguments, cwd=tmp_path)
    assert (changed(result.stdout), changed(again.stdout)) == (1, 0)


def test_a_host_without_a_plan_is_in_the_report_too(tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    facts.mkdir()
    (facts / "gpu01.json").write_bytes((ROOT / "inventories/example_facts/gpu01.json").read_bytes())
    page = tmp_path / "fleet.html"
    options = ["-e", f"vllm_facts_directory={facts}", "-e", f"vllm_report={page}"]
    result = run("plan_vllm.yml", "-i", f"{ROOT}/inventories/example", "-l", "chat", *options)
    assert result.returncode != 0
    assert f"gpu02: vllm_facts_directory is set, and there is no {facts}/gpu02.json" in words(result)
    assert "<b>No plan</b> on gpu02" in page.read_text(encoding="utf-8")


def test_facts_are_recorded_and_planned_with(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    inventory = tmp_path / "hosts.json"
    instance = {"name": "tiny", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": str(checkpoint)}
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    variables = {**here, "vllm_instances": [instance], "vllm_facts_directory": "facts"}
    inventory.write_text(json.dumps({"vllm": {"hosts": {"here": variables}}}), encoding="utf-8")
    recorded = run("plan_vllm.yml", "-i", str(inventory), "-e", "vllm_record_facts=true", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    facts = json.loads((tmp_path / "facts/here.json").read_text(encoding="utf-8"))
    assert set(facts) == {"gpu_info", "checkpoints", "plans", "receipts"}
    assert facts["checkpoints"][str(checkpoint)]["architecture"] == "LlamaForCausalLM"
    (checkpoint / "config.json").unlink()
    planned = run("plan_vllm.yml", "-i", str(inventory), "-e", "ansible_connection=ssh", cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "tiny on vLLM 0.32.0" in planned.stdout


def test_an_upgrade_is_told_before_anything_is_pulled() -> None:
    result = run("upgrade_report.yml", "-i", f"{ROOT}/inventories/example", "-l", "guides", "-e", "vllm_target=v0.33.0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Upgrade to vLLM v0.33.0: 4 instances" in result.stdout
    assert changed(result.stdout) == 0


def test_recorded_facts_are_not_deployed() -> None:
    result = run("deploy_vllm.yml", "-i", f"{ROOT}/inventories/example", "-l", "gpu01", "-e", "vllm_api_key=key")
    assert result.returncode != 0
    assert "Recorded facts are for planning" in words(result)
    assert changed(result.stdout) == 0

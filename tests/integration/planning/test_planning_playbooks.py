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

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan_instances

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
    assert "gpu02: vllm_facts_directory is set, so hosts are planned from files" in words(result)
    assert f"there is no {facts}/gpu02.json" in words(result)
    assert "<b>No plan</b> on gpu02: vllm_facts_directory is set" in page.read_text(encoding="utf-8")


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
    assert set(facts) == {"gpu_info", "checkpoints", "plans", "receipts", "others"}
    assert facts["checkpoints"][str(checkpoint)]["architecture"] == "LlamaForCausalLM"
    (checkpoint / "config.json").unlink()
    planned = run("plan_vllm.yml", "-i", str(inventory), "-e", "ansible_connection=ssh", cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "tiny on vLLM 0.32.0" in planned.stdout


CHAT = {
    "name": "chat",
    "image": "vllm/vllm-openai:v0.32.0",
    "checkpoint": "/data/models/Qwen3-8B",
    "workload": {"context": 8192, "sequences": 8},
}
UNREACHABLE = {"ansible_host": "127.0.0.1", "vllm_facts_directory": ""}
HOSTS = {
    "good": {},
    "same": {},
    "gone1": UNREACHABLE,
    "gone2": UNREACHABLE,
    "text": {"vllm_instances": "abc", "vllm_instanes": []},
    "types": {"vllm_instances": [{**CHAT, "port": "eighty", "workload": {"context": "abc"}, "workloads": {}}]},
    "other": {"vllm_instances": [{**CHAT, "checkpoint": "/data/models/Other"}]},
    "spare": {"vllm_instances": []},
}


def write_fleet(folder: Path, hosts: dict[str, dict[str, object]]) -> Path:
    """An inventory of hosts, each with the recorded facts of gpu01."""
    (folder / "facts").mkdir()
    for host in hosts:
        (folder / f"facts/{host}.json").write_bytes((ROOT / "inventories/example_facts/gpu01.json").read_bytes())
    variables = {"vllm_facts_directory": str(folder / "facts"), "vllm_instances": [CHAT]}
    (folder / "fleet.json").write_text(json.dumps({"vllm": {"hosts": hosts, "vars": variables}}), encoding="utf-8")
    return folder / "fleet.json"


@pytest.fixture(scope="module", name="mistakes")
def plan_with_mistakes(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], str]:
    """One run over hosts that are right, unreachable, or written wrongly: what was printed, and the page."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_fleet(folder, HOSTS)
    result = run("plan_vllm.yml", "-i", "fleet.json", "-e", "vllm_report=fleet.html", cwd=folder)
    return result, (folder / "fleet.html").read_text(encoding="utf-8")


def table(result: subprocess.CompletedProcess[str]) -> str:
    return result.stdout[result.stdout.index("SUMMARY:") : result.stdout.index("PLAY RECAP")]


def test_the_other_hosts_are_planned_and_the_table_names_each_with_its_reason(
    mistakes: tuple[subprocess.CompletedProcess[str], str],
) -> None:
    result, _page = mistakes
    assert result.returncode == 2
    assert result.stdout.count("FITS: chat on vLLM") == 1
    rows = " ".join(table(result).split())
    assert "2 instances on 8 hosts: fits 2, 5 hosts without a plan" in rows
    assert "gone1, gone2 – NO PLAN could not be reached: ssh: connect to host 127.0.0.1 port 1" in rows
    assert "text – NO PLAN 1 variable cannot be used" in rows
    assert "types – NO PLAN 3 variables cannot be used" in rows
    assert "other – NO PLAN the recorded facts do not tell of the checkpoint /data/models/Other" in rows
    assert "good, same chat FITS" in rows
    assert "spare – NOTHING vllm_instances is empty there" in rows


def test_the_table_ends_with_the_commands_as_the_user_types_them(
    mistakes: tuple[subprocess.CompletedProcess[str], str],
) -> None:
    # A long path takes a command over several lines, which a shell reads as one.
    lines = re.sub(r" \\\n +", " ", table(mistakes[0])).splitlines()
    assert "  ansible -i fleet.json vllm -m ansible.builtin.ping" in lines
    assert f"  ansible-playbook -i fleet.json {ROOT}/playbooks/plan_vllm.yml" in lines
    assert f"  ansible-playbook -i fleet.json {ROOT}/playbooks/deploy_vllm.yml -e vllm_facts_directory=" in lines


def test_wrong_variables_are_told_in_a_few_lines_and_all_at_once(
    mistakes: tuple[subprocess.CompletedProcess[str], str],
) -> None:
    result, _page = mistakes
    told = words(result)
    assert "vllm_instances: 'abc' is no list. Begin each entry below it with '- '." in told
    assert "vllm_instances[0] (chat).workload.context: 'abc' is no whole number." in told
    assert "vllm_instances[0] (chat).port: 'eighty' is no whole number." in told
    assert "vllm_instances[0] (chat).workloads: is not known. Did you mean workload?" in told
    assert "vllm_instanes is no variable of gpufleet.vllm" in told
    assert "argument_spec_data" not in told
    task = result.stdout.split("TASK [")[2]
    assert task.startswith("gpufleet.vllm.vllm : Check the variables of the host")
    assert len(task.splitlines()) < 60


def test_the_page_names_hosts_without_a_plan_before_everything_else(
    mistakes: tuple[subprocess.CompletedProcess[str], str],
) -> None:
    _result, page = mistakes
    assert page.index("<b>No plan</b> on gone1, gone2: could not be reached") < page.index("<h2>Fleet</h2>")


def test_where_no_host_can_be_reached_the_table_comes_all_the_same(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, {"gone1": UNREACHABLE})
    result = run("plan_vllm.yml", "-i", str(fleet), cwd=tmp_path)
    assert result.returncode == 2
    assert "0 instances on 1 host: 1 host without a plan" in table(result)


def test_an_inventory_without_the_group_is_told(tmp_path: Path) -> None:
    inventory = tmp_path / "fleet.json"
    inventory.write_text(json.dumps({"gpus": {"hosts": {"gpu01": None}}}), encoding="utf-8")
    result = run("plan_vllm.yml", "-i", str(inventory), cwd=tmp_path)
    assert result.returncode == 2
    assert f"There is no host in the group vllm of {inventory}." in words(result)


def test_a_plan_is_compared_with_what_runs(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, {"good": {}, "same": {}})
    for host, difference in (("good", {"port": 8002}), ("same", {})):
        file = tmp_path / f"facts/{host}.json"
        facts = json.loads(file.read_text(encoding="utf-8"))
        (plan,) = plan_instances([CHAT], [facts["gpu_info"]], facts["checkpoints"], [host])
        running = {**plan, **difference}
        file.write_text(json.dumps({**facts, "plans": {"chat": running}}), encoding="utf-8")
    result = run("plan_vllm.yml", "-i", str(fleet), "--diff", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Against what runs: 1 difference. A deployment would restart the engine." in result.stdout
    assert re.search(r"port +8002 +8000\n", result.stdout)
    assert "The same. A deployment would not restart the engine." in result.stdout
    assert result.stdout.count("A changed API key would: keys are not read for a plan") == 1


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

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command of README.md and docs/*.md is run as it stands there, or a comment above it says why not.

The comment is `<!-- untested: REASON -->` in the line above the block. The commands of a page run one after the other
in one shell, in a copy of the repository that has the inventories of which the pages speak, with another folder as the
user's home. What a page shows as output is compared with the output.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- untested: (?P<reason>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


def blocks(page: str, kind: str) -> list[tuple[str | None, str]]:
    """The blocks of a kind: why its commands are not run, if they are not, and the text."""
    found = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    return [(block["reason"], block["text"]) for block in found if block["kind"] == kind]


def commands(text: str) -> list[str]:
    """The command lines of a block, those that a backslash continues in one."""
    return re.findall(r"^\$ (.*)$", text.replace("\\\n", " "), re.M)


def run(command: str, clone: Path, home: Path) -> str:
    """Runs commands in the copy as somebody would who has nothing set. Returns what they print."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "GIT_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**known, "PATH": path, "HOME": str(home), "PWD": str(clone)}
    # The address of the repository leads to the copy, so that what is installed from there is what is tested.
    environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.file://{clone}.insteadOf"}
    environment["GIT_CONFIG_VALUE_0"] = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["repository"]
    result = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", command],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


@functools.cache
def printed(command: str, clone: Path) -> list[str]:
    """The lines that a command prints which changes nothing."""
    return run(command, clone, clone.parent / "home").splitlines()


@pytest.fixture(scope="module", name="clone")
def make_clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the inventories of the pages."""
    clone = tmp_path_factory.mktemp("documented") / "clone"
    (clone.parent / "home").mkdir()
    subprocess.run(["tools/ci/export.sh", str(clone)], cwd=ROOT, check=True)
    author = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for words in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "--message", "Copy"]):
        subprocess.run(["git", *words], cwd=clone, check=True)
    link = clone / ".collections/ansible_collections/gpufleet/vllm"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../..")
    fleet_of_this_machine(clone)
    (clone / "engine.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8")
    return clone


def fleet_of_the_readme(home: Path) -> None:
    """inventory/fleet.yml word for word as in the README; what it needs beside is recorded facts."""
    ((_reason, text),) = blocks("README.md", "yaml")
    folder = home / "fleet/inventory"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "facts").mkdir()
    (folder / "fleet.yml").write_text(text, encoding="utf-8")
    for host in yaml.safe_load(text)["vllm"]["hosts"]:
        facts = (ROOT / "inventories/example_facts/gpu01.json").read_text(encoding="utf-8")
        (folder / f"facts/{host}.json").write_text(facts, encoding="utf-8")
    variables = {"vllm_facts_directory": "{{ inventory_dir }}/facts"}
    (folder / "group_vars/all.yml").write_text(json.dumps(variables), encoding="utf-8")


def fleet_of_this_machine(clone: Path) -> None:
    """my_fleet: this machine, which need not have a GPU, with a checkpoint of two layers."""
    checkpoint = clone / "model"
    checkpoint.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "vocab_size": 512}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    instance = {"name": "tiny", "image": "vllm/vllm-openai:v0.32.0", "checkpoint": str(checkpoint)}
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    inventory = {"vllm": {"hosts": {"here": {**here, "vllm_instances": [instance]}}}}
    (clone / "my_fleet").write_text(json.dumps(inventory), encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_works_as_it_is_written(page: str, clone: Path, tmp_path: Path) -> None:
    lines = [line for reason, text in blocks(page, "console") if reason is None for line in commands(text)]
    fleet_of_the_readme(tmp_path)
    run("\n".join(lines), clone, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_has_a_reason_and_what_is_a_command_is_seen(page: str) -> None:
    found = blocks(page, "console")
    assert all(reason is None or len(reason.split()) > 3 for reason, _text in found)
    assert all(commands(text) for _reason, text in found)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.findall(r"^\$ ", text, re.M)) == sum(len(commands(text)) for _reason, text in found)
    excused = sum(reason is not None for reason, _text in found + blocks(page, "text"))
    assert text.count("<!-- untested:") == excused


SHOWN = {"README.md": -1, "docs/planning.md": 0, "docs/reading-a-plan.md": -1}
"""Pages that show an output, and which of the commands above it has printed that."""


@pytest.mark.parametrize("page", SHOWN)
def test_what_is_shown_is_what_the_command_above_it_prints(page: str, clone: Path) -> None:
    written = (ROOT / page).read_text(encoding="utf-8")
    ((before, text),) = [
        (written[: block.start()], block["text"]) for block in BLOCK.finditer(written) if block["kind"] == "text"
    ]
    lines = printed(commands(before)[SHOWN[page]], clone)
    # What comes after three dots is left out.
    wrong = [
        line
        for line in text.splitlines()
        if not (any(other.startswith(line[:-3]) for other in lines) if line.endswith("...") else line in lines)
    ]
    assert wrong == [], f"Prints now: {[difflib.get_close_matches(line, lines, 1) for line in wrong]}"


def test_the_table_of_the_example_says_what_is_planned(clone: Path) -> None:
    lines = printed(commands(blocks("docs/planning.md", "console")[0][1])[0], clone)
    rows = re.findall(r"^\| `([\w.-]+)` \| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs/planning.md").read_text(), re.M)
    verdicts = ("FITS REDUCED", "FITS", "DOES NOT FIT", "UNSUPPORTED")
    plans = re.findall(rf"^({'|'.join(verdicts)}): ([\w.-]+) on", "\n".join(lines), re.M)
    assert {name: next(v for v in verdicts if said.upper().startswith(v)) for name, _where, said, _kv in rows} == {
        name: verdict for verdict, name in plans
    }
    for name, _where, _said, kv in rows:
        if about := re.fullmatch(r"about ([\d,]+) tokens", kv):
            start = next(at for at, line in enumerate(lines) if re.match(rf"FITS.*: {name} on", line))
            pool = next(line for line in lines[start:] if line.startswith("KV cache: "))
            tokens = [int(figure.replace(",", "")) for figure in (about[1], re.findall(r"[\d,]+", pool)[0])]
            assert tokens[0] == pytest.approx(tokens[1], rel=0.1), (name, pool)


def test_the_first_answer_is_the_one_that_is_shown(clone: Path, tmp_path: Path) -> None:
    """docs/first-host.md shows what smoke.sh prints for the fleet of the README."""
    ((_reason, shown),) = blocks("docs/first-host.md", "text")
    ((_reason, text),) = blocks("README.md", "yaml")
    (instance,) = yaml.safe_load(text)["vllm"]["vars"]["vllm_instances"]
    plan = {"name": instance["name"], "served_model_name": instance["name"], "smoke": "chat"}
    plan |= {"address": instance["address"], "port": 8000}
    endpoint = "http://gpu01.example.com:8000"
    variables = {"vllm_instance_plan": plan, "vllm_instance_endpoint": endpoint}
    role = "roles/vllm_instance"
    options = ["-e", f"@{role}/vars/main.yml", "-e", f"@{role}/defaults/main.yml", "-e", json.dumps(variables)]
    task = ["-m", "ansible.builtin.template", "-a", f"src={role}/templates/smoke.sh.j2 dest={tmp_path}/smoke.sh"]
    run(shlex.join(["ansible", "localhost", "-c", "local", *options, *task]), clone, tmp_path)
    script = re.sub(
        r"\$(?:route|guarded)\b", "/v1/chat/completions", (tmp_path / "smoke.sh").read_text(encoding="utf-8")
    )
    script = re.sub(r'^echo "(.*)"$', r"\1", script, flags=re.M)
    said = re.findall(r'^(?:with_key|call) \d+ "([^"]+)"', script, re.M)
    for line in shown.splitlines():
        call = re.match(r"ok +(.+?)  +HTTP \d+$", line)
        assert call[1] in said if call else line.replace("...", "$answer") in script.splitlines(), line


def test_no_playbook_guide_or_stage_is_left_out() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    playbooks = {file.stem for file in (ROOT / "playbooks").glob("*.yml")} - {"lab_up", "lab_down"}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == playbooks
    assert {guide for guide in PAGES if guide not in page} - {"README.md"} == set()
    stages = re.findall(r"^(?:LAB_)?STAGES := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    named = re.findall(r"^\| `make ([\w-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.M)
    # Without kept-lab, which tests nothing.
    assert set(named) == set(" ".join(stages).split()) - {"kept-lab"}

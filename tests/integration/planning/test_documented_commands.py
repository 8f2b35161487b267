# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every command of README.md and docs/*.md is run as it stands there, or a comment above it says why not.

The comment is `<!-- untested: REASON -->` in the line above the block. The commands of a page run one after the other,
in a copy of the repository that has the inventories of which the pages speak, with another folder as the user's home.
"""

from __future__ import annotations

import json
import os
import re
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


@pytest.fixture(scope="module", name="clone")
def make_clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the inventories of the pages."""
    clone = tmp_path_factory.mktemp("documented") / "clone"
    subprocess.run(["tools/ci/export.sh", str(clone)], cwd=ROOT, check=True)
    link = clone / ".collections/ansible_collections/gpufleet/vllm"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../..")
    fleet_of_the_readme(clone)
    fleet_of_this_machine(clone)
    (clone / "engine.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n", encoding="utf-8")
    return clone


def fleet_of_the_readme(clone: Path) -> None:
    """inventory/fleet.yml word for word as in the README; what it needs beside is recorded facts and a key."""
    ((_reason, text),) = blocks("README.md", "yaml")
    folder = clone / "inventory"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "facts").mkdir()
    (folder / "fleet.yml").write_text(text, encoding="utf-8")
    for host in yaml.safe_load(text)["vllm"]["hosts"]:
        facts = (ROOT / "inventories/example_facts/gpu01.json").read_text(encoding="utf-8")
        (folder / f"facts/{host}.json").write_text(facts, encoding="utf-8")
    variables = {"vllm_facts_directory": "{{ inventory_dir }}/facts", "vault_vllm_api_key": "key"}
    (folder / "group_vars/vllm.yml").write_text(json.dumps(variables), encoding="utf-8")


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
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    known = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment = {**known, "PATH": path, "HOME": str(tmp_path), "PWD": str(clone)}
    for line in lines:
        result = subprocess.run(
            ["bash", "-c", line], cwd=clone, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 0, f"{page}: {line}\n{result.stdout[-3000:]}{result.stderr[-3000:]}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_has_a_reason_and_what_is_a_command_is_seen(page: str) -> None:
    found = blocks(page, "console")
    assert all(reason is None or len(reason.split()) > 3 for reason, _text in found)
    assert all(commands(text) for _reason, text in found)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.findall(r"^\$ ", text, re.M)) == sum(len(commands(text)) for _reason, text in found)
    assert text.count("<!-- untested:") == sum(reason is not None for reason, _text in found)


@pytest.mark.parametrize("page", ["README.md", "docs/planning.md", "docs/reading-a-plan.md"])
def test_what_is_shown_is_what_the_command_above_it_prints(page: str, clone: Path) -> None:
    """Every line of the output on a page comes out of the last command above it."""
    written = (ROOT / page).read_text(encoding="utf-8")
    ((before, text),) = [
        (written[: block.start()], block["text"]) for block in BLOCK.finditer(written) if block["kind"] == "text"
    ]
    command = commands(before)[{"docs/planning.md": 0}.get(page, -1)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PWD": str(clone)}
    environment["ANSIBLE_CONFIG"] = f"{clone}/ansible.cfg"
    result = subprocess.run(
        ["bash", "-c", command], cwd=clone, env=environment, capture_output=True, text=True, check=True
    )
    printed = result.stdout.splitlines()
    assert [line for line in text.splitlines() if line != "..." and line not in printed] == []

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must hold between files of the repository and what no single tool checks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.playbook.task import Task

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.parent.parent for path in ROOT.glob("roles/*/tasks/main.yml"))
PLAYBOOKS = sorted(ROOT.glob("playbooks/*.yml")) + sorted(ROOT.glob("*_vllm.yml"))
TASK_FILES = sorted(ROOT.glob("roles/*/tasks/**/*.yml")) + sorted(ROOT.glob("roles/*/handlers/*.yml"))
GUIDES = [
    path for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))] if path.exists()
]
PLUGIN_KINDS = ("action", "callback", "filter", "inventory", "lookup", "modules", "test")
PLUGINS = sorted(
    path for kind in PLUGIN_KINDS for path in ROOT.glob(f"plugins/{kind}/*.py") if not path.name.startswith("_")
)
LICENSE_HEADER = [
    "# Copyright: gpufleet contributors",
    "# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)",
    "# SPDX-License-Identifier: GPL-3.0-or-later",
]
# What else is in a task is the name of its action.
TASK_KEYWORDS = {"action", "local_action", "listen", *Task.fattributes}
BLOCK_KEYS = ("block", "rescue", "always")
# The home of a machine that somebody developed on.
MACHINE_PATH = re.compile(r"(?<![\w.$}-])/(?:root/|work/|home/\w)")
LATEST_TAG = re.compile(r"\bvllm/[\w.-]+:latest\b")


def names(paths: list[Path]) -> list[str]:
    """Test ids: paths below the root of the repository."""
    return [str(path.relative_to(ROOT)) for path in paths]


def load(path: Path) -> Any:
    """Read a YAML file; tags of Ansible, such as !vault, are read as plain text."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, suffix, node: str(node.value))
    return yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 - a subclass of SafeLoader


def repository_files() -> list[Path]:
    """Files that are tracked or would be: neither ignored nor deleted, and no links."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return sorted(path for path in set(paths) if path.is_file() and not path.is_symlink())


def text_files() -> Iterator[tuple[Path, str]]:
    """Files of the repository that are UTF-8 text, with their text."""
    for path in repository_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def tasks_of(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every task of a list of tasks, also those in blocks."""
    for item in items:
        if any(key in item for key in BLOCK_KEYS):
            for key in BLOCK_KEYS:
                yield from tasks_of(item.get(key) or [])
        else:
            yield item


def play_tasks(play: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every task of a play."""
    for section in ("pre_tasks", "tasks", "post_tasks", "handlers"):
        yield from tasks_of(play.get(section) or [])


def actions(task: dict[str, Any]) -> list[str]:
    """Names of the actions of a task: one, in a task that is in order."""
    return [key for key in task if key not in TASK_KEYWORDS and not key.startswith("with_")]


def role_references(play: dict[str, Any]) -> Iterator[str]:
    """Names of the roles that a play calls, in `roles` or in a task."""
    for role in play.get("roles") or []:
        yield role if isinstance(role, str) else role.get("role", role.get("name"))
    for task in play_tasks(play):
        for action in actions(task):
            if action.endswith(("include_role", "import_role")):
                yield task[action]["name"]


def option_defaults(role: Path) -> dict[str, Any]:
    """Options of all entry points of a role that have a default, with it."""
    defaults: dict[str, Any] = {}
    for entry_point in load(role / "meta/argument_specs.yml")["argument_specs"].values():
        for name, option in (entry_point.get("options") or {}).items():
            if "default" in option:
                assert defaults.get(name, option["default"]) == option["default"], (
                    f"{name}: defaults differ between entry points"
                )
                defaults[name] = option["default"]
    return defaults


@pytest.mark.parametrize("role", ROLES, ids=names(ROLES))
def test_defaults_and_argument_specs_of_a_role_agree(role: Path) -> None:
    file = role / "defaults/main.yml"
    defaults = (load(file) or {}) if file.exists() else {}
    assert defaults == option_defaults(role)


@pytest.mark.parametrize("role", ROLES, ids=names(ROLES))
def test_public_variables_of_a_role_carry_its_name(role: Path) -> None:
    for entry_point in load(role / "meta/argument_specs.yml")["argument_specs"].values():
        wrong = [name for name in entry_point.get("options") or {} if not name.startswith(f"{role.name}_")]
        assert wrong == []


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=names(PLAYBOOKS))
def test_playbook_has_names_and_full_role_names(playbook: Path) -> None:
    plays = load(playbook)
    assert [play for play in plays if not play.get("name")] == []
    for play in plays:
        assert [role for role in role_references(play) if not role.startswith("gpufleet.vllm.")] == []


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=names(PLAYBOOKS))
def test_actions_of_a_playbook_are_fully_qualified(playbook: Path) -> None:
    for play in load(playbook):
        tasks = [play] if "hosts" not in play else list(play_tasks(play))
        assert [action for task in tasks for action in actions(task) if action.count(".") < 2] == []


@pytest.mark.parametrize("file", TASK_FILES, ids=names(TASK_FILES))
def test_actions_of_a_role_are_fully_qualified(file: Path) -> None:
    tasks = list(tasks_of(load(file) or []))
    assert [action for task in tasks for action in actions(task) if action.count(".") < 2] == []
    assert [task for task in tasks if len(actions(task)) != 1] == []


def test_action_group_names_every_module() -> None:
    modules = sorted(path.stem for path in ROOT.glob("plugins/modules/*.py") if not path.name.startswith("_"))
    assert modules
    assert load(ROOT / "meta/runtime.yml")["action_groups"]["vllm"] == modules


@pytest.mark.parametrize("plugin", PLUGINS, ids=names(PLUGINS))
def test_plugin_has_unit_tests(plugin: Path) -> None:
    # A module beside an action plugin of its name is documentation only.
    kinds = [plugin.parent.name, "action"] if (ROOT / "plugins/action" / plugin.name).exists() else [plugin.parent.name]
    tests = [test for kind in kinds for test in ROOT.glob(f"tests/unit/plugins/{kind}/test_{plugin.stem}*.py")]
    assert tests, f"expected tests/unit/plugins/{kinds[-1]}/test_{plugin.stem}.py"


def test_every_python_file_of_the_plugins_carries_the_license() -> None:
    for path in ROOT.glob("plugins/**/*.py"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#!")]
        assert lines[:3] in ([], LICENSE_HEADER), path


def test_templates_parse() -> None:
    environment = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])
    templates = [path for path in repository_files() if path.suffix == ".j2"]
    assert templates
    for template in templates:
        environment.parse(template.read_text(encoding="utf-8"), filename=str(template))


def test_no_file_names_a_machine_of_a_developer() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path, text in text_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_no_image_of_vllm_is_taken_as_latest() -> None:
    # Tests may: they show that it is refused.
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in text_files()
        if path.relative_to(ROOT).parts[0] not in ("tests", "molecule")
        for number, line in enumerate(text.splitlines(), start=1)
        if LATEST_TAG.search(line)
    ]
    assert found == []


def code_lines(guide: Path) -> list[str]:
    """Lines of the code blocks of a Markdown file, without prompts."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]


def make_targets() -> set[str]:
    """Names of the targets of the Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("guide", GUIDES, ids=names(GUIDES))
def test_commands_of_a_guide_exist(guide: Path) -> None:
    for line in code_lines(guide):
        for target in re.findall(r"(?:^|&& )make ([a-z][\w-]*)", line):
            assert target in make_targets(), line
        for playbook in re.findall(r"ansible-playbook\b.*?\s((?:playbooks/)?\w+\.yml)\b", line):
            assert (ROOT / playbook).exists(), line
        for playbook in re.findall(r"ansible-playbook\b.*?\sgpufleet\.vllm\.(\w+)", line):
            assert (ROOT / f"playbooks/{playbook}.yml").exists(), line


@pytest.mark.parametrize("guide", GUIDES, ids=names(GUIDES))
def test_links_of_a_guide_lead_to_files(guide: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", guide.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (guide.parent / link).exists()] == []


def test_requirements_are_pinned_by_version_and_hash() -> None:
    locks = sorted(ROOT.glob("requirements/*.txt"))
    assert locks
    for lock in locks:
        requirements = re.split(r"\n(?=\S)", re.sub(r"(?m)^ *#.*\n", "", lock.read_text(encoding="utf-8")).strip())
        assert [text for text in requirements if not re.match(r"[\w.-]+==[^\n]+\\\n +--hash=sha256:", text)] == [], lock

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of extensions/awx share: its data, and programs of the Python that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
EXTENSION = ROOT / "extensions/awx"
PROJECT = EXTENSION / "project"
PROGRAMS = Path(sys.executable).parent


class Loader(yaml.SafeLoader):
    """Reads Ansible's YAML; what is !unsafe is a text."""


Loader.add_multi_constructor("!", lambda _loader, _suffix, node: str(node.value))


def load(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader)  # noqa: S506 - a subclass of SafeLoader


def configuration() -> dict[str, Any]:
    """All variables of extensions/awx/config."""
    found: dict[str, Any] = {}
    for path in sorted((EXTENSION / "config").glob("*.yml")):
        found.update(load(path))
    return found


CONFIGURATION = configuration()
TEMPLATES = {template["name"]: template for template in CONFIGURATION["controller_templates"]}
SPECIFICATIONS = {
    path.parents[1].name: load(path)["argument_specs"] for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
}


def options(role: str) -> dict[str, Any]:
    """The public variables of a role, of all its entry points."""
    entries: Iterator[Any] = iter(SPECIFICATIONS[role].values())
    return {name: option for entry in entries for name, option in (entry.get("options") or {}).items()}


def survey_of(template: dict[str, Any]) -> list[dict[str, Any]]:
    """The questions of a job template, with the names of instances that may be chosen."""
    if not template["survey_enabled"]:
        return []
    entry = template["survey_spec"].removeprefix("{{ fleet_surveys.").removesuffix(" }}")
    questions = CONFIGURATION["fleet_surveys"][entry]["spec"]
    names = CONFIGURATION["fleet_instances"]
    return [
        {**each, "choices": names} if each.get("choices") == "{{ fleet_instances }}" else each for each in questions
    ]


def environment(**variables: str) -> dict[str, str]:
    """The environment of a program that knows nothing of the clone."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHONPATH"))}
    return {**known, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", **variables}


def run(*command: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env=environment(**variables), capture_output=True, text=True, timeout=900, check=False
    )

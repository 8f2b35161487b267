# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the surveys of the job templates from the argument specification of roles/vllm.

Usage: python tools/awx/surveys.py > extensions/awx/config/surveys.yml

Of every question, text, type, choices and default are those of the option. Only what belongs to a launch is asked: an
answer has the precedence of extra variables, so that a question about anything else would override the inventory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ROOT / "roles/vllm/meta/argument_specs.yml"

ASKED: Mapping[str, tuple[str, ...]] = {
    "deploy": ("vllm_break_lock",),
    "diagnose": ("vllm_diagnose_interval",),
    "rollback": ("vllm_roll_back", "vllm_release", "vllm_why", "vllm_break_lock"),
    "remove": ("vllm_remove",),
}
"""The questions of each survey, by the entry point of the role."""

INSTANCE_NAMES = ("vllm_roll_back", "vllm_remove")
"""Lists of names of instances. They are chosen from `fleet_instances`, at least one: an empty list would mean all."""

TYPES = {"str": "text", "int": "integer", "float": "float"}
"""Types of AWX, by those of Ansible. AWX has none for booleans; the names of both values are chosen from instead."""

MARKUP = re.compile(r"[A-Z]\(([^)]*)\)")
"""Ansible's markup: C(code), V(value), O(option)."""


def surveys(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The surveys by entry point, as AWX takes them. specification: content of meta/argument_specs.yml."""
    entries = specification["argument_specs"]
    return {
        entry: {
            "name": "",
            "description": "",
            "spec": [question(name, entries[entry]["options"][name]) for name in names],
        }
        for entry, names in ASKED.items()
    }


def question(name: str, option: Mapping[str, Any]) -> dict[str, Any]:
    """The question about one option."""
    text, *more = sentences(option["description"])
    described = "" if name in INSTANCE_NAMES else " ".join(more)
    return {"question_name": text, "question_description": described, "variable": name, **answer(name, option)}


def sentences(description: str | list[str]) -> list[str]:
    """The sentences of a description, without markup."""
    text = description if isinstance(description, str) else " ".join(description)
    return re.split(r"(?<=\.) ", MARKUP.sub(r"\1", text))


def answer(name: str, option: Mapping[str, Any]) -> dict[str, Any]:
    """What may be answered: type, default and choices, which AWX wants as texts."""
    if name in INSTANCE_NAMES:
        return {"type": "multiselect", "required": True, "default": "", "choices": "{{ fleet_instances }}"}
    kind, default = option["type"], option.get("default", "")
    required = bool(option.get("required", False))
    if kind == "bool":
        return choice(["true", "false"], str(default).lower(), required)
    if "choices" in option:
        return choice([str(each) for each in option["choices"]], str(default), required)
    return {"type": TYPES[kind], "required": required, "default": float(default) if kind == "float" else default}


def choice(choices: list[str], default: str, required: bool) -> dict[str, Any]:
    return {"type": "multiplechoice", "required": required, "default": default, "choices": choices}


class Dumper(yaml.SafeDumper):
    """Indents lists below their key, as the other files do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def document(specification: Mapping[str, Any]) -> str:
    """The text of extensions/awx/config/surveys.yml."""
    text = yaml.dump({"fleet_surveys": surveys(specification)}, Dumper=Dumper, sort_keys=False, width=118)
    return f"---\n# Written by tools/awx/surveys.py from roles/vllm/meta/argument_specs.yml.\n{text}"


if __name__ == "__main__":
    sys.stdout.write(document(yaml.safe_load(SPECIFICATION.read_text(encoding="utf-8"))))

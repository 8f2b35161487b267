# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables against the argument specification of a role: all faults at once, each in two lines. Private.

Ansible's own check prints the whole specification for each host. This one takes and refuses the same values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.common.validation import (
    check_type_bool,
    check_type_dict,
    check_type_float,
    check_type_int,
    check_type_list,
    check_type_path,
    check_type_str,
)

CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "bool": check_type_bool,
    "dict": check_type_dict,
    "float": check_type_float,
    "int": check_type_int,
    "list": check_type_list,
    "path": check_type_path,
    "str": check_type_str,
}
TYPES = {
    "bool": ("neither true nor false", "Write true or false."),
    "dict": ("no mapping", "Write 'key: value' lines, indented below it."),
    "float": ("no number", "Write a number, e.g. 0.9."),
    "int": ("no whole number", "Write a whole number without a unit, e.g. 8192."),
    "list": ("no list", "Begin each entry below it with '- '."),
    "path": ("no path", "Write a path."),
    "str": ("no text", "Write it in quotes."),
}
SECRET = re.compile("key|token|secret|password|environment", re.IGNORECASE)
LONGEST = 60
"""Characters of a value that are shown."""

SIMILAR = 0.9
"""How alike (difflib's ratio) a variable's name has to be to one of ours to be taken for a slip."""

MARKUP = re.compile(r"[A-Z]\(([^)]*)\)")
"""Ansible's markup in descriptions: C(code), V(value), O(option)."""


@dataclass(frozen=True)
class Fault:
    """A variable that cannot be used: which one, what is wrong with it, what would be right."""

    variable: str
    fault: str
    remedy: str


def faults_of(options: Mapping[str, Any], given: Mapping[str, Any]) -> list[Fault]:
    """All faults of the given variables. options: `options` of an entry point in meta/argument_specs.yml."""
    return [fault for name, option in options.items() for fault in _option(name, name, option, given)]


def slips(known: Sequence[str], given: Sequence[str]) -> list[tuple[str, str]]:
    """Names that nobody knows and that look like a known one, with that one."""
    found = []
    for name in given:
        near = difflib.get_close_matches(name, known, 1, SIMILAR) if name not in known else []
        found += [(name, known_name) for known_name in near]
    return found


def _option(path: str, name: str, option: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Fault]:
    value = given.get(name)
    if value is None:
        if option.get("required"):
            yield Fault(path, "is missing", _meaning(option))
        return
    yield from _value(path, option, value)


def _value(path: str, option: Mapping[str, Any], value: Any) -> Iterator[Fault]:
    kind = option.get("type", "str")
    converted, wrong = _converted(kind, value)
    if wrong:
        fault, remedy = TYPES[kind]
        yield Fault(path, f"{_shown(path, value)} is {fault}", f"{remedy} {_meaning(option)}".strip())
        return
    choices = option.get("choices")
    if choices and converted not in choices:
        allowed = ", ".join(map(str, choices))
        yield Fault(path, f"{_shown(path, value)} is none of its values", f"Write one of: {allowed}.")
    if kind == "dict":
        yield from _inner(path, option, converted)
    if kind == "list":
        element = {**option, "type": option.get("elements", "raw")}
        for number, item in enumerate(converted):
            yield from _value(_place(path, number, item), element, item)


def _converted(kind: str, value: Any) -> tuple[Any, bool]:
    """The value as that type, and whether it cannot be. A text is no list here, though Ansible would split it."""
    if kind not in CHECKS:
        return value, False
    if (kind == "list" and isinstance(value, str)) or (kind in ("str", "path") and isinstance(value, Mapping | list)):
        return value, True
    try:
        return CHECKS[kind](value), False
    except (TypeError, ValueError):
        return value, True


def _inner(path: str, option: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[Fault]:
    """The keys of a mapping, where the specification names them."""
    options = option.get("options")
    if not options:
        return
    for key in value:
        if key not in options:
            near = difflib.get_close_matches(str(key), options, 1)
            yield Fault(
                f"{path}.{key}",
                "is not known",
                f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(sorted(options))}.",
            )
    for name, inner in options.items():
        yield from _option(f"{path}.{name}", name, inner, value)


def _place(path: str, number: int, item: Any) -> str:
    """An entry of a list, with its name if it has one: `vllm_instances[0] (chat)`."""
    name = item.get("name") if isinstance(item, Mapping) else None
    return f"{path}[{number}]" + (f" ({name})" if isinstance(name, str) else "")


def _shown(path: str, value: Any) -> str:
    if SECRET.search(path):
        return "its value"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def _meaning(option: Mapping[str, Any]) -> str:
    """The first sentence of the option's description."""
    described = option.get("description") or ""
    text = str(described[0] if isinstance(described, list) and described else described)
    return MARKUP.sub(r"\1", text)

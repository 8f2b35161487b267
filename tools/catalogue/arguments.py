"""Reads every argument of ``vllm serve`` out of a release's source."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import json
import re
from typing import Any

from interpreter import Interpreter
from values import MISSING, CannotEvaluate, ClassValue, EnumMember, Function, Instance, Opaque


class ParserModel:
    """Stands for argparse's parser: it records what is added to it."""

    def __init__(self, records: list[dict[str, Any]] | None = None, group: str = "") -> None:
        self.records = [] if records is None else records
        self.group = group

    def add_argument(self, *flags: str, **options: Any) -> None:
        self.records.append({"flags": flags, "group": self.group, **options})

    def add_argument_group(self, title: str = "", *args: Any, **options: Any) -> ParserModel:
        return ParserModel(self.records, title or self.group)

    def add_mutually_exclusive_group(self, *args: Any, **options: Any) -> ParserModel:
        return self

    def add_parser(self, *args: Any, **options: Any) -> ParserModel:
        return self

    def set_defaults(self, **options: Any) -> None:
        pass


def serve_parser_records(interpreter: Interpreter) -> list[dict[str, Any]]:
    """The ``add_argument`` calls of ``vllm serve``, in order."""
    command = interpreter.required_module("vllm.entrypoints.cli.serve").get("ServeSubcommand")
    parser = ParserModel()
    interpreter.getattr(Instance(command), "subparser_init")(parser)
    return parser.records


def api_server_dests(interpreter: Interpreter) -> set[str]:
    """Names that ``python -m vllm.entrypoints.openai.api_server`` knows: the entrypoint of the older images."""
    make_arg_parser = interpreter.required_module("vllm.entrypoints.cli.serve").get("make_arg_parser")
    parser = ParserModel()
    interpreter.call(make_arg_parser, [parser], {})
    return {_dest(record) for record in parser.records}


def arguments(interpreter: Interpreter) -> dict[str, dict[str, Any]]:
    """Every argument of ``vllm serve`` by its destination name.

    Each is ``{"flags", "kind", "type", "nargs", "choices", "known", "nullable", "default", "help", "group",
    "deprecated", "serve_only", "fields"}``; keys that say nothing are left out.
    """
    with_api_server = api_server_dests(interpreter)
    found: dict[str, dict[str, Any]] = {}
    for record in serve_parser_records(interpreter):
        name = _dest(record)
        found[name] = describe(record)
        if name not in with_api_server:
            found[name]["serve_only"] = True
    return dict(sorted(found.items()))


def _dest(record: dict[str, Any]) -> str:
    if record.get("dest"):
        return record["dest"]
    flags = record["flags"]
    return next((flag for flag in flags if flag.startswith("--")), flags[0]).lstrip("-").replace("-", "_")


def describe(record: dict[str, Any]) -> dict[str, Any]:
    """One ``add_argument`` call in the catalogue's terms."""
    kind = _kind(record)
    value_type, nullable = ("bool", False) if kind in ("boolean", "flag", "unset") else _type(record.get("type"))
    choices = record.get("choices")
    described = {
        "flags": sorted(record["flags"], key=lambda flag: (not flag.startswith("--"), record["flags"].index(flag))),
        "kind": kind,
        "type": value_type,
        "nargs": record.get("nargs"),
        "choices": _plain([item for item in choices if item not in (None, "None")]) if choices else None,
        "known": _known(record.get("metavar")),
        "nullable": nullable or (choices is not None and (None in choices or "None" in choices)),
        "default": _default(record),
        "help": _first_line(record.get("help")),
        "group": record["group"],
        "deprecated": bool(record.get("deprecated")) or _says_deprecated(record.get("help")),
        "fields": _json_fields(record.get("type")),
    }
    keep_null = {"default"}
    return {key: value for key, value in described.items() if key in keep_null or value not in (None, False, "", [])}


def _kind(record: dict[str, Any]) -> str:
    """How the argument takes its value: boolean (--x/--no-x), flag (--x), append (repeated), value, or own action."""
    action = record.get("action")
    if action in ("boolean", "store_true", "store_false", "append"):
        return {"store_true": "flag", "store_false": "unset"}.get(action, action)
    if not record["flags"][0].startswith("-"):
        return "positional"
    return "value"


NATIVE_TYPES = {int: "int", float: "float", str: "str", None: "str", json.loads: "json", bool: "bool_word"}
NAMED_TYPES = {
    "human_readable_int": "int_human",
    "human_readable_int_or_auto": "int_human_or_auto",
    "union_dict_and_str": "json_or_str",
}


def _type(value: Any) -> tuple[str, bool]:
    """(name of the type, whether "None" is accepted)."""
    if isinstance(value, TypeConverter):
        return _type(value.inner)[0], value.nullable or _type(value.inner)[1]
    if isinstance(value, Function):
        return _function_type(value), False
    if value in NATIVE_TYPES:
        return NATIVE_TYPES[value], False
    if isinstance(value, ClassValue):
        return "json", False
    raise CannotEvaluate(f"argument type {value!r}")


def _function_type(function: Function) -> str:
    if function.name in NAMED_TYPES:
        return NAMED_TYPES[function.name]
    if _config_class(function) is not None:
        return "json"
    source = _source(function)
    if "json.loads" in source:
        return "json"
    if ".split(" in source:
        return "comma_list"
    if ".lower()" in source:
        return "str_folded" if ".replace('-', '_')" in source else "str"
    raise CannotEvaluate(f"argument type {function!r}: {source}")


def _source(function: Function) -> str:
    return ast.unparse(function.node)


def _config_class(function: Any) -> ClassValue | None:
    """The config class that a JSON value is turned into, from the defaults of the converting function."""
    if isinstance(function, TypeConverter):
        return _config_class(function.inner)
    if isinstance(function, ClassValue):
        return function
    for value in getattr(function, "defaults", {}).values():
        if isinstance(value, ClassValue):
            return value
        if isinstance(value, Function) and isinstance(value.bound, ClassValue):
            return value.bound
    return None


def _json_fields(function: Any) -> list[str] | None:
    """The keys that a config class takes: what may stand in the JSON of that argument."""
    cls = _config_class(function)
    return None if cls is None else sorted({name for owner in cls.mro for name in _init_fields(owner)})


def _init_fields(cls: ClassValue) -> list[str]:
    return [
        name
        for name, statement in cls.statements.items()
        if isinstance(statement, ast.AnnAssign)
        and "ClassVar" not in ast.unparse(statement.annotation)
        and not (statement.value is not None and "init=False" in ast.unparse(statement.value))
    ]


class TypeConverter:
    """What ``optional_type`` and ``parse_type`` return: a converter around another one."""

    def __init__(self, inner: Any, nullable: bool) -> None:
        self.inner, self.nullable = inner, nullable


def _default(record: dict[str, Any]) -> Any:
    if "default" in record:
        value = record["default"]
        return None if value == "==SUPPRESS==" else _plain(value)
    return {"store_true": False, "store_false": True}.get(record.get("action", ""))


def _plain(value: Any) -> Any:
    """A value as JSON takes it; a config object stands for its own defaults: {}, a mark for "not set" for None."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, EnumMember):
        return value.value if isinstance(value.value, str | int) else value.name
    if isinstance(value, Instance):
        if value.content is not None:
            return _plain(value.content)
        return _plain(value.attributes) if value.cls.is_config else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, ClassValue | Function):
        return f"{value.__module__}.{value.name}"
    if isinstance(value, Opaque) or value is MISSING:
        return None
    raise CannotEvaluate(f"default {value!r}")


def _known(metavar: Any) -> list[str] | None:
    """Names that the release ships for an argument that plugins may extend (tool parsers, load formats, ...)."""
    if isinstance(metavar, list | tuple):
        return sorted(str(item) for item in metavar if item not in (None, "None"))
    match = re.match(r"\{([^}]+)\}", metavar or "")
    return sorted(match.group(1).split(",")) if match else None


def _first_line(text: Any) -> str:
    """The first sentence of a help text, at most 160 characters."""
    if not isinstance(text, str) or text == "==SUPPRESS==":
        return ""
    paragraph = re.split(r"\n\s*\n", text.strip())[0].replace("%%", "%")
    sentence = re.split(r"(?<=[a-z)`\"'])\.(?=\s|$)", re.sub(r"\s+", " ", paragraph))[0]
    return sentence if len(sentence) <= 160 else sentence[:157].rsplit(" ", 1)[0] + " ..."


def _says_deprecated(text: Any) -> bool:
    return isinstance(text, str) and re.search(r"\bdeprecated\b", text.split("\n\n")[0], re.IGNORECASE) is not None

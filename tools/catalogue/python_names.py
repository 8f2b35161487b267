"""The names from outside the source tree that mean something to the interpreted functions: typing, dataclasses, ..."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import itertools
import json
import re
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from values import MISSING, ClassEnvironment, ClassValue, Field, Instance, Opaque

if TYPE_CHECKING:
    from interpreter import Interpreter


class TypeBuiltin:
    """Python's ``type``: a function, a class to compare with, and ``type[X]`` in annotations."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter

    def __call__(self, value: Any) -> Any:
        return self.interpreter.type_of(value)

    def __getitem__(self, item: Any) -> Any:
        return type[item]


class ForeignModule:
    """A module outside the tree: a few names are modelled, the others are opaque."""

    def __init__(self, interpreter: Interpreter, name: str) -> None:
        self.interpreter, self.name = interpreter, name

    def get(self, name: str) -> Any:
        return self.interpreter.resolve(self.name, name)


def fields(cls: Any) -> list[Field]:
    """``dataclasses.fields`` for an interpreted class, in the order of the real one."""
    cls = cls.cls if isinstance(cls, Instance) else cls
    found: dict[str, Field] = {}
    for owner in reversed(cls.mro):
        if not owner.is_dataclass:
            continue
        for name, statement in owner.statements.items():
            if isinstance(statement, ast.AnnAssign):
                if "ClassVar" in ast.unparse(statement.annotation) or "InitVar" in ast.unparse(statement.annotation):
                    continue
                found[name] = _field(owner, name, statement)
    return list(found.values())


def _field(owner: ClassValue, name: str, statement: ast.AnnAssign) -> Field:
    annotation = owner.interpreter.evaluate(statement.annotation, ClassEnvironment(owner))
    value = owner.raw(name)
    if isinstance(value, Field):
        return Field(name, annotation, value.default, value.default_factory)
    return Field(name, annotation, value, MISSING)


def _make_field(*args: Any, **kwargs: Any) -> Field:
    """``dataclasses.field`` and ``pydantic.Field``."""
    default = args[0] if args else kwargs.get("default", MISSING)
    return Field("", None, MISSING if default is ... else default, kwargs.get("default_factory", MISSING))


def attribute_docs(cls: ClassValue) -> dict[str, str]:
    """The string literal that follows an attribute in a class body is its help text."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.mro):
        body = owner.node.body
        for statement, following in itertools.pairwise(body):
            target = getattr(statement, "target", None) or (getattr(statement, "targets", None) or [None])[0]
            if (
                isinstance(target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
                and isinstance(following.value.value, str)
            ):
                docs[target.id] = following.value.value
    return docs


def foreign_names() -> dict[str, Any]:
    """The names outside the tree that have a meaning for the interpreted functions."""
    names: dict[str, Any] = {}
    for module in ("typing", "typing_extensions"):
        names.update({f"{module}.{name}": getattr(typing, name) for name in typing.__all__ if hasattr(typing, name)})
        names[f"{module}.TYPE_CHECKING"] = False
        names[f"{module}.cast"] = lambda kind, value: value
        names[f"{module}.TypeVar"] = lambda *args, **kwargs: Any
        names[f"{module}.TypedDict"] = Opaque("typing.TypedDict")
        names[f"{module}.NamedTuple"] = Opaque("typing.NamedTuple")
        names[f"{module}.Generic"] = Opaque("typing.Generic")
        names[f"{module}.Protocol"] = Opaque("typing.Protocol")
        names[f"{module}.is_typeddict"] = lambda value: (
            isinstance(value, ClassValue) and any(repr(base) == "typing.TypedDict" for base in value.bases)
        )
    names.update(
        {
            "types.UnionType": types.UnionType,
            "types.NoneType": type(None),
            "collections.abc.Callable": Callable,
            "collections.abc.Mapping": typing.Mapping,
            "collections.abc.Sequence": typing.Sequence,
            "dataclasses.MISSING": MISSING,
            "dataclasses.field": _make_field,
            "dataclasses.fields": fields,
            "dataclasses.is_dataclass": lambda value: isinstance(value, ClassValue) and value.is_dataclass,
            "pydantic.Field": _make_field,
            "pydantic.fields.FieldInfo": type("FieldInfo", (), {}),
            "argparse.BooleanOptionalAction": "boolean",
            "argparse.SUPPRESS": "==SUPPRESS==",
            "json.loads": json.loads,
            "json.dumps": json.dumps,
            "re": re,
            "regex": re,
            "itertools.permutations": itertools.permutations,
            "copy.deepcopy": _copy,
            "functools.lru_cache": lambda *args, **kwargs: lambda function: function,
            "sys.argv": ["vllm", "serve"],
            "sys.modules": {},
            "sys.platform": "linux",
            "sys.version_info": (3, 12, 0),
            "os.environ": {},
            "os.getenv": lambda name, default=None: default,
            "os.path.expanduser": lambda path: path,
            "os.path.join": lambda *parts: "/".join(parts),
            "ssl.CERT_NONE": 0,
            "enum.auto": lambda: "auto",
            "warnings.warn": lambda *args, **kwargs: None,
            "math.inf": float("inf"),
            "string.Template": Opaque("string.Template"),
            "uuid.uuid4": Opaque("uuid.uuid4"),
        }
    )
    for name in ("match", "search", "fullmatch", "compile", "sub"):
        names[f"re.{name}"] = names[f"regex.{name}"] = getattr(re, name)
    return names


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value

"""The values that interpreted code works with: modules, classes, functions, objects, and what lies outside the tree."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import builtins
import functools
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interpreter import Interpreter

MISSING = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()


# Python's own functions that interpreted code may call: none of them reaches files, modules or other code.
SAFE_BUILTINS = {
    "None",
    "True",
    "False",
    "Ellipsis",
    "NotImplemented",
    "bool",
    "int",
    "float",
    "str",
    "bytes",
    "list",
    "tuple",
    "dict",
    "set",
    "frozenset",
    "complex",
    "abs",
    "all",
    "any",
    "divmod",
    "enumerate",
    "filter",
    "format",
    "hash",
    "iter",
    "len",
    "map",
    "max",
    "min",
    "pow",
    "range",
    "repr",
    "reversed",
    "round",
    "slice",
    "sorted",
    "sum",
    "zip",
    "callable",
    "staticmethod",
    "classmethod",
    *(name for name in dir(builtins) if name.endswith(("Error", "Exception", "Warning"))),
}


# Python's own containers: an object of an interpreted class that derives from one of them has that one's content.
CONTAINERS = (dict, list, set, frozenset, tuple)
# ``X | Y`` of interpreted classes, which are no types to Python.
UNION: Any = typing.Union


class CannotEvaluate(Exception):
    """The source asks for something that this interpreter cannot know; the message names the file and the line."""


class InterpretedError(Exception):
    """The interpreted code raised an exception."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Opaque:
    """A value from outside the source tree, known by its dotted path alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.__module__ = path.rpartition(".")[0] or path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Opaque(f"{self.path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Opaque(f"{self.path}()")

    def __getitem__(self, item: Any) -> Any:
        return Opaque(f"{self.path}[]")

    def __or__(self, other: Any) -> Any:
        return UNION[self, other]

    def __ror__(self, other: Any) -> Any:
        return UNION[other, self]

    def __bool__(self) -> bool:
        raise CannotEvaluate(f"the truth of {self.path} is not known")

    def __repr__(self) -> str:
        return self.path


class Instance:
    """An object of an interpreted class: constructor arguments and attributes, no behaviour of its own.

    ``content`` is what an object of a subclass of Python's own containers holds, None for all others.
    """

    def __init__(self, cls: ClassValue, kwargs: dict[str, Any] | None = None, content: Any = None) -> None:
        self.cls = cls
        self.attributes = dict(kwargs or {})
        self.content = content

    def __repr__(self) -> str:
        return f"{self.cls.name}(...)"


class EnumMember:
    """One member of an interpreted Enum."""

    def __init__(self, cls: ClassValue, name: str, value: Any) -> None:
        self.cls, self.name, self.value = cls, name, value

    def __repr__(self) -> str:
        return f"{self.cls.name}.{self.name}"


class Field:
    """What ``dataclasses.fields`` returns for one field."""

    def __init__(self, name: str, annotation: Any, default: Any, default_factory: Any) -> None:
        self.name, self.type, self.default, self.default_factory = name, annotation, default, default_factory


class Environment:
    """Local names of one call, with the enclosing ones behind them."""

    def __init__(self, module: ModuleValue, parent: Environment | None = None) -> None:
        self.module, self.parent = module, parent
        self.names: dict[str, Any] = {}

    def lookup(self, name: str) -> Any:
        scope: Environment | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return self.module.get(name)


class Function:
    """An interpreted function or lambda."""

    def __init__(
        self,
        interpreter: Interpreter,
        node: Any,
        environment: Environment,
        bound: Any = None,
        owner: ClassValue | None = None,
    ) -> None:
        self.interpreter, self.node, self.environment, self.bound, self.owner = (
            interpreter,
            node,
            environment,
            bound,
            owner,
        )
        self.name = getattr(node, "name", "<lambda>")
        self.__module__ = environment.module.name
        defaults = [interpreter.evaluate(default, environment) for default in node.args.defaults]
        names = [argument.arg for argument in node.args.args]
        self.defaults = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                self.defaults[argument.arg] = interpreter.evaluate(default, environment)

    @property
    def qualified_name(self) -> str:
        return f"{self.environment.module.name}.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.call_function(self, args, kwargs)

    def bind(self, value: Any) -> Function:
        return Function(self.interpreter, self.node, self.environment, value, self.owner)

    @property
    def decorators(self) -> set[str]:
        return {ast.unparse(decorator) for decorator in getattr(self.node, "decorator_list", [])}

    def __repr__(self) -> str:
        return self.qualified_name


class Super:
    """What ``super()`` gives inside a method."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def get(self, name: str) -> Any:
        bound = self.function.bound
        cls = bound.cls if isinstance(bound, Instance) else bound
        value = cls.get(name, after=self.function.owner)
        return value.bind(bound) if isinstance(value, Function) and "staticmethod" not in value.decorators else value


class ClassValue:
    """An interpreted class: its syntax tree, its bases and, evaluated on demand, its attributes."""

    def __init__(self, interpreter: Interpreter, node: ast.ClassDef, environment: Environment) -> None:
        self.interpreter, self.node, self.environment = interpreter, node, environment
        self.name = self.__name__ = node.name
        self.__module__ = environment.module.name
        self.overrides: dict[str, Any] = {}
        self._evaluated: dict[str, Any] = {}

    @functools.cached_property
    def bases(self) -> list[Any]:
        bases = []
        for base in self.node.bases:
            value = self.interpreter.evaluate(base, self.environment)
            bases.append(typing.get_origin(value) or value)
        return bases

    @functools.cached_property
    def mro(self) -> list[ClassValue]:
        """Depth first, left to right, last occurrence wins: enough for the config classes."""
        order: list[ClassValue] = [self]
        for base in self.bases:
            if isinstance(base, ClassValue):
                order = [item for item in order if item not in base.mro] + base.mro
        return order

    @functools.cached_property
    def decorators(self) -> list[str]:
        return [ast.unparse(decorator) for decorator in self.node.decorator_list]

    @functools.cached_property
    def is_dataclass(self) -> bool:
        own = any(re.match(r"(dataclasses\.|pydantic\.)?(dataclass|config)\b", text) for text in self.decorators)
        return own or any(base.is_dataclass for base in self.mro[1:])

    @functools.cached_property
    def is_config(self) -> bool:
        """Whether its objects are settings by name: dataclasses and pydantic's models."""
        return self.is_dataclass or any(repr(base) == "pydantic.BaseModel" for cls in self.mro for base in cls.bases)

    @functools.cached_property
    def container(self) -> type | None:
        """The container of Python's own that the class derives from."""
        bases = [base for cls in self.mro for base in cls.bases]
        return next((base for base in bases if isinstance(base, type) and issubclass(base, CONTAINERS)), None)

    @functools.cached_property
    def is_enum(self) -> bool:
        return any(
            "Enum" in (base.path if isinstance(base, Opaque) else getattr(base, "name", ""))
            or (isinstance(base, ClassValue) and base.is_enum)
            for base in self.bases
        )

    @functools.cached_property
    def statements(self) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for statement in self.node.body:
            if isinstance(statement, ast.AnnAssign | ast.Assign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found.update({target.id: statement for target in targets if isinstance(target, ast.Name)})
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[statement.name] = statement
        return found

    def get(self, name: str, default: Any = MISSING, after: ClassValue | None = None) -> Any:
        """An attribute, looked up along the MRO; with ``after``, as ``super()`` of that class does."""
        order = self.mro if after is None else self.mro[self.mro.index(after) + 1 :]
        for cls in order:
            if name in cls.overrides:
                return cls.overrides[name]
            if name in cls.statements and not cls._is_annotation_only(name):
                value = cls._evaluate(name)
                is_classmethod = isinstance(value, Function) and "classmethod" in value.decorators
                return value.bind(self) if is_classmethod else value
        if name == "__members__" and self.is_enum:
            return {key: self.get(key) for key in self.member_names}
        if name == "__doc__":
            return ast.get_docstring(self.node)
        if name == "__name__":
            return self.name
        if name == "__module__":
            return self.__module__
        if default is not MISSING:
            return default
        raise InterpretedError("AttributeError", f"{self.name} has no attribute {name}")

    def _is_annotation_only(self, name: str) -> bool:
        statement = self.statements[name]
        return isinstance(statement, ast.AnnAssign) and statement.value is None

    def _evaluate(self, name: str) -> Any:
        if name not in self._evaluated:
            self._evaluated[name] = self._attribute(name, self.statements[name])
        return self._evaluated[name]

    def _attribute(self, name: str, statement: ast.stmt) -> Any:
        scope = ClassEnvironment(self)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return Function(self.interpreter, statement, self.environment, owner=self)
        if isinstance(statement, ast.ClassDef):
            return ClassValue(self.interpreter, statement, scope)
        value = self.interpreter.evaluate(statement.value, scope)  # type: ignore[attr-defined]
        if self.is_enum and not name.startswith("_"):
            return EnumMember(self, name, value)
        return self._field_default(value)

    def _field_default(self, value: Any) -> Any:
        """A dataclass field with a plain default leaves that default on the class, as the real decorator does."""
        return value.default if isinstance(value, Field) and value.default is not MISSING else value

    def raw(self, name: str) -> Any:
        """The right-hand side of an attribute as it stands (a :class:`Field` stays one), or MISSING."""
        statement = self.statements.get(name)
        value = getattr(statement, "value", None)
        return MISSING if value is None else self.interpreter.evaluate(value, ClassEnvironment(self))

    @functools.cached_property
    def member_names(self) -> list[str]:
        return [
            name
            for name, statement in self.statements.items()
            if isinstance(statement, ast.Assign) and not name.startswith("_")
        ]

    def members(self) -> list[Any]:
        return [self.get(name) for name in self.member_names]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.container is not None:
            return Instance(self, content=self.container(*args, **kwargs))
        names = (
            [
                name
                for owner in reversed(self.mro)
                for name, statement in owner.statements.items()
                if isinstance(statement, ast.AnnAssign)
            ]
            if args and self.is_dataclass
            else []
        )
        return Instance(self, {**dict(zip(names, args, strict=False)), **kwargs})

    def __or__(self, other: Any) -> Any:
        return UNION[self, other]

    def __ror__(self, other: Any) -> Any:
        return UNION[other, self]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members())

    def __repr__(self) -> str:
        return f"{self.__module__}.{self.name}"


class ClassEnvironment(Environment):
    """Names seen from a class body: the class's own attributes first."""

    def __init__(self, cls: ClassValue) -> None:
        super().__init__(cls.environment.module, cls.environment)
        self.cls = cls

    def lookup(self, name: str) -> Any:
        if name in self.cls.statements and not self.cls._is_annotation_only(name):
            value = self.cls._evaluate(name)
            return value.value if isinstance(value, EnumMember) else value
        return super().lookup(name)


class ModuleValue:
    """A module of the tree; its names are evaluated when they are asked for, in no particular order."""

    def __init__(self, interpreter: Interpreter, name: str, path: Path) -> None:
        self.interpreter, self.name, self.path = interpreter, name, path
        self.tree = ast.parse(path.read_bytes(), str(path))
        self.environment = Environment(self)
        self.bindings: dict[str, list[tuple[ast.stmt, list[tuple[ast.expr, bool]]]]] = {}
        self.mutations: dict[str, list[ast.stmt]] = {}
        self.values: dict[str, Any] = {}
        self.star_imports: list[str] = []
        self._index(self.tree.body, [])

    def _index(self, body: list[ast.stmt], guards: list[tuple[ast.expr, bool]]) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                self._index(statement.body, [*guards, (statement.test, True)])
                self._index(statement.orelse, [*guards, (statement.test, False)])
            elif isinstance(statement, ast.Try):
                for handler in statement.handlers:
                    self._index(handler.body, guards)
                self._index(statement.body, guards)
            elif isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                self.star_imports.append(self.absolute(statement))
            else:
                for name in _bound_names(statement):
                    self.bindings.setdefault(name, []).append((statement, guards))
                root = _mutated_name(statement)
                if root:
                    self.mutations.setdefault(root, []).append(statement)

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The full name of the module that a ``from ... import`` names."""
        base = statement.module or ""
        if not statement.level:
            return base
        parts = self.name.split(".")
        parts = parts[: len(parts) - statement.level + (self.path.name == "__init__.py")]
        return ".".join([*parts, base] if base else parts)

    def get(self, name: str) -> Any:
        if name not in self.values:
            self.values[name] = self._evaluate(name)
            for statement in self.mutations.get(name, []):
                self.interpreter.execute([statement], self.environment)
        return self.values[name]

    def _evaluate(self, name: str) -> Any:
        override = self.interpreter.overrides.get(f"{self.name}.{name}", MISSING)
        if override is not MISSING:
            return override
        for statement, guards in reversed(self.bindings.get(name, [])):
            if all(self.interpreter.truth(test, self.environment) is wanted for test, wanted in guards):
                scratch = Environment(self, None)
                self.interpreter.execute([statement], scratch)
                return scratch.names[name]
        for base in self.star_imports:
            source = self.interpreter.module(base)
            if source is not None and source.defines(name):
                return source.get(name)
        submodule = self.interpreter.module(f"{self.name}.{name}")
        if submodule is not None:
            return submodule
        return self._dynamic(name)

    def defines(self, name: str) -> bool:
        """Whether the module binds the name itself or through ``from x import *``."""
        return name in self.bindings or any(
            source.defines(name) for base in self.star_imports if (source := self.interpreter.module(base)) is not None
        )

    def _dynamic(self, name: str) -> Any:
        """Names that a module makes on demand (PEP 562) or takes from Python's builtins."""
        lazy = "MODULE_ATTRS" in self.bindings and self.get("MODULE_ATTRS")
        if lazy and name in lazy:
            target, _colon, attribute = lazy[name].partition(":")
            return self.interpreter.resolve(f"{self.name}{target}" if target.startswith(".") else target, attribute)
        if name in ("__name__", "__file__"):
            return self.name if name == "__name__" else str(self.path)
        if name in self.interpreter.natives:
            return self.interpreter.natives[name]
        if name in SAFE_BUILTINS:
            return getattr(builtins, name)
        if hasattr(builtins, name):
            return Opaque(f"builtins.{name}")
        if "__getattr__" in self.bindings and not name.startswith("__"):
            return self.interpreter.call(self.get("__getattr__"), [name], {})
        raise InterpretedError("NameError", f"{self.name} has no name {name}")

    def __repr__(self) -> str:
        return self.name


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom):
        return [alias.asname or alias.name for alias in statement.names]
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return []
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names: list[str] = []
    for target in targets if isinstance(statement, ast.Assign | ast.AnnAssign) else []:
        elements = target.elts if isinstance(target, ast.Tuple) else [target]
        names.extend(element.id for element in elements if isinstance(element, ast.Name))
    return names


def _mutated_name(statement: ast.stmt) -> str | None:
    """The module-level name that a statement changes in place: ``X[k] = v``, ``X.a = v``, ``X += v``, ..."""
    node: Any = None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript | ast.Attribute):
        node = statement.targets[0].value
    elif isinstance(statement, ast.AugAssign):
        node = statement.target
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in ("update", "append", "extend", "add"):
            node = function.value
    return node.id if isinstance(node, ast.Name) else None

"""Evaluates pieces of a vLLM source tree without importing them.

vLLM builds its command line from dataclasses at run time, and the rules for that (``get_kwargs``) change from release
to release. Instead of copying those rules, this module walks the syntax trees and *interprets* the few functions that
matter, with the real values of Python's own types. Nothing of the wheel is executed: names that lie outside the tree
(torch, pydantic, the operating system) become :class:`Opaque` values, and a decision that would hang on one of them
stops the generator with the place in the source, instead of guessing.
"""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MISSING = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()


# Python's own functions that interpreted code may call: none of them reaches files, modules or other code.
SAFE_BUILTINS = {
    "None", "True", "False", "Ellipsis", "NotImplemented", "bool", "int", "float", "str", "bytes", "list", "tuple", "dict",
    "set", "frozenset", "complex", "abs", "all", "any", "divmod", "enumerate", "filter", "format", "hash", "iter",
    "len", "map", "max", "min", "pow", "range", "repr", "reversed", "round", "slice", "sorted", "sum", "zip", "callable",
    "staticmethod", "classmethod", *(name for name in dir(builtins) if name.endswith(("Error", "Exception", "Warning"))),
}


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
        return typing.Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]

    def __bool__(self) -> bool:
        raise CannotEvaluate(f"the truth of {self.path} is not known")

    def __repr__(self) -> str:
        return self.path


class Instance:
    """An object of an interpreted class: constructor arguments and attributes, no behaviour of its own."""

    def __init__(self, cls: ClassValue, kwargs: dict[str, Any] | None = None) -> None:
        self.cls = cls
        self.attributes = dict(kwargs or {})

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
        self.module, self.parent, self.names = module, parent, {}

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
        self, interpreter: Interpreter, node: Any, environment: Environment, bound: Any = None,
        owner: ClassValue | None = None,
    ) -> None:
        self.interpreter, self.node, self.environment, self.bound, self.owner = interpreter, node, environment, bound, owner
        self.name = getattr(node, "name", "<lambda>")
        self.__module__ = environment.module.name
        defaults = [interpreter.evaluate(default, environment) for default in node.args.defaults]
        names = [argument.arg for argument in node.args.args]
        self.defaults = dict(zip(names[len(names) - len(defaults):], defaults, strict=True))
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
    def is_enum(self) -> bool:
        return any("Enum" in (base.path if isinstance(base, Opaque) else getattr(base, "name", "")) or
                   (isinstance(base, ClassValue) and base.is_enum) for base in self.bases)

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
        order = self.mro if after is None else self.mro[self.mro.index(after) + 1:]
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
        return [name for name, statement in self.statements.items()
                if isinstance(statement, ast.Assign) and not name.startswith("_")]

    def members(self) -> list[Any]:
        return [self.get(name) for name in self.member_names]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = [name for owner in reversed(self.mro) for name, statement in owner.statements.items()
                 if isinstance(statement, ast.AnnAssign)] if args and self.is_dataclass else []
        return Instance(self, {**dict(zip(names, args, strict=False)), **kwargs})

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]

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
        parts = parts[:len(parts) - statement.level + (self.path.name == "__init__.py")]
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
        return name in self.bindings or any(source.defines(name) for base in self.star_imports
                                            if (source := self.interpreter.module(base)) is not None)

    def _dynamic(self, name: str) -> Any:
        """Names that a module makes on demand (PEP 562) or takes from Python's builtins."""
        lazy = "MODULE_ATTRS" in self.bindings and self.get("MODULE_ATTRS")
        if lazy and name in lazy:
            target, _, attribute = lazy[name].partition(":")
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
    """The module-level name that a statement changes in place: ``X[k] = v``, ``X.a = v``, ``X += v``, ``X.update(v)``."""
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


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
          ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift,
          ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitXor: operator.xor}
COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
           ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
           ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b}
UNARY = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert}


class Interpreter:
    """Interprets a source tree ``root`` (the folder that holds ``vllm/``).

    ``overrides`` maps a dotted name of the tree to the value that it has on an official CUDA image, for the few places
    where the source asks its surroundings; ``functions`` maps the name of a function to the one to call instead.
    """

    def __init__(self, root: Path, overrides: dict[str, Any] | None = None) -> None:
        self.root = root
        self.modules: dict[str, ModuleValue | None] = {}
        self.overrides = dict(overrides or {})
        self.functions: dict[str, Callable[..., Any]] = {
            "get_attr_docs": attribute_docs, "LazyLoader": lambda name, scope, module: self.module(module)}
        self.natives: dict[str, Any] = {
            "isinstance": self.isinstance, "issubclass": self.issubclass, "hasattr": self.hasattr,
            "getattr": self.getattr, "setattr": self.setattr, "type": TypeBuiltin(self), "callable": callable,
            "globals": dict, "print": lambda *args, **kwargs: None,
            "vars": lambda value: value.attributes, "property": property, "next": self.next, "object": object,
        }
        self.foreign: dict[str, Any] = _foreign_names(self)

    # -- modules ------------------------------------------------------------------------------------------------------
    def module(self, name: str) -> ModuleValue | None:
        """The module of that dotted name, or None where the tree has none."""
        if name not in self.modules:
            base = self.root.joinpath(*name.split("."))
            path = next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)
            self.modules[name] = ModuleValue(self, name, path) if path else None
        return self.modules[name]

    def resolve(self, module_name: str, name: str) -> Any:
        """``from module_name import name``."""
        full = f"{module_name}.{name}"
        if full in self.overrides:
            return self.overrides[full]
        module = self.module(module_name)
        if module is not None:
            return module.get(name)
        return self.foreign.get(full, Opaque(full)) if full not in self.foreign else self.foreign[full]

    def _import(self, statement: ast.Import | ast.ImportFrom, environment: Environment) -> None:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                environment.names[alias.asname or name] = self.module(name) or ForeignModule(self, name)
            return
        base = environment.module.absolute(statement)
        for alias in statement.names:
            environment.names[alias.asname or alias.name] = self.resolve(base, alias.name)

    # -- statements ---------------------------------------------------------------------------------------------------
    def execute(self, body: list[ast.stmt], environment: Environment) -> None:
        for statement in body:
            handler = getattr(self, f"_do_{type(statement).__name__}", None)
            if handler is None:
                raise CannotEvaluate(f"{self._place(statement, environment)}: {type(statement).__name__}")
            handler(statement, environment)

    def _place(self, node: Any, environment: Environment) -> str:
        return f"{environment.module.path}:{getattr(node, 'lineno', '?')}"

    def _do_Import(self, statement: ast.Import, environment: Environment) -> None:
        self._import(statement, environment)

    _do_ImportFrom = _do_Import  # type: ignore[assignment]

    def _do_FunctionDef(self, statement: ast.FunctionDef, environment: Environment) -> None:
        environment.names[statement.name] = Function(self, statement, environment)

    _do_AsyncFunctionDef = _do_FunctionDef  # type: ignore[assignment]

    def _do_ClassDef(self, statement: ast.ClassDef, environment: Environment) -> None:
        environment.names[statement.name] = ClassValue(self, statement, environment)

    def _do_Assign(self, statement: ast.Assign, environment: Environment) -> None:
        value = self.evaluate(statement.value, environment)
        for target in statement.targets:
            self.assign(target, value, environment)

    def _do_AnnAssign(self, statement: ast.AnnAssign, environment: Environment) -> None:
        if statement.value is not None:
            self.assign(statement.target, self.evaluate(statement.value, environment), environment)

    def _do_AugAssign(self, statement: ast.AugAssign, environment: Environment) -> None:
        target: Any = statement.target
        load = ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, target)
        old, new = self.evaluate(load, environment), self.evaluate(statement.value, environment)
        if isinstance(statement.op, ast.Add) and isinstance(old, list):
            old.extend(new)
            return
        if isinstance(statement.op, ast.BitOr) and isinstance(old, dict | set):
            old.update(new)
            return
        self.assign(target, self._binary(statement.op, old, new), environment)

    def _do_Expr(self, statement: ast.Expr, environment: Environment) -> None:
        if isinstance(statement.value, ast.Yield):
            environment.lookup("__yielded__").append(self.evaluate(statement.value.value, environment))
        elif not isinstance(statement.value, ast.Constant):
            self.evaluate(statement.value, environment)

    def _do_If(self, statement: ast.If, environment: Environment) -> None:
        self.execute(statement.body if self.truth(statement.test, environment) else statement.orelse, environment)

    def _do_For(self, statement: ast.For, environment: Environment) -> None:
        for item in self.iterate(self.evaluate(statement.iter, environment)):
            self.assign(statement.target, item, environment)
            try:
                self.execute(statement.body, environment)
            except _Continue:
                continue
            except _Break:
                break
        else:
            self.execute(statement.orelse, environment)

    def _do_Return(self, statement: ast.Return, environment: Environment) -> None:
        raise _Return(None if statement.value is None else self.evaluate(statement.value, environment))

    def _do_Raise(self, statement: ast.Raise, environment: Environment) -> None:
        text = ast.unparse(statement.exc) if statement.exc else "raise"
        raise InterpretedError(text.split("(")[0], text)

    def _do_Try(self, statement: ast.Try, environment: Environment) -> None:
        try:
            self.execute(statement.body, environment)
        except (InterpretedError, KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:
            name = getattr(error, "name", None) or type(error).__name__
            for handler in statement.handlers:
                caught = ast.unparse(handler.type) if handler.type else ""
                if handler.type is None or name in caught or re.search(r"\b(Base)?Exception\b", caught):
                    self.execute(handler.body, environment)
                    break
            else:
                raise
        else:
            self.execute(statement.orelse, environment)
        self.execute(statement.finalbody, environment)

    def _do_With(self, statement: ast.With, environment: Environment) -> None:
        for item in statement.items:
            value = self.evaluate(item.context_expr, environment)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, environment)
        self.execute(statement.body, environment)

    def _do_Delete(self, statement: ast.Delete, environment: Environment) -> None:
        for target in statement.targets:
            if isinstance(target, ast.Subscript):
                del self.evaluate(target.value, environment)[self.evaluate(target.slice, environment)]

    def _do_Pass(self, statement: ast.stmt, environment: Environment) -> None:
        pass

    _do_Assert = _do_Global = _do_Nonlocal = _do_Pass

    def _do_Break(self, statement: ast.stmt, environment: Environment) -> None:
        raise _Break

    def _do_Continue(self, statement: ast.stmt, environment: Environment) -> None:
        raise _Continue

    def assign(self, target: Any, value: Any, environment: Environment) -> None:
        if isinstance(target, ast.Name):
            environment.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element, item in zip(target.elts, self.iterate(value), strict=True):
                self.assign(element, item, environment)
        elif isinstance(target, ast.Subscript):
            self.evaluate(target.value, environment)[self.evaluate(target.slice, environment)] = value
        elif isinstance(target, ast.Attribute):
            self.setattr(self.evaluate(target.value, environment), target.attr, value)
        else:
            raise CannotEvaluate(f"{self._place(target, environment)}: assignment to {ast.unparse(target)}")

    # -- expressions --------------------------------------------------------------------------------------------------
    def evaluate(self, node: Any, environment: Environment) -> Any:
        handler = getattr(self, f"_eval_{type(node).__name__}", None)
        if handler is None:
            raise CannotEvaluate(f"{self._place(node, environment)}: {ast.unparse(node)}")
        return handler(node, environment)

    def truth(self, node: ast.expr, environment: Environment) -> bool:
        try:
            return bool(self.evaluate(node, environment))
        except CannotEvaluate as error:
            raise CannotEvaluate(f"{self._place(node, environment)}: if {ast.unparse(node)}: {error}") from error

    def _eval_Constant(self, node: ast.Constant, environment: Environment) -> Any:
        return node.value

    def _eval_Name(self, node: ast.Name, environment: Environment) -> Any:
        return environment.lookup(node.id)

    def _eval_Attribute(self, node: ast.Attribute, environment: Environment) -> Any:
        return self.getattr(self.evaluate(node.value, environment), node.attr)

    def _eval_Call(self, node: ast.Call, environment: Environment) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return Super(environment.lookup("__function__"))
        function = self.evaluate(node.func, environment)
        args: list[Any] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                args.extend(self.iterate(self.evaluate(argument.value, environment)))
            else:
                args.append(self.evaluate(argument, environment))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, environment)
            kwargs.update(value if keyword.arg is None else {keyword.arg: value})
        return self.call(function, args, kwargs)

    def call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if isinstance(function, Function | ClassValue):
            native = self.functions.get(function.name)
            if native is not None:
                return native(*args, **kwargs)
        if isinstance(function, ClassValue) and function.is_enum:
            return next(member for member in function.members() if args[0] in (member, member.value))
        return function(*args, **kwargs)

    def call_function(self, function: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        node = function.node
        environment = Environment(function.environment.module, function.environment)
        environment.names["__function__"] = function
        names = [argument.arg for argument in [*node.args.posonlyargs, *node.args.args]]
        values = [function.bound, *args] if function.bound is not None else list(args)
        environment.names.update(function.defaults)
        environment.names.update(zip(names, values, strict=False))
        if node.args.vararg:
            environment.names[node.args.vararg.arg] = tuple(values[len(names):])
        keywords = {*names, *(argument.arg for argument in node.args.kwonlyargs)}
        environment.names.update({key: value for key, value in kwargs.items() if key in keywords})
        if node.args.kwarg:
            environment.names[node.args.kwarg.arg] = {k: v for k, v in kwargs.items() if k not in keywords}
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body, environment)
        return self._run(node, environment)

    def _run(self, node: Any, environment: Environment) -> Any:
        generator = any(isinstance(child, ast.Yield) for child in ast.walk(node))
        environment.names["__yielded__"] = yielded = []
        try:
            self.execute(node.body, environment)
        except _Return as result:
            return yielded if generator else result.value
        return yielded if generator else None

    def _eval_Subscript(self, node: ast.Subscript, environment: Environment) -> Any:
        value, key = self.evaluate(node.value, environment), self.evaluate(node.slice, environment)
        if isinstance(value, ClassValue):
            return value.get(key) if value.is_enum else value
        return value[key]

    def _eval_Slice(self, node: ast.Slice, environment: Environment) -> slice:
        parts = [None if part is None else self.evaluate(part, environment)
                 for part in (node.lower, node.upper, node.step)]
        return slice(*parts)

    def _eval_BinOp(self, node: ast.BinOp, environment: Environment) -> Any:
        return self._binary(node.op, self.evaluate(node.left, environment), self.evaluate(node.right, environment))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.BitOr):
            if isinstance(left, dict | set | int) and not isinstance(left, type):
                return left | right
            return typing.Union[left, right]
        if isinstance(left, Opaque) or isinstance(right, Opaque):
            return Opaque(f"({left!r} {type(op).__name__} {right!r})")
        return BINARY[type(op)](left, right)

    def _eval_BoolOp(self, node: ast.BoolOp, environment: Environment) -> Any:
        """Short circuit; where one operand decides alone, an unknown one beside it does not matter."""
        stop = isinstance(node.op, ast.Or)
        unknown: CannotEvaluate | None = None
        value: Any = None
        for operand in node.values:
            try:
                value = self.evaluate(operand, environment)
                if bool(value) is stop:
                    return value
            except CannotEvaluate as error:
                unknown = unknown or error
        if unknown:
            raise unknown
        return value

    def _eval_UnaryOp(self, node: ast.UnaryOp, environment: Environment) -> Any:
        return UNARY[type(node.op)](self.evaluate(node.operand, environment))

    def _eval_Compare(self, node: ast.Compare, environment: Environment) -> bool:
        left = self.evaluate(node.left, environment)
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(comparator, environment)
            known = isinstance(op, ast.Is | ast.IsNot) or not isinstance(left, Opaque) and not isinstance(right, Opaque)
            if not known:
                raise CannotEvaluate(f"{self._place(node, environment)}: {ast.unparse(node)}")
            if not COMPARE[type(op)](left, right):
                return False
            left = right
        return True

    def _eval_IfExp(self, node: ast.IfExp, environment: Environment) -> Any:
        return self.evaluate(node.body if self.truth(node.test, environment) else node.orelse, environment)

    def _elements(self, nodes: list[ast.expr], environment: Environment) -> list[Any]:
        values: list[Any] = []
        for element in nodes:
            if isinstance(element, ast.Starred):
                values.extend(self.iterate(self.evaluate(element.value, environment)))
            else:
                values.append(self.evaluate(element, environment))
        return values

    def _eval_List(self, node: ast.List, environment: Environment) -> list[Any]:
        return self._elements(node.elts, environment)

    def _eval_Tuple(self, node: ast.Tuple, environment: Environment) -> tuple[Any, ...]:
        return tuple(self._elements(node.elts, environment))

    def _eval_Set(self, node: ast.Set, environment: Environment) -> set[Any]:
        return set(self._elements(node.elts, environment))

    def _eval_Dict(self, node: ast.Dict, environment: Environment) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                result.update(self.evaluate(value, environment))
            else:
                result[self.evaluate(key, environment)] = self.evaluate(value, environment)
        return result

    def _comprehend(self, node: Any, environment: Environment) -> list[Any]:
        inner = Environment(environment.module, environment)
        results: list[Any] = []

        def loop(generators: list[ast.comprehension]) -> None:
            if not generators:
                if isinstance(node, ast.DictComp):
                    results.append((self.evaluate(node.key, inner), self.evaluate(node.value, inner)))
                else:
                    results.append(self.evaluate(node.elt, inner))
                return
            first, *rest = generators
            for item in self.iterate(self.evaluate(first.iter, inner)):
                self.assign(first.target, item, inner)
                if all(self.truth(test, inner) for test in first.ifs):
                    loop(rest)

        loop(node.generators)
        return results

    def _eval_ListComp(self, node: Any, environment: Environment) -> list[Any]:
        return self._comprehend(node, environment)

    _eval_GeneratorExp = _eval_ListComp

    def _eval_SetComp(self, node: Any, environment: Environment) -> set[Any]:
        return set(self._comprehend(node, environment))

    def _eval_DictComp(self, node: Any, environment: Environment) -> dict[Any, Any]:
        return dict(self._comprehend(node, environment))

    def _eval_JoinedStr(self, node: ast.JoinedStr, environment: Environment) -> str:
        return "".join(str(self.evaluate(value, environment)) for value in node.values)

    def _eval_FormattedValue(self, node: ast.FormattedValue, environment: Environment) -> str:
        value = self.evaluate(node.value, environment)
        if node.conversion == ord("r"):
            return repr(value)
        spec = self.evaluate(node.format_spec, environment) if node.format_spec else ""
        return str(value) if isinstance(value, Opaque | ClassValue) else format(value, spec)

    def _eval_Lambda(self, node: ast.Lambda, environment: Environment) -> Function:
        return Function(self, node, environment)

    def _eval_NamedExpr(self, node: ast.NamedExpr, environment: Environment) -> Any:
        value = self.evaluate(node.value, environment)
        self.assign(node.target, value, environment)
        return value

    # -- Python's object model, as far as it is needed ----------------------------------------------------------------
    def iterate(self, value: Any) -> Any:
        if isinstance(value, Opaque):
            raise CannotEvaluate(f"the elements of {value.path} are not known")
        return value

    def next(self, value: Any, *default: Any) -> Any:
        return next(iter(value), *default)

    def getattr(self, value: Any, name: str, *default: Any) -> Any:
        if isinstance(value, ModuleValue | ForeignModule):
            try:
                return value.get(name)
            except InterpretedError:
                if default:
                    return default[0]
                raise
        if isinstance(value, ClassValue):
            return value.get(name, *default)
        if isinstance(value, Super):
            return value.get(name)
        if isinstance(value, Instance):
            return self._instance_attribute(value, name, *default)
        if isinstance(value, Function) and name == "__doc__":
            return ast.get_docstring(value.node)
        if isinstance(value, Function) and name == "__name__":
            return value.name
        return getattr(value, name, *default)

    def _instance_attribute(self, value: Instance, name: str, *default: Any) -> Any:
        if name in value.attributes:
            return value.attributes[name]
        result = value.cls.get(name, *default)
        if isinstance(result, Function) and result.bound is None:
            kinds = result.decorators
            bound = result if "staticmethod" in kinds else result.bind(value)
            return bound() if kinds & {"property", "functools.cached_property", "cached_property"} else bound
        return result

    def setattr(self, value: Any, name: str, new: Any) -> None:
        if isinstance(value, Instance):
            value.attributes[name] = new
        elif isinstance(value, ClassValue):
            value.overrides[name] = new
        else:
            setattr(value, name, new)

    def hasattr(self, value: Any, name: str) -> bool:
        try:
            self.getattr(value, name)
        except (InterpretedError, AttributeError):
            return False
        return True

    def isinstance(self, value: Any, classes: Any) -> bool:
        for cls in classes if isinstance(classes, tuple) else (classes,):
            if isinstance(cls, TypeBuiltin) and isinstance(value, type | ClassValue):
                return True
            if isinstance(cls, ClassValue):
                owner = getattr(value, "cls", None)
                if owner is not None and cls in owner.mro:
                    return True
            elif isinstance(cls, type) and isinstance(value, cls):
                return True
        return False

    def issubclass(self, value: Any, classes: Any) -> bool:
        for cls in classes if isinstance(classes, tuple) else (classes,):
            if isinstance(value, ClassValue):
                if cls in value.mro or any(cls in item.bases for item in value.mro):
                    return True
            elif isinstance(value, type) and isinstance(cls, type) and issubclass(value, cls):
                return True
        return False

    def type_of(self, value: Any) -> Any:
        return value.cls if isinstance(value, Instance | EnumMember) else type(value)


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
            if (isinstance(target, ast.Name) and isinstance(following, ast.Expr)
                    and isinstance(following.value, ast.Constant) and isinstance(following.value.value, str)):
                docs[target.id] = following.value.value
    return docs


def _get_origin(value: Any) -> Any:
    """As on the Python of the images; ``X | Y`` is evaluated to a Union here, and the sources treat the two alike."""
    return typing.get_origin(value)


def _foreign_names(interpreter: Interpreter) -> dict[str, Any]:
    """The names outside the tree that have a meaning for the interpreted functions."""
    names: dict[str, Any] = {}
    for module in ("typing", "typing_extensions"):
        names.update({f"{module}.{name}": getattr(typing, name) for name in typing.__all__ if hasattr(typing, name)})
        names[f"{module}.TYPE_CHECKING"] = False
        names[f"{module}.get_origin"] = _get_origin
        names[f"{module}.cast"] = lambda kind, value: value
        names[f"{module}.TypeVar"] = lambda *args, **kwargs: Any
        names[f"{module}.TypedDict"] = Opaque("typing.TypedDict")
        names[f"{module}.NamedTuple"] = Opaque("typing.NamedTuple")
        names[f"{module}.Generic"] = Opaque("typing.Generic")
        names[f"{module}.Protocol"] = Opaque("typing.Protocol")
        names[f"{module}.is_typeddict"] = lambda value: isinstance(value, ClassValue) and any(
            repr(base) == "typing.TypedDict" for base in value.bases)
    names.update({
        "types.UnionType": types.UnionType, "types.NoneType": type(None),
        "collections.abc.Callable": Callable, "collections.abc.Mapping": typing.Mapping,
        "collections.abc.Sequence": typing.Sequence,
        "dataclasses.MISSING": MISSING, "dataclasses.field": _make_field, "dataclasses.fields": fields,
        "dataclasses.is_dataclass": lambda value: isinstance(value, ClassValue) and value.is_dataclass,
        "pydantic.Field": _make_field, "pydantic.fields.FieldInfo": type("FieldInfo", (), {}),
        "argparse.BooleanOptionalAction": "boolean", "argparse.SUPPRESS": "==SUPPRESS==",
        "json.loads": json.loads, "json.dumps": json.dumps, "re": re, "regex": re,
        "itertools.permutations": itertools.permutations, "copy.deepcopy": lambda value: _copy(value),
        "functools.lru_cache": lambda *args, **kwargs: (lambda function: function),
        "sys.argv": ["vllm", "serve"], "sys.modules": {}, "sys.platform": "linux", "sys.version_info": (3, 12, 0),
        "os.environ": {}, "os.getenv": lambda name, default=None: default,
        "os.path.expanduser": lambda path: path, "os.path.join": lambda *parts: "/".join(parts),
        "ssl.CERT_NONE": 0, "enum.auto": lambda: "auto", "warnings.warn": lambda *args, **kwargs: None,
        "math.inf": float("inf"), "string.Template": Opaque("string.Template"), "uuid.uuid4": Opaque("uuid.uuid4"),
    })
    for name in ("match", "search", "fullmatch", "compile", "sub"):
        names[f"re.{name}"] = names[f"regex.{name}"] = getattr(re, name)
    return names


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value

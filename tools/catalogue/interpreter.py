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
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from python_names import ForeignModule, TypeBuiltin, attribute_docs, foreign_names
from values import (
    UNION,
    CannotEvaluate,
    ClassValue,
    EnumMember,
    Environment,
    Function,
    Instance,
    InterpretedError,
    ModuleValue,
    Opaque,
    Super,
)


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


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
            "get_attr_docs": attribute_docs,
            "LazyLoader": lambda name, scope, module: self.module(module),
        }
        self.natives: dict[str, Any] = {
            "isinstance": self.isinstance,
            "issubclass": self.issubclass,
            "hasattr": self.hasattr,
            "getattr": self.getattr,
            "setattr": self.setattr,
            "type": TypeBuiltin(self),
            "callable": callable,
            "globals": dict,
            "print": lambda *args, **kwargs: None,
            "vars": lambda value: value.attributes,
            "property": property,
            "next": self.next,
            "object": object,
        }
        self.foreign: dict[str, Any] = foreign_names()

    # -- modules ------------------------------------------------------------------------------------------------------
    def module(self, name: str) -> ModuleValue | None:
        """The module of that dotted name, or None where the tree has none."""
        if name not in self.modules:
            base = self.root.joinpath(*name.split("."))
            path = next((path for path in (base / "__init__.py", base.with_suffix(".py")) if path.is_file()), None)
            self.modules[name] = ModuleValue(self, name, path) if path else None
        return self.modules[name]

    def required_module(self, name: str) -> ModuleValue:
        """The module of that dotted name; :class:`CannotEvaluate` where the tree has none."""
        module = self.module(name)
        if module is None:
            raise CannotEvaluate(f"{self.root} has no module {name}")
        return module

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

    _do_ImportFrom = _do_Import

    def _do_FunctionDef(self, statement: ast.FunctionDef, environment: Environment) -> None:
        environment.names[statement.name] = Function(self, statement, environment)

    _do_AsyncFunctionDef = _do_FunctionDef

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
        raise InterpretedError(text.split("(", maxsplit=1)[0], text)

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
            environment.names[node.args.vararg.arg] = tuple(values[len(names) :])
        keywords = {*names, *(argument.arg for argument in node.args.kwonlyargs)}
        environment.names.update({key: value for key, value in kwargs.items() if key in keywords})
        if node.args.kwarg:
            environment.names[node.args.kwarg.arg] = {k: v for k, v in kwargs.items() if k not in keywords}
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body, environment)
        return self._run(node, environment)

    def _run(self, node: Any, environment: Environment) -> Any:
        generator = any(isinstance(child, ast.Yield) for child in ast.walk(node))
        yielded: list[Any] = []
        environment.names["__yielded__"] = yielded
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
        parts = [
            None if part is None else self.evaluate(part, environment) for part in (node.lower, node.upper, node.step)
        ]
        return slice(*parts)

    def _eval_BinOp(self, node: ast.BinOp, environment: Environment) -> Any:
        return self._binary(node.op, self.evaluate(node.left, environment), self.evaluate(node.right, environment))

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.BitOr):
            if isinstance(left, dict | set | int) and not isinstance(left, type):
                return left | right
            return UNION[left, right]
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

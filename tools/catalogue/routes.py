"""Reads the HTTP routes of the API server, and which of them the API key guards."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from interpreter import Interpreter
from values import CannotEvaluate

# Method of a FastAPI router -> HTTP method.
METHODS = {
    "get": "GET",
    "post": "POST",
    "put": "PUT",
    "delete": "DELETE",
    "patch": "PATCH",
    "websocket": "WEBSOCKET",
    "api_route": "ANY",
    "add_api_route": "ANY",
}
# Servers that are not the API server of ``vllm serve``, wherever a release keeps them.
OTHER_SERVERS = ("entrypoints/api_server.py", "dp_supervisor.py", "cli/preload.py", "run_batch.py")
# What FastAPI and the metrics endpoint add without a decorator.
BUILT_IN = {"/docs": "GET", "/redoc": "GET", "/openapi.json": "GET", "/metrics": "GET"}
DEVELOPMENT = "VLLM_SERVER_DEV_MODE"


def routes(interpreter: Interpreter) -> dict[str, dict[str, Any]]:
    """Path -> ``{"methods": "GET, POST", "guarded": whether the API key guards it, "needs": [...]}``.

    ``needs`` names the environment variables without which the route does not exist.
    """
    guarded_prefixes = guarded(interpreter)
    found: dict[str, dict[str, Any]] = {}
    for path, method, needs in [*_decorated(interpreter), *((path, method, []) for path, method in BUILT_IN.items())]:
        entry = found.setdefault(path, {"methods": [], "guarded": path.startswith(guarded_prefixes), "needs": needs})
        entry["methods"] = sorted({*entry["methods"], method})
        entry["needs"] = sorted(set(entry["needs"]) & set(needs))
    return {
        path: {
            "methods": ", ".join(entry["methods"]),
            "guarded": entry["guarded"],
            **({"needs": entry["needs"]} if entry["needs"] else {}),
        }
        for path, entry in sorted(found.items())
    }


def guarded(interpreter: Interpreter) -> tuple[str, ...]:
    """The path prefixes that the middleware asks the API key for."""
    for path in sorted((interpreter.root / "vllm" / "entrypoints").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "class AuthenticationMiddleware" not in text and "status_code=401" not in text:
            continue
        constant = re.search(r"^GUARDED_PREFIX = (\(.*?\))", text, re.MULTILINE)
        if constant:
            return tuple(ast.literal_eval(constant.group(1)))
        if 'url_path.startswith("/v1")' in text:
            return ("/v1",)
    raise CannotEvaluate(f"{interpreter.root}: the authentication middleware guards nothing that is known here")


def _decorated(interpreter: Interpreter) -> Iterator[tuple[str, str, list[str]]]:
    root = interpreter.root / "vllm"
    development = _development_modules(root)
    for path in sorted((root / "entrypoints").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.endswith(OTHER_SERVERS):
            continue
        tree = ast.parse(path.read_bytes())
        always = _attach_conditions(tree) + [DEVELOPMENT for part in development if name.startswith(part)]
        for node, conditions in _walk(tree, []):
            for call in [*getattr(node, "decorator_list", []), *([node.value] if isinstance(node, ast.Expr) else [])]:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                    for route in _constant(call.args[0], tree) if call.func.attr in METHODS else []:
                        for method in _methods(call) if route.startswith("/") else []:
                            yield route, method, sorted({*always, *conditions})


def _development_modules(root: Path) -> list[str]:
    """Files and packages whose routers are attached inside ``if envs.VLLM_SERVER_DEV_MODE``."""
    found = ["entrypoints/serve/dev/"]
    for path in (root / "entrypoints").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.If) and ast.unparse(node.test) == f"envs.{DEVELOPMENT}":
                found.extend(
                    _module_path(str(statement.module))
                    for statement in node.body
                    if isinstance(statement, ast.ImportFrom)
                    and re.match(r"vllm\.entrypoints\.\w+\.", statement.module or "")
                )
    return found


def _module_path(module: str) -> str:
    """``vllm.entrypoints.rl.factories`` registers its whole package, ``....api_router`` only itself."""
    parts = module.split(".")[1:]
    return "/".join(parts[:-1]) + "/" if parts[-1] == "factories" else "/".join(parts) + ".py"


def _attach_conditions(tree: ast.Module) -> list[str]:
    """Environment variables without which a module's ``attach_router`` attaches nothing."""
    found: list[str] = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in ("attach_router", "_attach_router"):
            for statement in function.body:
                text = ast.unparse(statement) if isinstance(statement, ast.If) else ""
                variable = re.match(r"if (not )?envs\.(\w+):", text)
                leaves = variable and variable.group(1) and re.search(r"\n    return", text)
                attaches = variable and not variable.group(1) and "include_router" in text
                if variable and (leaves or attaches):
                    found.append(variable.group(2))
    return found


def _walk(node: ast.AST, conditions: list[str]) -> Iterator[tuple[ast.AST, list[str]]]:
    """Every node with the environment variables of the ``if`` statements around it."""
    for child in ast.iter_child_nodes(node):
        yield child, conditions
        if isinstance(child, ast.If):
            inner = [*conditions, *re.findall(r"envs\.(\w+)", ast.unparse(child.test))]
            for statement in child.body:
                yield statement, inner
                yield from _walk(statement, inner)
            for statement in child.orelse:
                yield statement, conditions
                yield from _walk(statement, conditions)
        else:
            yield from _walk(child, conditions)


def _methods(call: ast.Call) -> list[str]:
    """The HTTP methods of one registration: ``methods=[...]``, or the one that the decorator is named after."""
    listed = next((keyword.value for keyword in call.keywords if keyword.arg == "methods"), None)
    if isinstance(listed, ast.List):
        return [str(item.value) for item in listed.elts if isinstance(item, ast.Constant)]
    return [METHODS[call.func.attr]]  # type: ignore[attr-defined]


def _constant(node: ast.expr, tree: ast.Module) -> list[str]:
    """The path of a route: a literal, or a name that the module binds to one; others (FastAPI's own) are left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Name):
        return [
            str(statement.value.value)
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Constant)
            and ast.unparse(statement.targets[0]) == node.id
        ]
    return []

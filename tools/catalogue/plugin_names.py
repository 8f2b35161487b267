"""Names that a release ships for arguments that plugins may extend, so that argparse knows no choices for them."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from pathlib import Path

from interpreter import Interpreter

PARSER_FOLDERS = {
    "tool_call_parser": ("vllm/tool_parsers", "vllm/entrypoints/openai/tool_parsers"),
    "reasoning_parser": ("vllm/reasoning",),
}


def known_names(interpreter: Interpreter) -> dict[str, list[str]]:
    """Argument -> the names that work without a plugin."""
    found = {
        argument: sorted({name for folder in folders for name in _registered(interpreter.root / folder)})
        for argument, folders in PARSER_FOLDERS.items()
    }
    quantization = interpreter.required_module("vllm.model_executor.layers.quantization")
    found["quantization"] = sorted(typing.get_args(quantization.get("QuantizationMethods")))
    loaders = interpreter.module("vllm.model_executor.model_loader")
    if loaders is not None and "_LOAD_FORMAT_TO_MODEL_LOADER" in loaders.bindings:
        found["load_format"] = sorted(loaders.get("_LOAD_FORMAT_TO_MODEL_LOADER"))
    backends = interpreter.module("vllm.v1.attention.backends.registry") or interpreter.module(
        "vllm.attention.backends.registry"
    )
    if backends is not None and "AttentionBackendEnum" in backends.bindings:
        found["attention_backend"] = sorted(backends.get("AttentionBackendEnum").member_names)
    return {argument: names for argument, names in found.items() if names}


def _registered(folder: Path) -> Iterator[str]:
    """Parser names: the keys of the table of lazy modules, or the decorators ``@...register_module("name")``."""
    for path in sorted(folder.glob("*.py")) if folder.is_dir() else []:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and "PARSERS_TO_REGISTER" in ast.unparse(node).split("=", maxsplit=1)[0]
            ):
                yield from (str(key.value) for key in getattr(node.value, "keys", []) if isinstance(key, ast.Constant))
            for call in getattr(node, "decorator_list", []):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("register_module"):
                    yield from _strings(call.args[0] if call.args else call.keywords[0].value)


def _strings(node: ast.expr) -> list[str]:
    value = ast.literal_eval(node)
    return [value] if isinstance(value, str) else list(value)

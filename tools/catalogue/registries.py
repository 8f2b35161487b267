"""Reads the registries of a release: architectures, quantisation methods, environment variables, batch defaults."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import re
import typing
from typing import Any

from arguments import _plain
from interpreter import Interpreter
from release_source import CudaPlatform
from values import CannotEvaluate, ClassValue, Environment, InterpretedError, Opaque

GIB = 2**30
TASKS = {  # dictionary of vllm/model_executor/models/registry.py -> what its models are for
    "_TEXT_GENERATION_MODELS": "generate",
    "_EMBEDDING_MODELS": "embed",
    "_LATE_INTERACTION_MODELS": "embed",
    "_REWARD_MODELS": "reward",
    "_CROSS_ENCODER_MODELS": "score",
    "_TOKEN_CLASSIFICATION_MODELS": "classify",
    "_SEQUENCE_CLASSIFICATION_MODELS": "classify",
    "_MULTIMODAL_MODELS": "generate_multimodal",
    "_SPECULATIVE_DECODING_MODELS": "draft",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers",
    "_TRANSFORMERS_BACKEND_MODELS": "transformers",
    "_TRANSFORMERS_MODELS": "transformers",
}


def architectures(interpreter: Interpreter) -> dict[str, str]:
    """Architecture -> task of the dictionary that registers it (a name in several goes to the first)."""
    registry = interpreter.required_module("vllm.model_executor.models.registry")
    known = [name for name in registry.bindings if name.isupper() and name.endswith("_MODELS")]
    unknown = set(known) - set(TASKS) - {"_VLLM_MODELS", "_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"}
    if unknown:
        raise CannotEvaluate(f"{registry.path}: new model dictionaries {sorted(unknown)}: give them a task in TASKS")
    found: dict[str, str] = {}
    for dictionary, task in TASKS.items():
        if dictionary in registry.bindings:
            for name in registry.get(dictionary):
                found.setdefault(name, task)
    return dict(sorted(found.items()))


def quantization_methods(interpreter: Interpreter) -> dict[str, int | None]:
    """Method -> least compute capability as vLLM writes it (89 for 8.9); None where its class names none."""
    module = interpreter.required_module("vllm.model_executor.layers.quantization")
    names = typing.get_args(module.get("QuantizationMethods"))
    return {name: _min_capability(interpreter, module, name) for name in sorted(names)}


def _min_capability(interpreter: Interpreter, module: Any, name: str) -> int | None:
    try:
        config = interpreter.call(module.get("get_quantization_config"), [name], {})
        return interpreter.call(config.get("get_min_capability"), [], {}) if isinstance(config, ClassValue) else None
    except InterpretedError as error:
        if error.name in ("NotImplementedError", "AssertionError"):  # "not on this platform"
            return None
        raise


def compressed_tensors_schemes(interpreter: Interpreter) -> dict[str, int]:
    """Scheme class of compressed-tensors -> least compute capability, e.g. CompressedTensorsW8A8Fp8 -> 89."""
    base = "vllm.model_executor.layers.quantization.compressed_tensors.schemes"
    package = interpreter.required_module(base)
    found = {}
    for path in sorted(package.path.parent.glob("compressed_tensors_*.py")):
        module = interpreter.required_module(f"{base}.{path.stem}")
        for name, bindings in module.bindings.items():
            if isinstance(bindings[-1][0], ast.ClassDef) and re.match("CompressedTensors(?!Scheme)", name):
                capability = _scheme_capability(interpreter, module.get(name))
                if capability is not None:
                    found[name] = capability
    return dict(sorted(found.items()))


def _scheme_capability(interpreter: Interpreter, cls: ClassValue) -> int | None:
    """None for a helper class, and for a scheme that only says that it is no longer supported."""
    if "get_min_capability" not in cls.statements:
        return None
    try:
        return interpreter.call(cls.get("get_min_capability"), [], {})
    except InterpretedError:
        return None


def environment_variables(interpreter: Interpreter) -> dict[str, Any]:
    """Environment variable -> its value where it is not set (None where that depends on the machine)."""
    envs = interpreter.required_module("vllm.envs")
    declared = _declared_defaults(envs)
    return {
        name: _environment_default(interpreter, name, getter, declared)
        for name, getter in sorted(envs.get("environment_variables").items())
    }


def _environment_default(interpreter: Interpreter, name: str, getter: Any, declared: dict[str, Any]) -> Any:
    try:
        value = interpreter.call(getter, [], {})
        value = declared.get(name) if isinstance(value, Opaque) else _plain(value)
    except (CannotEvaluate, InterpretedError, TypeError, AttributeError, ValueError, KeyError):
        value = declared.get(name)
    machine_dependent = isinstance(value, str) and value.startswith("/")
    return declared.get(name) if machine_dependent else value


def _declared_defaults(envs: Any) -> dict[str, Any]:
    """The annotated assignments under ``if TYPE_CHECKING``: literal ones only."""
    declared = {}
    for statement in ast.walk(envs.tree):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            try:
                declared[statement.target.id] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return declared


class MeasuredCard(CudaPlatform):
    """The platform of a card of a given memory, name and compute capability."""

    def __init__(self, memory_gib: int, name: str = "", capability: tuple[int, int] = (9, 0)) -> None:
        super().__init__("vllm.platforms.current_platform")
        self.memory_gib, self.device_name, self.capability = memory_gib, name, capability

    def get_device_total_memory(self, *args: Any) -> int:
        return self.memory_gib * GIB

    def get_device_name(self, *args: Any) -> str:
        return self.device_name

    def is_device_capability(self, capability: Any, *args: Any) -> bool:
        return self.capability == capability


def batch_defaults(interpreter: Interpreter) -> dict[str, list[list[int]]]:
    """Default batch of the API server by GPU memory.

    ``{"": [[least memory in GiB, max_num_batched_tokens, max_num_seqs], ...], "name:a100": [...],
    "capability:12.1": [...]}``: the rows of ``""`` are for every card that no other key describes.
    """
    statements = _memory_ladder(interpreter)
    source = "\n".join(ast.unparse(statement) for statement in statements)
    tables = {"": _rows(interpreter, statements)}
    for name in sorted(set(re.findall(r"'([^']+)' (?:not )?in device_name", source))):
        tables[f"name:{name}"] = _rows(interpreter, statements, name=name)
    for major, minor in sorted(set(re.findall(r"is_device_capability\(\((\d+), (\d+)\)\)", source))):
        tables[f"capability:{major}.{minor}"] = _rows(interpreter, statements, capability=(int(major), int(minor)))
    return {key: rows for key, rows in tables.items() if not key or rows != tables[""]}


def _memory_ladder(interpreter: Interpreter) -> list[ast.stmt]:
    """The statements that look at the card (``device_memory = ...``) and choose by it (``if device_memory >=``)."""
    module = interpreter.required_module("vllm.engine.arg_utils")
    for function in ast.walk(module.tree):
        body = function.body if isinstance(function, ast.FunctionDef) else []
        for first, statement in enumerate(body):
            if isinstance(statement, ast.Try) and "device_memory = " in ast.unparse(statement):
                chooses = next(index for index in range(first, len(body)) if isinstance(body[index], ast.If))
                return body[first : chooses + 1]
    raise CannotEvaluate(f"{module.path}: no branch on device_memory")


def _rows(interpreter: Interpreter, statements: list[ast.stmt], **card: Any) -> list[list[int]]:
    module = interpreter.required_module("vllm.engine.arg_utils")
    context = interpreter.required_module("vllm.usage.usage_lib").get("UsageContext").get("OPENAI_API_SERVER")
    rows: list[list[int]] = []
    for memory in range(0, 321):
        scope = Environment(module)
        scope.names.update(current_platform=MeasuredCard(memory, **card), UsageContext=context.cls, GiB_bytes=GIB)
        interpreter.execute(statements, scope)
        sequences = scope.names["default_max_num_seqs"]
        values = [
            scope.names["default_max_num_batched_tokens"][context],
            sequences[context] if isinstance(sequences, dict) else sequences,
        ]
        if not rows or rows[-1][1:] != values:
            rows.append([memory, *values])
    return rows


def float16_refused(interpreter: Interpreter) -> list[str]:
    """Model types (``model_type`` of config.json) that the release does not compute in float16; 0.9.0 refuses none."""
    for name in ("vllm.config.model", "vllm.config"):
        module = interpreter.module(name)
        if module is not None and "_get_and_verify_dtype" in module.bindings:
            known = "_FLOAT16_NOT_SUPPORTED_MODELS" in module.bindings
            return sorted(module.get("_FLOAT16_NOT_SUPPORTED_MODELS")) if known else []
    raise CannotEvaluate(f"{interpreter.root}: no function that chooses the dtype")

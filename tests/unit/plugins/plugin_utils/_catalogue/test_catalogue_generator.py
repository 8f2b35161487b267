# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The generator of the catalogue, on a small source tree that looks like vLLM's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).resolve().parents[5] / "tools" / "catalogue"
sys.path.insert(0, str(TOOL))

import intervals  # noqa: E402
import store  # noqa: E402
from arguments import arguments, describe  # noqa: E402
from interpreter import Interpreter  # noqa: E402
from registries import architectures, batch_defaults, environment_variables  # noqa: E402
from release_source import open_release  # noqa: E402
from routes import guarded, routes  # noqa: E402
from values import CannotEvaluate, InterpretedError  # noqa: E402

SOURCES = {
    "vllm/__init__.py": "",
    "vllm/config.py": '''
from dataclasses import dataclass, field
from typing import Literal, Optional
import torch
from pydantic import BaseModel, Field

DType = Literal["auto", "bfloat16"]

def get_attr_docs(cls):
    return inspect.getsource(cls)

@dataclass
class EplbConfig:
    window: int = 1000
    def grow(self): ...

class DummyOptions(dict[str, int]):
    def get_size(self): ...

class Names(DummyOptions): ...

class SampledNames(list[str]): ...

class TracingConfig(BaseModel):
    level: int = 1

class NotSet: ...

@dataclass
class FactoryConfig:
    a_dataclass: EplbConfig = Field(default_factory=EplbConfig)
    a_dictionary: DummyOptions = Field(default_factory=DummyOptions)
    a_filled_dictionary: Names = field(default_factory=lambda: Names(image=1))
    a_list: SampledNames = field(default_factory=lambda: SampledNames(["a"]))
    a_model: TracingConfig = Field(default_factory=TracingConfig)
    a_mark: object = field(default_factory=NotSet)
    an_own_dictionary: dict[str, int] = field(default_factory=dict)
    an_own_set: set[str] = field(default_factory=lambda: {"b", "a"})

@dataclass
class BaseConfig:
    seed: int = 0
    """Random seed. With more than one sentence."""

@dataclass
class ModelConfig(BaseConfig):
    model: str = "Qwen/Qwen3-0.6B"
    dtype: DType = "auto"
    """Data type."""
    length: Optional[int] = None
    names: list[str] = field(default_factory=list)
    eplb: EplbConfig = field(default_factory=EplbConfig)
    eager: bool = False
    torch_dtype: torch.dtype | None = None
''',
    "vllm/arg_utils.py": """
import argparse
import json
from dataclasses import MISSING, fields, is_dataclass
from typing import Literal, Union, get_args, get_origin
from vllm.config import ModelConfig, get_attr_docs

def optional_type(inner):
    return inner

def get_kwargs(cls):
    docs = get_attr_docs(cls)
    kwargs = {}
    for item in fields(cls):
        hints = set(get_args(item.type)) if get_origin(item.type) is Union else {item.type}
        default = item.default if item.default is not MISSING else item.default_factory()
        kwargs[item.name] = {"default": default, "help": docs.get(item.name, "")}
        dataclass_cls = next((hint for hint in hints if is_dataclass(hint)), None)
        literal = next((hint for hint in hints if get_origin(hint) is Literal), None)
        if dataclass_cls is not None:
            kwargs[item.name]["type"] = lambda text, cls=dataclass_cls: cls(**json.loads(text))
        elif bool in hints:
            kwargs[item.name]["action"] = argparse.BooleanOptionalAction
        elif literal is not None:
            kwargs[item.name].update(type=str, choices=sorted(get_args(literal)))
        elif any(get_origin(hint) is list for hint in hints):
            kwargs[item.name].update(type=str, nargs="+")
        else:
            kwargs[item.name]["type"] = int if int in hints else str
        if type(None) in hints and "type" in kwargs[item.name]:
            kwargs[item.name]["type"] = optional_type(kwargs[item.name]["type"])
    return kwargs
""",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
from vllm.arg_utils import get_kwargs
from vllm.config import ModelConfig

class Base:
    @classmethod
    def title(cls):
        return cls.__name__

class ModelGroup(Base):
    @classmethod
    def title(cls):
        return super().title() + "!"

def make_arg_parser(parser):
    kwargs = get_kwargs(ModelConfig)
    kwargs["seed"]["default"] = 7
    group = parser.add_argument_group(title=ModelGroup.title())
    for name, options in kwargs.items():
        group.add_argument(f"--{name.replace('_', '-')}", **options)
    parser.add_argument("--old", action="store_true", help="[DEPRECATED] no effect")
    return parser

class ServeSubcommand:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--headless", "-H", action="store_true")
        return make_arg_parser(parser)
""",
    "vllm/entrypoints/api.py": """
GUARDED_PREFIX = ("/v1", "/v2")
class AuthenticationMiddleware: ...

@router.post("/v1/chat")
def chat(): ...

@router.get("/ping")
@router.post("/ping")
def ping(): ...

if envs.VLLM_SERVER_DEV_MODE:
    @router.post("/sleep")
    def sleep(): ...

router.add_api_route("/abort", abort, methods=["POST"])
""",
    "vllm/envs.py": """
import os
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    VLLM_CACHE: str = "~/.cache"
environment_variables = {
    "VLLM_FLAG": lambda: bool(int(os.getenv("VLLM_FLAG", "0"))),
    "VLLM_CACHE": lambda: os.path.abspath(os.getenv("VLLM_CACHE", "/")),
}
""",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/models/__init__.py": "",
    "vllm/model_executor/models/registry.py": """
_TEXT_GENERATION_MODELS = {"AForCausalLM": ("a", "A")}
_EMBEDDING_MODELS = {"AForCausalLM": ("a", "A"), "BModel": ("b", "B")}
_EMBEDDING_MODELS["CModel"] = ("c", "C")
_VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_EMBEDDING_MODELS}
""",
    "vllm/usage/__init__.py": "",
    "vllm/usage/usage_lib.py": """
from enum import Enum
class UsageContext(str, Enum):
    LLM_CLASS = "LLM_CLASS"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
def defaults():
    try:
        device_memory = current_platform.get_device_total_memory()
        device_name = current_platform.get_device_name().lower()
    except Exception:
        device_memory = 0
    if device_memory >= 70 * GiB_bytes and "a100" not in device_name:
        default_max_num_batched_tokens = {UsageContext.OPENAI_API_SERVER: 8192}
        default_max_num_seqs = 1024
    else:
        default_max_num_batched_tokens = {UsageContext.OPENAI_API_SERVER: 2048}
        default_max_num_seqs = 256
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def source(tree: Path) -> Interpreter:
    return open_release(tree)


def test_arguments_are_what_the_source_builds(source: Interpreter) -> None:
    found = arguments(source)
    assert sorted(found) == [
        "dtype",
        "eager",
        "eplb",
        "headless",
        "length",
        "model",
        "model_tag",
        "names",
        "old",
        "seed",
        "torch_dtype",
    ]
    assert found["seed"] == {
        "flags": ["--seed"],
        "kind": "value",
        "type": "int",
        "default": 7,
        "help": "Random seed",
        "group": "ModelGroup!",
    }
    assert found["dtype"]["choices"] == ["auto", "bfloat16"]
    assert found["length"] == {
        "flags": ["--length"],
        "kind": "value",
        "type": "int",
        "nullable": True,
        "default": None,
        "group": "ModelGroup!",
    }
    assert found["names"]["nargs"] == "+"
    assert (found["eplb"]["type"], found["eplb"]["fields"], found["eplb"]["default"]) == ("json", ["window"], {})
    assert found["eager"]["kind"] == "boolean"
    assert found["old"]["deprecated"] is True
    assert (found["headless"]["flags"], found["headless"]["serve_only"]) == (["--headless", "-H"], True)


def test_an_object_made_by_a_factory_stands_as_its_content(source: Interpreter) -> None:
    get_kwargs = source.required_module("vllm.arg_utils").get("get_kwargs")
    options = get_kwargs(source.required_module("vllm.config").get("FactoryConfig"))
    defaults = {name: describe({"flags": (f"--{name}",), "group": "", **options[name]})["default"] for name in options}
    assert defaults == {
        "a_dataclass": {},
        "a_dictionary": {},
        "a_filled_dictionary": {"image": 1},
        "a_list": ["a"],
        "a_model": {},
        "a_mark": None,
        "an_own_dictionary": {},
        "an_own_set": ["a", "b"],
    }


def test_registries(source: Interpreter) -> None:
    assert architectures(source) == {"AForCausalLM": "generate", "BModel": "embed", "CModel": "embed"}
    assert environment_variables(source) == {"VLLM_CACHE": "~/.cache", "VLLM_FLAG": False}
    assert batch_defaults(source) == {"": [[0, 2048, 256], [70, 8192, 1024]], "name:a100": [[0, 2048, 256]]}


def test_routes_and_their_guard(source: Interpreter) -> None:
    found = routes(source)
    assert guarded(source) == ("/v1", "/v2")
    assert found["/v1/chat"] == {"methods": "POST", "guarded": True}
    assert found["/ping"] == {"methods": "GET, POST", "guarded": False}
    assert found["/sleep"]["needs"] == ["VLLM_SERVER_DEV_MODE"]
    assert found["/abort"]["methods"] == "POST"
    assert "/metrics" in found


def test_a_decision_on_something_unknown_stops_with_its_place(tree: Path) -> None:
    (tree / "vllm/decides.py").write_text(
        "import torch\n\nvalue = 1 if torch.cuda.is_available() else 2\n", encoding="utf-8"
    )
    with pytest.raises(CannotEvaluate, match=r"decides\.py:3.*torch\.cuda\.is_available"):
        open_release(tree).required_module("vllm.decides").get("value")


def test_a_new_dictionary_of_models_is_not_passed_over(tree: Path) -> None:
    registry = tree / "vllm/model_executor/models/registry.py"
    registry.write_text("_ROBOT_MODELS = {}\n", encoding="utf-8")
    with pytest.raises(CannotEvaluate, match="_ROBOT_MODELS"):
        architectures(open_release(tree))


@pytest.mark.parametrize(
    "text", ["open('/etc/passwd').read()", "__import__('os').getcwd()", "eval('1')", "exec('x = 1')"]
)
def test_interpreted_code_reaches_nothing_outside(tree: Path, text: str) -> None:
    (tree / "vllm/reaches.py").write_text(f"value = {text}\n", encoding="utf-8")
    assert repr(open_release(tree).required_module("vllm.reaches").get("value")).startswith("builtins.")


def test_an_error_of_the_source_is_an_error_here(tree: Path) -> None:
    (tree / "vllm/fails.py").write_text("def fail():\n    raise ValueError('no')\n\nvalue = fail()\n", encoding="utf-8")
    with pytest.raises(InterpretedError, match="ValueError"):
        open_release(tree).required_module("vllm.fails").get("value")


RELEASES = ["0.9.0", "0.9.0.1", "0.10.0", "0.11.0"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"0.9.0": 1, "0.9.0.1": 1, "0.10.0": 2, "0.11.0": 1},
        {"0.9.0": 1, "0.10.0": 1},
        {"0.9.0": False, "0.9.0.1": 0, "0.10.0": None, "0.11.0": None},
    ],
)
def test_spans_lose_nothing(values: dict[str, Any]) -> None:
    spans = intervals.compress(RELEASES, values)
    back = intervals.expand(RELEASES, spans)
    assert back == values
    assert [type(value) for value in back.values()] == [type(value) for value in values.values()]


def test_an_equal_value_is_stored_once() -> None:
    assert intervals.compress(RELEASES, dict.fromkeys(RELEASES, "x")) == [["0.9.0", "0.11.0", "x"]]


def test_the_data_files_hold_what_was_written(tmp_path: Path) -> None:
    snapshots = store.read()
    store.write(snapshots, tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.json")}
    assert written == {name: (store.DATA / name).read_bytes() for name in written}
    assert len(written) == len(store.PARTS) + 1
    assert json.loads(written["releases.json"]) == sorted(snapshots, key=store.version_key)

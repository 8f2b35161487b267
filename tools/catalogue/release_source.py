"""A release's source tree, set up as it runs in the official CUDA image under ``vllm serve``."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

from arguments import TypeConverter
from interpreter import Interpreter
from values import Opaque


class CudaPlatform(Opaque):
    """``vllm.platforms.current_platform`` on an NVIDIA card."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("is_"):
            return lambda *args, **kwargs: name in ("is_cuda", "is_cuda_alike")
        if name == "device_type":
            return "cuda"
        if name == "pre_register_and_update":
            return lambda *args, **kwargs: None
        return super().__getattr__(name)


def _nothing(*_arguments: Any, **_keywords: Any) -> None:
    """Stands for functions of vLLM that only act on the process, such as logging."""


def open_release(root: Path) -> Interpreter:
    """An interpreter for the unpacked wheel in ``root``."""
    interpreter = Interpreter(root)
    interpreter.overrides.update(
        {
            "vllm.platforms.current_platform": CudaPlatform("vllm.platforms.current_platform"),
            "vllm.engine.arg_utils.NEEDS_HELP": True,
        }
    )
    interpreter.functions.update(
        {
            "load_general_plugins": _nothing,
            "init_logger": _nothing,
            "show_filtered_argument_or_group_from_help": _nothing,
            "is_in_doc_build": lambda: False,
            "is_init_field": lambda *args: True,
            "optional_type": lambda inner: TypeConverter(inner, nullable=True),
            "parse_type": lambda inner: TypeConverter(inner, nullable=False),
        }
    )
    return interpreter

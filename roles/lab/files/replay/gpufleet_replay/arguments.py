# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the command line of `vllm serve`, of any release: whatever is not known here is taken and listed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "n": "nnodes",
    "r": "node_rank",
    "q": "quantization",
    "kv_cache_memory": "kv_cache_memory_bytes",
    "device_memory_utilization": "gpu_memory_utilization",
}
# They take no value, so that what follows one of them is not its value.
_SWITCHES = re.compile(
    r"(?:enable|disable|no|calculate|use)_|enforce_eager|headless|trust_remote_code|async_scheduling"
)
_NUMBER = re.compile(r"-\d")
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SECRETS = ("api_key", "hf_token")
_INTEGERS = (
    "kv_cache_memory_bytes",
    "master_port",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "nnodes",
    "node_rank",
    "pipeline_parallel_size",
    "port",
    "tensor_parallel_size",
)


def parse(words: list[str]) -> dict[str, Any]:
    """Returns the arguments by their names with underscores; the positional model is ``model``.

    Values are texts, lists of texts, True or False, and integers where vLLM has integers.
    Raises ValueError where such an integer is none.
    """
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _is_option(word):
            given.setdefault("model", word)
            continue
        flag, equals, value = word.partition("=")
        name = flag.lstrip("-").replace("-", "_")
        name = _ALIASES.get(name, name)
        values = [value] if equals else _values(name, rest)
        if not values:
            negated = name.startswith("no_")
            given[name[3:] if negated else name] = not negated
        else:
            given[name] = values[0] if len(values) == 1 else values
    return {name: _typed(name, value) for name, value in given.items()}


def printable(given: Mapping[str, Any], redacted: bool) -> str:
    """Returns the arguments as vLLM lists them at its start."""
    shown = {"model_tag" if name == "model" else name: value for name, value in given.items()}
    return str({name: "***" if redacted and name in _SECRETS else value for name, value in shown.items()})


def as_list(value: Any) -> list[str]:
    """Returns the values of an argument that takes several."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word)


def _values(name: str, rest: list[str]) -> list[str]:
    """Takes what follows an argument off the rest."""
    values: list[str] = []
    while not _SWITCHES.match(name) and rest and not _is_option(rest[0]):
        values.append(rest.pop(0))
    return values


def _typed(name: str, value: Any) -> Any:
    if name not in _INTEGERS:
        return value
    if value == "auto":
        return -1
    match = re.match(r"(-?\d+(?:\.\d+)?)([kmgKMG]?)$", str(value))
    if match is None:
        raise ValueError(f"argument --{name.replace('_', '-')}: invalid int value: {value!r}")
    return int(float(match.group(1)) * _SUFFIXES.get(match.group(2), 1)) if match.group(2) else int(match.group(1))

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the user fixed (pins), what he promised (workload), and the settings of one start that follow from both.

Private to the collection gpufleet.vllm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._catalogue import Argument, Release
from .._catalogue.releases import canonical_name
from .._catalogue.serve_args import SECRET_ARGUMENTS, Given, as_boolean, check, split_words
from .checks import mapping_of
from .errors import Faults, InstanceError

CONTEXT_WITHOUT_WORKLOAD = 32768
"""Tokens a request may have where no workload and no pin says: long documents fit, and one request stays affordable."""

SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""vllm/engine/arg_utils.py, human_readable_int: small letters are decimal, large ones binary."""

PARTITION = "VLLM_PP_LAYER_PARTITION"

WHOLE_NUMBERS = ("int", "int_human", "int_human_or_auto")

SPECIAL_VALUES = {None, "", "None", "auto"}

PROMISED_NUMBERS = ("context", "sequences", "typical_context")
PREFERENCES = ("context", "sequences")


@dataclass(frozen=True)
class Workload:
    """Tokens per request and requests at once that are promised; None where nothing was promised."""

    context: int | None
    sequences: int | None
    typical_context: int | None
    prefer: str

    @property
    def stated(self) -> bool:
        return self.context is not None or self.sequences is not None


@dataclass(frozen=True)
class CacheSwitches:
    """The pins that only the layout of the KV cache depends on, by the names of kv_cache_layout()."""

    enable_prefix_caching: bool | None
    disable_hybrid_kv_cache_manager: bool
    num_speculative_tokens: int
    async_scheduling: bool
    mamba_ssm_cache_dtype: str | None


@dataclass(frozen=True)
class Settings:
    """One start of the engine in vLLM's own names; None where vLLM's default is something that it finds at start."""

    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    block_size: int | None
    enforce_eager: bool
    enable_expert_parallel: bool
    data_parallel_size: int
    decode_context_parallel_size: int
    cpu_offload_bytes: int
    num_gpu_blocks_override: int | None
    cache: CacheSwitches
    layer_partition: tuple[int, ...] = ()
    """The layers on each pipeline stage, where the environment fixes them."""


def human_integer(value: object) -> int:
    """8192, "8192", "8k" (8000) or "8K" (8192), as vLLM reads it. Raises ValueError."""
    text = str(value).strip()
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)", text)
    if isinstance(value, bool) or not match:
        raise ValueError(f"{value!r} is no number")
    return (
        int(float(match.group(1)) * SUFFIXES.get(match.group(2), 1)) if match.group(2) else int(float(match.group(1)))
    )


class Pins:
    """The arguments that the user fixed, by vLLM's names of the release; every value as it was given."""

    def __init__(self, values: Mapping[str, Any], extra: Mapping[str, Any], instance: str) -> None:
        self.values = dict(values)
        self.extra = dict(extra)
        self._instance = instance

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.extra

    def raw(self, name: str) -> Any:
        return self.values.get(name, self.extra.get(name))

    def integer(self, name: str) -> int | None:
        value = self.raw(name)
        if value in SPECIAL_VALUES:
            return None
        number = self._convert(name, value, human_integer, "a whole number, e.g. 8192 or 32K")
        return None if number == -1 and name == "max_model_len" else number

    def number(self, name: str) -> float | None:
        value = self.raw(name)
        return None if value in SPECIAL_VALUES else self._convert(name, value, float, "a number")

    def text(self, name: str) -> str | None:
        value = self.raw(name)
        return None if value in SPECIAL_VALUES else str(value)

    def flag(self, name: str) -> bool | None:
        value = self.raw(name)
        return None if value is None else as_boolean(value)

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self.raw(name)
        if value in (None, "", "None"):
            return None
        if isinstance(value, str):
            value = self._convert(name, value, json.loads, "JSON")
        return value if isinstance(value, Mapping) else None

    def _convert(self, name: str, value: Any, convert: Any, wanted: str) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError):
            raise InstanceError(
                self._instance, f"engine_args.{name}", value, f"is not {wanted}", f"Set it to {wanted}."
            ) from None


def read_pins(instance: Mapping[str, Any], release: Release) -> tuple[Pins, list[dict[str, Any]]]:
    """The pins under the release's own names, and what is wrong with them: arguments or values it does not take."""
    name = str(instance.get("name") or "")
    given = mapping_of(instance, "engine_args")
    values, errors = {}, []
    forced = forced_names(instance)
    for spelled, value in given.items():
        argument = release.argument(str(spelled))
        known = argument.name if argument else canonical_name(str(spelled))
        problems = [] if known in forced else check(release, Given(known, value, "engine_args"))
        shown = "..." if known in SECRET_ARGUMENTS else value
        errors += [{"variable": f"engine_args.{spelled}", "value": shown, "message": problem} for problem in problems]
        if known in forced or (argument is not None and not problems):
            values[known] = typed(argument, value)
    extra, faults = _read_extra(instance, release, values)
    return Pins(values, extra, name), errors + faults


def typed(argument: Argument | None, value: Any) -> Any:
    """A checked value in the argument's own type: surveys of AWX and -e give every number and boolean as text.

    A number with a letter (32K) stays as it was written.
    """
    if argument is None or not isinstance(value, str):
        return value
    if argument.kind in ("boolean", "flag", "unset") or argument.type in ("bool", "bool_word"):
        return as_boolean(value)
    text = value.strip()
    if argument.type in WHOLE_NUMBERS and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    return float(text) if argument.type == "float" and text not in SPECIAL_VALUES else value


def cache_switches(pins: Pins) -> CacheSwitches:
    """The pins that change what a request keeps in the cache."""
    return CacheSwitches(
        enable_prefix_caching=pins.flag("enable_prefix_caching"),
        disable_hybrid_kv_cache_manager=bool(pins.flag("disable_hybrid_kv_cache_manager")),
        num_speculative_tokens=int((pins.mapping("speculative_config") or {}).get("num_speculative_tokens") or 0),
        async_scheduling=pins.flag("async_scheduling") is not False,
        mamba_ssm_cache_dtype=pins.text("mamba_ssm_cache_dtype"),
    )


def read_partition(instance: Mapping[str, Any]) -> tuple[int, ...]:
    """VLLM_PP_LAYER_PARTITION of the environment (vllm/distributed/utils.py, get_pp_indices): the layers on each
    pipeline stage; empty where vLLM divides them. Raises InstanceError for what are no numbers."""
    text = str((instance.get("environment") or {}).get(PARTITION) or "")
    parts = text.split(",") if text else []
    if not all(part.strip().isdecimal() for part in parts):
        name, fault = str(instance.get("name") or ""), "is not the number of layers of each stage"
        raise InstanceError(name, f"environment.{PARTITION}", text, fault, 'Write e.g. "30,50", or leave it out.')
    return tuple(map(int, parts))


def forced_names(instance: Mapping[str, Any]) -> set[str]:
    """The arguments that are passed on whatever the catalogue says of them: the instance's force_args."""
    return {canonical_name(str(name)) for name in instance.get("force_args") or ()} - set(SECRET_ARGUMENTS)


def _read_extra(
    instance: Mapping[str, Any], release: Release, pinned: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    words = instance.get("extra_args") or []
    if isinstance(words, str) or not all(isinstance(word, (str, int, float)) for word in words):
        raise InstanceError(
            str(instance.get("name")),
            "extra_args",
            words,
            "is not a list of words",
            'Write a list, e.g. extra_args: ["--max-logprobs", "5"].',
        )
    values, errors = {}, []
    for given in split_words(release, [str(word) for word in words]):
        # A value that is written behind "=" may be a secret.
        spelled = (given.words or ("",))[0].partition("=")[0]
        problems = [] if given.name in forced_names(instance) else check(release, given)
        if given.name in pinned:
            problems.append(f"{spelled} is in extra_args and in engine_args: keep engine_args.{given.name}")
        errors += [{"variable": "extra_args", "value": spelled, "message": problem} for problem in problems]
        values[given.name] = given.value
    return values, errors


def read_workload(instance: Mapping[str, Any]) -> Workload:
    """The promises; every number must be a positive whole one. Raises InstanceError with all that is wrong."""
    name, faults = str(instance.get("name") or ""), Faults()
    given = mapping_of(instance, "workload")
    for key in sorted(set(map(str, given)) - {*PROMISED_NUMBERS, "prefer"}):
        faults.found.append(
            InstanceError(
                name,
                f"workload.{key}",
                given.get(key),
                "is not a promise that a workload has",
                "Known are context, sequences, typical_context and prefer.",
            )
        )
    prefer = str(given.get("prefer") or "context")
    if prefer not in PREFERENCES:
        faults.found.append(InstanceError(name, "workload.prefer", prefer, "is unknown", "Write context or sequences."))
    numbers = {key: faults.attempt(_positive, name, key, given.get(key)) for key in PROMISED_NUMBERS}
    faults.refuse()
    return Workload(numbers["context"], numbers["sequences"], numbers["typical_context"], prefer)


def _positive(instance: str, key: str, value: Any) -> int | None:
    if value in (None, ""):
        return None
    try:
        number = human_integer(value)
    except ValueError:
        number = 0
    if number < 1:
        raise InstanceError(instance, f"workload.{key}", value, "is not a positive number", "Write e.g. 8192 or 8K.")
    return number

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the catalogue: what each vLLM release knows (private to the collection).

The files under ``data/`` hold every value with the first and the last release that has it. Files are read when they
are first asked for, and a release evaluates only the entries that are asked of it.

``arguments.json``, ``architectures.json``, ``environment.json``, ``quantization.json``, ``batch_defaults.json`` and
``routes.json`` are generated from the wheels (``tools/catalogue``). ``images.json`` and ``drivers.json`` hold what is
not in a wheel, each entry with its source; an end of ``null`` there means "until something newer is known".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
GIB_PER_MIB = 1 / 1024


class UnknownRelease(ValueError):
    """The version, tag or image is not in the catalogue; the message says what is."""


@cache
def _data(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def known_releases() -> list[str]:
    """Every release of the catalogue, oldest first, e.g. ``["0.9.0", ..., "0.33.0"]``."""
    return list(_data("releases"))


@cache
def _positions() -> dict[str, int]:
    return {version: index for index, version in enumerate(_data("releases"))}


def value_at(spans: Iterable[list[Any]], version: str, default: Any = None) -> Any:
    """The value that holds at ``version`` in ``[[first, last or None, value], ...]``."""
    positions = _positions()
    wanted = positions[version]
    for first, last, value in spans:
        if positions[first] <= wanted and (last is None or wanted <= positions[last]):
            return value
    return default


def format_releases(versions: Iterable[str]) -> str:
    """``["0.9.0", "0.9.0.1", "0.12.0"]`` as ``v0.9.0 - v0.9.0.1, v0.12.0``; an open end as ``v0.31.0 and newer``."""
    positions = _positions()
    runs: list[list[str]] = []
    for version in versions:
        if runs and positions[version] == positions[runs[-1][1]] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    newest = known_releases()[-1]
    texts = [
        f"v{first} and newer"
        if last == newest and first != last
        else f"v{first}"
        if first == last
        else f"v{first} - v{last}"
        for first, last in runs
    ]
    return ", ".join(texts)


@dataclass(frozen=True)
class Argument:
    """One argument of ``vllm serve`` as one release knows it.

    ``kind``: ``value``, ``boolean`` (``--x``, ``--no-x``), ``flag`` (``--x``), ``append`` (repeated), ``positional``.
    ``type``: str, str_folded (case and dashes do not matter), int, int_human (``32k``), int_human_or_auto, float, bool,
    bool_word (any word but the empty one is true), json, json_or_str, comma_list.
    ``choices``: the only values; ``known``: the values that the release ships where plugins may add others.
    ``fields``: the keys that a JSON value may have, where the release turns it into a config class.
    ``serve_only``: known to ``vllm serve`` but not to the old entrypoint ``vllm.entrypoints.openai.api_server``.
    """

    name: str
    flags: tuple[str, ...]
    kind: str = "value"
    type: str = "str"
    nargs: str | int | None = None
    choices: tuple[Any, ...] = ()
    known: tuple[str, ...] = ()
    nullable: bool = False
    default: Any = None
    help: str = ""
    group: str = ""
    deprecated: bool = False
    fields: tuple[str, ...] = ()
    serve_only: bool = False

    @property
    def flag(self) -> str:
        """The spelling to write, e.g. ``--max-model-len``."""
        return self.flags[0]

    @property
    def values(self) -> tuple[Any, ...]:
        """The values that the release ships for the argument, whether or not plugins may add others."""
        return self.choices or self.known

    @property
    def takes_list(self) -> bool:
        """Whether several values may follow."""
        return self.nargs in ("+", "*") or isinstance(self.nargs, int) or self.kind == "append"


@dataclass(frozen=True)
class Release:
    """One vLLM release, as the official image ``vllm/vllm-openai`` of that tag ships it."""

    version: str
    tag_suffix: str = ""
    _arguments: dict[str, Argument | None] = field(default_factory=dict, repr=False, compare=False)

    # -- arguments ----------------------------------------------------------------------------------------------------
    def argument(self, name: str) -> Argument | None:
        """The argument of that name, or None where this release does not know it.

        ``name`` may be written with underscores or dashes, with or without leading dashes, as an alias (``-tp``) or
        as the flag that negates a boolean (``--no-enable-prefix-caching``).
        """
        key = canonical_name(name)
        if key not in self._arguments:
            self._arguments[key] = self._read_argument(key) or self._read_argument(self._aliases.get(key, key))
        found = self._arguments[key]
        if found is None and name.startswith("--no-"):
            positive = self.argument(key.removeprefix("no_"))
            return positive if positive is not None and positive.kind == "boolean" else None
        return found

    def _read_argument(self, key: str) -> Argument | None:
        attributes = _data("arguments").get(key)
        if attributes is None:
            return None
        record = {name: value_at(spans, self.version) for name, spans in attributes.items()}
        if record.get("flags") is None:
            return None
        values: dict[str, Any] = {
            name: tuple(value) if name in ("flags", "choices", "known", "fields") else value
            for name, value in record.items()
            if value is not None
        }
        return Argument(name=key, **values)

    @cached_property
    def _aliases(self) -> dict[str, str]:
        """Second spellings -> name, e.g. ``{"tp": "tensor_parallel_size"}``."""
        aliases = {}
        for name, attributes in _data("arguments").items():
            flags = value_at(attributes["flags"], self.version)
            aliases.update({canonical_name(flag): name for flag in flags or []})
        return aliases

    @cached_property
    def argument_names(self) -> list[str]:
        """The names of all arguments of this release, sorted."""
        return [
            name
            for name, attributes in _data("arguments").items()
            if value_at(attributes["flags"], self.version) is not None
        ]

    def default(self, name: str, gpu: dict[str, Any] | None = None) -> Any:
        """What vLLM uses where the argument is not given.

        ``gpu`` is one entry of a host's ``gpus``. With it, ``max_num_batched_tokens`` and ``max_num_seqs`` are what
        the API server of this release chooses for that card; without it they are None ("chosen at start").
        Raises KeyError for an argument that the release does not know.
        """
        argument = self.argument(name)
        if argument is None:
            raise KeyError(f"vLLM v{self.version} has no argument {name}")
        if gpu is not None and argument.name in ("max_num_batched_tokens", "max_num_seqs"):
            tokens, sequences = self._batch_default(gpu)
            return tokens if argument.name == "max_num_batched_tokens" else sequences
        return argument.default

    def _batch_default(self, gpu: dict[str, Any]) -> tuple[int, int]:
        tables = value_at(_data("batch_defaults"), self.version)
        memory_gib = (gpu.get("memory_total_mib") or 0) * GIB_PER_MIB
        rows = tables[""]
        for key, special in tables.items():
            kind, _colon, wanted = key.partition(":")
            if (
                kind == "name"
                and wanted in str(gpu.get("name", "")).lower()
                or kind == "capability"
                and wanted == str(gpu.get("compute_capability"))
            ):
                rows = special
        _memory, tokens, sequences = [row for row in rows if row[0] <= memory_gib][-1]
        return tokens, sequences

    # -- models -------------------------------------------------------------------------------------------------------
    def supports_architecture(self, name: str) -> bool:
        """Whether the release's own model registry has the architecture."""
        return self.architecture_task(name) is not None

    def architecture_task(self, name: str) -> str | None:
        """What the architecture is registered for: generate, generate_multimodal, embed, classify, score, reward,
        draft or transformers; None where the registry does not have it."""
        return value_at(_data("architectures").get(name, []), self.version)

    def quantization_capability(self, method: str) -> float | None:
        """Least compute capability of a quantisation method, e.g. 8.0; None where the release does not know it."""
        spans = _data("quantization")["methods"].get(method, [])
        value = value_at(spans, self.version)
        return None if value is None else max(value, 0) / 10

    @cached_property
    def quantization_methods(self) -> dict[str, float | None]:
        """Every method of the release with its least compute capability (None where its class names none)."""
        return {
            method: self.quantization_capability(method)
            for method, spans in _data("quantization")["methods"].items()
            if value_at(spans, self.version, "absent") != "absent"
        }

    @property
    def float16_refused(self) -> list[str]:
        """Model types (``model_type`` of config.json) that the release does not compute in float16."""
        return list(value_at(_data("float16_refused"), self.version))

    @cached_property
    def architectures(self) -> list[str]:
        """Every architecture that the release's registry has, sorted."""
        return [name for name, spans in _data("architectures").items() if value_at(spans, self.version) is not None]

    # -- routes -------------------------------------------------------------------------------------------------------
    @cached_property
    def routes(self) -> dict[str, dict[str, Any]]:
        """Path -> ``{"methods": "GET, POST", "guarded": bool, "needs": [environment variables]}``."""
        found = {
            path: {key: value_at(spans, self.version) for key, spans in attributes.items()}
            for path, attributes in _data("routes").items()
        }
        return {
            path: {key: value for key, value in entry.items() if value is not None}
            for path, entry in found.items()
            if entry["methods"] is not None
        }

    @property
    def guarded_routes(self) -> list[str]:
        """Routes that the API key guards."""
        return [path for path, entry in self.routes.items() if entry["guarded"]]

    @property
    def unguarded_routes(self) -> list[str]:
        """Routes that answer without the API key, as far as they exist without a switch in the environment."""
        return [path for path, entry in self.routes.items() if not entry["guarded"] and not entry.get("needs")]

    @property
    def guarded_prefixes(self) -> list[str]:
        """The path prefixes that the API key guards, e.g. ``["/v1", "/v2"]``."""
        return list(value_at(_data("guarded_prefixes"), self.version))

    # -- environment --------------------------------------------------------------------------------------------------
    def environment_default(self, name: str) -> Any:
        """The value of an environment variable of vLLM where it is not set. Raises KeyError where vLLM has none."""
        missing = object()
        value = value_at(_data("environment").get(name, []), self.version, missing)
        if value is missing:
            raise KeyError(f"vLLM v{self.version} has no environment variable {name}")
        return value

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Every environment variable that the release reads, with its value where it is not set."""
        found = {name: value_at(spans, self.version, "absent") for name, spans in _data("environment").items()}
        return {name: value for name, value in found.items() if value != "absent"}

    def knows_environment(self, name: str) -> bool:
        """Whether the release reads the environment variable."""
        return value_at(_data("environment").get(name, []), self.version, "absent") != "absent"

    # -- the image ----------------------------------------------------------------------------------------------------
    def image_fact(self, fact: str) -> Any:
        """One entry of ``images.json`` for this release, or None where it has none."""
        return value_at(_data("images")[fact]["spans"], self.version)

    @property
    def cuda(self) -> str:
        """CUDA of the image with this tag, e.g. ``12.8``."""
        named = re.fullmatch(r"cu(\d+)(\d)", self.tag_suffix)
        return f"{named[1]}.{named[2]}" if named else self.image_fact("cuda")[""]

    @property
    def torch(self) -> str:
        """The PyTorch that the image installs, e.g. ``2.13.0``."""
        return str(self.requirement("torch")).lstrip("=")

    def requirement(self, package: str) -> str | None:
        """What the CUDA wheel requires of a package; None where it does not require it."""
        return value_at(_data("requirements").get(package, []), self.version)

    @property
    def min_driver(self) -> str:
        """The oldest driver that supports the image's CUDA by itself, e.g. ``570.26``."""
        return _data("drivers")["toolkit"][self.cuda]

    @property
    def min_driver_minor_version(self) -> str:
        """The oldest driver with which CUDA's minor-version compatibility lets the image's kernels run."""
        return _data("drivers")["minor_version"][self.cuda.split(".")[0]]

    @property
    def tag_suffixes(self) -> list[str]:
        """The suffixes of the release's image tags that choose another CUDA, e.g. ``["", "cu129"]``."""
        return list(self.image_fact("cuda"))

    @property
    def entrypoint(self) -> str:
        """``serve`` (the model is the first positional argument) or ``api_server`` (the model is ``--model``)."""
        return self.image_fact("entrypoint")

    @property
    def has_ray(self) -> bool:
        """Whether the image contains Ray: where the CUDA wheel requires it."""
        return self.requirement("ray") is not None

    @property
    def compute_capabilities(self) -> list[str]:
        """The compute capabilities that the x86-64 image's kernels are built for, e.g. ``["7.5", "8.0", ...]``."""
        return list(self.image_fact("compute_capabilities")["x86_64"])

    def compute_capabilities_for(self, machine: str) -> list[str]:
        """The same for ``x86_64`` or ``aarch64`` images, which are built for different cards."""
        return list(self.image_fact("compute_capabilities")[machine])

    def __str__(self) -> str:
        return f"v{self.version}" + (f"-{self.tag_suffix}" if self.tag_suffix else "")


def canonical_name(name: str) -> str:
    """``--max-model-len`` and ``max_model_len`` are the same argument."""
    return name.lstrip("-").replace("-", "_")


IMAGE = re.compile(
    r"^(?:(?P<repository>[^@]*?)[:])?v?(?P<version>\d+(?:\.\d+)+)(?P<suffix>(?:-[a-z0-9_]+)*)(?:@sha256:\w+)?$"
)
ARCHITECTURE_SUFFIXES = {"x86_64", "aarch64", "arm64", "amd64"}
CUDA_SUFFIX = "cu{}"
BASE_SUFFIXES = {"ubuntu2404", "ubuntu2204"}


@cache
def release(version: str) -> Release:
    """The release of a version (``0.32.0``), a tag (``v0.20.0-cu129``) or an image (``vllm/vllm-openai:v0.32.0``).

    Raises :class:`UnknownRelease`: ``latest`` and other names that are no version, and versions that the catalogue
    does not have.
    """
    match = IMAGE.match(str(version).strip())
    if match is None:
        raise UnknownRelease(
            f"'{version}' names no vLLM release; write its tag, e.g. vllm/vllm-openai:v{known_releases()[-1]}. "
            f"The catalogue knows {format_releases(known_releases())}."
        )
    number = match["version"]
    if number not in _positions():
        raise UnknownRelease(_unknown(number))
    return Release(number, _tag_suffix(number, match["suffix"]))


def _unknown(number: str) -> str:
    near = difflib.get_close_matches(number, known_releases(), n=3, cutoff=0.6)
    oldest, newest = known_releases()[0], known_releases()[-1]
    hint = f" (near it: {', '.join('v' + item for item in near)})" if near else ""
    return (
        f"vLLM v{number} is not in the catalogue, which goes from v{oldest} to v{newest}: take one of those{hint}, or "
        "a version of this collection that knows it"
    )


def _tag_suffix(number: str, text: str) -> str:
    """The part of the tag that chooses the CUDA version; processor and base system do not matter here."""
    parts = [part for part in text.split("-") if part and part not in ARCHITECTURE_SUFFIXES | BASE_SUFFIXES]
    suffix = "-".join(parts)
    known = value_at(_data("images")["cuda"]["spans"], number)
    if suffix == CUDA_SUFFIX.format(known[""].replace(".", "")):
        return ""
    if suffix not in known and not re.fullmatch(r"cu\d{3}", suffix):
        tags = ", ".join(f"v{number}" + (f"-{item}" if item else "") for item in known)
        raise UnknownRelease(f"the image tag suffix '-{suffix}' is not known for vLLM v{number}; known tags: {tags}")
    return suffix


def releases_with_architecture(name: str) -> list[str]:
    """Every release that registers the architecture, oldest first."""
    return [version for version in known_releases() if release(version).supports_architecture(name)]

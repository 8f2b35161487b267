# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders a plan's arguments as the command line of its release, and refuses what it does not know (private)."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .releases import Argument, Release, _data, canonical_name, format_releases, known_releases, release

SECRET_ARGUMENTS = {"api_key": "set vllm_api_key instead", "hf_token": "leave it out: engines run offline"}
# vLLM itself refuses any other value of these, unless a plugin registers it.
PLUGIN_EXTENDED = {
    "tool_call_parser",
    "reasoning_parser",
    "quantization",
    "load_format",
    "attention_backend",
    "kv_cache_dtype",
}
HUMAN_INTEGER = re.compile(r"-?\d+(?:\.\d+)?[kKmMgGtT]?")
FALSE_WORDS, TRUE_WORDS = {"false", "no", "off", "0"}, {"true", "yes", "on", "1"}


class ArgumentProblem(ValueError):
    """One or more arguments that the release does not take as they are; ``problems`` holds one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Given:
    """One argument as it was given: its name, its value, the words to write, and where it came from."""

    name: str
    value: Any
    where: str
    words: tuple[str, ...] | None = None


def serve_args(
    plan: dict[str, Any], model: str | None = None, force: Iterable[str] = (), entrypoint: str | None = None
) -> list[str]:
    """What follows the image name: the arguments of ``plan`` as its release's entrypoint takes them.

    ``plan`` needs ``release`` (a version, a tag, or the dict ``{"version": ...}`` of a plan) and ``arguments``
    (``[{"name", "value"}, ...]``); ``extra_args`` (raw words) is optional and goes through the same check. The model
    is the argument ``model`` or the parameter ``model``. ``force`` names arguments that are passed on unchecked.
    ``entrypoint`` (``serve`` or ``api_server``) is given where the container is not started with the image's own.

    Returns e.g. ``["/models/qwen", "--max-model-len", "8192"]``, for the old entrypoint ``["--model", ...]``.
    Raises :class:`ArgumentProblem` with all problems at once, :class:`~.releases.UnknownRelease` for the release.
    """
    known = plan_release(plan)
    entrypoint = entrypoint or known.entrypoint
    forced = {canonical_name(name) for name in force} - set(SECRET_ARGUMENTS)
    planned = [name_of(known, str(item["name"]), item["value"], "arguments") for item in plan.get("arguments", [])]
    model, planned = _take_model(planned, model)
    extra = split_words(known, [str(word) for word in plan.get("extra_args") or []])
    problems = [*_model_problems(known, model), *_duplicates(known, [*planned, *extra])]
    for given in [*planned, *extra]:
        if given.name not in forced:
            problems.extend(check(known, given))
            problems.extend(entrypoint_problems(known, given, entrypoint))
    if problems:
        raise ArgumentProblem(problems)
    words = [str(model)] if entrypoint == "serve" else ["--model", str(model)]
    for given in [*planned, *extra]:
        words.extend(given.words if given.words is not None else render(known.argument(given.name), given))
    return words


def name_of(known: Release, name: str, value: Any, where: str) -> Given:
    """An argument under the release's own name, however it was spelled."""
    argument = known.argument(name)
    return Given(argument.name if argument else canonical_name(name), value, where)


def plan_release(plan: dict[str, Any]) -> Release:
    """The release of a plan: ``plan["release"]`` is a version, a tag, or a dict with ``version``, perhaps ``tag``."""
    value = plan.get("release")
    if isinstance(value, dict):
        value = value.get("tag") or value.get("version")
    if not value:
        raise ArgumentProblem(["the plan names no release; give release: a tag such as v" + known_releases()[-1]])
    return release(str(value))


def _take_model(planned: list[Given], model: str | None) -> tuple[str | None, list[Given]]:
    """The model stands first on the command line, so it is taken out of the list."""
    named = [given.value for given in planned if given.name in ("model", "model_tag")]
    return model or (named[0] if named else None), [
        given for given in planned if given.name not in ("model", "model_tag")
    ]


def _model_problems(known: Release, model: str | None) -> list[str]:
    if model:
        return []
    return [f"no model for vLLM {known}: add the argument 'model' to the plan, or give the filter model=<path>"]


def _duplicates(known: Release, given: list[Given]) -> list[str]:
    """Arguments that are given twice: vLLM would take the last and drop the first."""
    seen: dict[str, str] = {}
    problems = []
    for item in given:
        argument = known.argument(item.name)
        adds_up = (argument is not None and argument.kind == "append") or (item.words and "." in item.words[0])
        if item.name in seen and not adds_up:
            problems.append(f"{spell(item.name)} is given twice, in {seen[item.name]} and in {item.where}: keep one")
        seen.setdefault(item.name, item.where)
    return problems


# -- reading raw words ------------------------------------------------------------------------------------------------
def split_words(known: Release, words: list[str]) -> list[Given]:
    """Cuts ``extra_args`` into arguments, each with the words that belong to it, unchanged."""
    given: list[Given] = []
    position = 0
    while position < len(words):
        end = position + 1
        while end < len(words) and not _is_flag(words[end]):
            end += 1
        given.append(_given_from_words(known, words[position:end]))
        position = end
    return given


def _is_flag(word: str) -> bool:
    return re.match(r"-{1,2}[A-Za-z]", word) is not None


def _given_from_words(known: Release, words: list[str]) -> Given:
    flag, _equals, attached = words[0].partition("=")
    values = ([attached] if "=" in words[0] else []) + words[1:]
    if flag.startswith("-O"):  # vLLM rewrites -O3, -O 3 and -O=3 before it parses
        values = [flag[2:], *values] if flag[2:] else values
        flag = "--optimization-level" if known.argument("optimization_level") else "--compilation-config"
    name, _dot, path = flag.partition(".")
    argument = known.argument(name)
    value: Any = _value_from_words(argument, canonical_name(name), values)
    if path:
        value = {path.rstrip("+").split(".")[0]: values[0] if values else None}
    return Given(argument.name if argument else canonical_name(name), value, "extra_args", tuple(words))


def _value_from_words(argument: Argument | None, spelled: str, values: list[str]) -> Any:
    if argument is not None and argument.kind in ("boolean", "flag", "unset") and not values:
        return not (spelled.startswith("no_") and canonical_name(argument.name) != spelled)
    if argument is not None and argument.takes_list:
        return values
    return values[0] if len(values) == 1 else (values or True)


# -- checking ---------------------------------------------------------------------------------------------------------
def check(known: Release, given: Given) -> list[str]:
    """The problems of one argument, in sentences; an empty list where the release takes it."""
    if not given.name or (given.words and not _is_flag(given.words[0])):
        return [f"{given.where}: '{given.words[0] if given.words else ''}' is no argument: arguments start with --"]
    if given.name in SECRET_ARGUMENTS:
        return [
            f"{spell(given.name)} on the command line shows the secret to everyone who can list processes; "
            f"{SECRET_ARGUMENTS[given.name]}"
        ]
    argument = known.argument(given.name)
    if argument is None:
        return [unknown_argument(known, given)]
    problem = _words_problem(argument, given) or value_problem(argument, given.value)
    return [f"{spell(given.name)} of vLLM {known}: {problem}"] if problem else []


def _words_problem(argument: Argument, given: Given) -> str | None:
    """What the parser would read otherwise than it is meant: a switch with a value, a list without one."""
    if given.words is None:
        return None
    bare = len(given.words) == 1 and "=" not in given.words[0]
    if argument.nargs == "+" and bare:
        return "it needs at least one value"
    if bare or argument.kind not in ("boolean", "flag", "unset"):
        return None
    off = f" or --no-{argument.flag.removeprefix('--')}" if argument.kind == "boolean" else ""
    return f"it takes no value ('{' '.join(given.words)}'); write {argument.flag}{off}"


def entrypoint_problems(known: Release, given: Given, entrypoint: str) -> list[str]:
    """What the old entrypoint does not do with an argument that ``vllm serve`` of the same release acts on."""
    argument = known.argument(given.name)
    asks_nothing = given.value in (None, False) or str(given.value) in ("1", "false")
    ignored = given.name in (known.image_fact("ignored_by_api_server") or []) and not asks_nothing
    if entrypoint == "serve" or argument is None or not (argument.serve_only or ignored):
        return []
    does = "accepts and ignores it" if ignored else "does not know it"
    return [
        f"{spell(given.name)} belongs to 'vllm serve', but the image of vLLM {known} starts "
        f"vllm.entrypoints.openai.api_server, which {does}; start the container with --entrypoint vllm and the "
        f"command 'serve' (serve_args with entrypoint='serve'), or use v0.14.0 or newer"
    ]


def unknown_argument(known: Release, given: Given) -> str:
    """Says what to use instead, which releases know the argument, and what a misspelling may have meant."""
    sentence = [f"{spell(given.name)} ({given.where}) is not an argument of vLLM {known}."]
    replacement = find_replacement(known, given.name, given.value)
    if replacement:
        sentence.append(f"There, {replacement}.")
    versions = knowing_releases(given.name)
    if versions:
        sentence.append(f"Known to {format_releases(versions)}.")
    else:
        near = difflib.get_close_matches(given.name, known.argument_names, n=3, cutoff=0.7)
        sentence.append(
            f"Did you mean {' or '.join(spell(name) for name in near)}?"
            if near
            else "No release of the catalogue knows it."
        )
    sentence.append(f"To pass it on all the same: force_args: [{given.name}].")
    return " ".join(sentence)


def find_replacement(known: Release, name: str, value: Any = None) -> str | None:
    """What does the work of an argument in a release that lacks it; None where nothing is known."""
    for entry in _data("replacements").get(name, []):
        fits_value = "value" not in entry or entry["value"] == value
        if fits_value and (not entry["needs"] or known.argument(entry["needs"]) is not None):
            return str(entry["use"])
    return None


def knowing_releases(name: str) -> list[str]:
    """Every release that knows the argument, oldest first."""
    return [version for version in known_releases() if release(version).argument(name) is not None]


def value_problem(argument: Argument, value: Any) -> str | None:
    """What is wrong with a value for an argument; None where vLLM's parser takes it."""
    if value is None:
        return None if argument.nullable or argument.default is None else f"a value is needed (type {argument.type})"
    if argument.kind in ("boolean", "flag", "unset"):
        return None if as_boolean(value) is not None else f"'{value}' is no boolean; it takes true or false"
    if argument.kind == "append" or argument.takes_list:
        return _list_problem(argument, value)
    if argument.nargs == "?" and value is True:
        return None
    return _scalar_problem(argument, value)


def _list_problem(argument: Argument, value: Any) -> str | None:
    items = value if isinstance(value, list | tuple) else [value]
    if not items and argument.default:
        return f"it needs at least one value; leave it out for the default {argument.default}"
    if isinstance(argument.nargs, int) and len(items) != argument.nargs:
        return f"it takes {argument.nargs} values, not {len(items)}"
    return next((problem for item in items if (problem := _scalar_problem(argument, item))), None)


def _scalar_problem(argument: Argument, value: Any) -> str | None:
    problem = TYPE_CHECKS[argument.type](argument, value)
    if problem:
        return problem
    if argument.choices and not _is_choice(argument, value):
        return f"'{value}' is none of its choices: {_listed(argument.choices, value)}"
    if argument.name in PLUGIN_EXTENDED and argument.known and not _ships(argument, value):
        shipped = _listed(argument.known, value)
        return f"'{value}' is none that it ships: {shipped}. If a plugin adds it: force_args: [{argument.name}]"
    return None


def _ships(argument: Argument, value: Any) -> bool:
    """Whether the release has the name without a plugin; the default and "None" always pass."""
    return _spelled(argument, value) in argument.known or value == argument.default or _is_none_word(argument, value)


def _spelled(argument: Argument, value: Any) -> str:
    """Names of attention backends are written in either case."""
    return str(value).upper() if argument.name == "attention_backend" else str(value)


def _listed(allowed: Iterable[Any], value: Any) -> str:
    names = [str(item) for item in allowed]
    near = difflib.get_close_matches(str(value), names, n=1)
    return ", ".join(names) + (f"; did you mean {near[0]}?" if near else "")


def _is_choice(argument: Argument, value: Any) -> bool:
    allowed = {str(item) for item in argument.choices} | ({"None"} if argument.nullable else set())
    text = str(value).lower().replace("-", "_") if argument.type == "str_folded" else str(value)
    return text in allowed


def _check_str(argument: Argument, value: Any) -> str | None:
    return f"{value!r} is no text" if isinstance(value, dict | list | bool) else None


def _check_int(argument: Argument, value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    text = isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip())
    return None if whole or text or _is_none_word(argument, value) else f"'{value}' is no whole number"


def _check_human_int(argument: Argument, value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return None
    if isinstance(value, str) and HUMAN_INTEGER.fullmatch(value.strip()):
        return None
    if argument.type == "int_human_or_auto" and str(value).lower() == "auto":
        return None
    return (
        None if _is_none_word(argument, value) else f"'{value}' is no number of the kind 8192, 8k (8000) or 8K (8192)"
    )


def _check_float(argument: Argument, value: Any) -> str | None:
    try:
        if isinstance(value, bool | dict | list):
            raise ValueError
        float(value)
    except ValueError:
        return None if _is_none_word(argument, value) else f"'{value}' is no number"
    return None


def _check_json(argument: Argument, value: Any) -> str | None:
    parsed = value
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            return None if _is_none_word(argument, value) else f"'{value}' is no JSON"
    if argument.fields and isinstance(parsed, dict):
        unknown = sorted(set(parsed) - set(argument.fields))
        if unknown:
            near = difflib.get_close_matches(unknown[0], argument.fields, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            return f"its JSON has no key {', '.join(repr(key) for key in unknown)}{hint}"
    return None


def _check_bool_word(argument: Argument, value: Any) -> str | None:
    return None if as_boolean(value) is not None else f"'{value}' is no boolean; it takes true or false"


def _check_json_or_str(argument: Argument, value: Any) -> str | None:
    return f"{value!r} is neither JSON nor text" if isinstance(value, bool) else None


def _check_comma_list(argument: Argument, value: Any) -> str | None:
    return f"{value!r} is no list" if isinstance(value, dict | bool) else None


def _is_none_word(argument: Argument, value: Any) -> bool:
    return argument.nullable and value in ("None", "")


TYPE_CHECKS = {
    "str": _check_str,
    "str_folded": _check_str,
    "int": _check_int,
    "int_human": _check_human_int,
    "bool": _check_bool_word,
    "bool_word": _check_bool_word,
    "int_human_or_auto": _check_human_int,
    "float": _check_float,
    "json": _check_json,
    "json_or_str": _check_json_or_str,
    "comma_list": _check_comma_list,
}


def as_boolean(value: Any) -> bool | None:
    """True or False for what Ansible and people write for it; None for anything else."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None


# -- rendering --------------------------------------------------------------------------------------------------------
def render(argument: Argument | None, given: Given) -> list[str]:
    """The words of one argument. A forced argument that the release does not know is rendered by its value's type."""
    flag = argument.flag if argument else spell(given.name)
    kind = argument.kind if argument else ("boolean" if isinstance(given.value, bool) else "value")
    value = given.value
    if kind in ("boolean", "flag", "unset") and value is not None:
        return _render_boolean(kind, flag, bool(as_boolean(value)))
    if value is None:
        return [flag, "None"] if argument and argument.nullable and argument.default is not None else []
    if argument and argument.nargs == "?" and value is True:
        return [flag]
    if argument and argument.type == "bool_word":
        return [flag, "True" if as_boolean(value) else ""]
    if argument and argument.type == "comma_list" and isinstance(value, list | tuple):
        return _pair(flag, ",".join(str(item) for item in value))
    if isinstance(value, list | tuple) and (argument is None or argument.type != "json" or argument.takes_list):
        items = [_word(item) for item in value]
        if argument and argument.kind == "append":
            return [word for item in items for word in _pair(flag, item)]
        return [flag, *items] if items else []  # an empty list is the default, see value_problem
    return _pair(flag, _word(value))


def _render_boolean(kind: str, flag: str, value: bool) -> list[str]:
    if kind == "boolean":
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    return [flag] if value == (kind == "flag") else []


def _pair(flag: str, value: str) -> list[str]:
    """Two words, or one where the value could be taken for an argument."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def _word(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def spell(name: str) -> str:
    """``max_model_len`` as it is typed: ``--max-model-len``."""
    return "--" + name.replace("_", "-")

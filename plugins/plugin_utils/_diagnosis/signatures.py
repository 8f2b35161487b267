# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads signatures.yml, which says how each field is meant. Private to the collection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Signature:
    """One way in which a class of failure shows in a log."""

    failure_class: str
    match: re.Pattern[str]
    with_: re.Pattern[str] | None
    near: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    phases: frozenset[str]
    any_level: bool
    repeated: int
    while_serving: bool
    confidence: float
    title: str
    explanation: str
    reference: str
    change: dict[str, Any] | None
    ladder: str | None


@dataclass(frozen=True)
class Topic:
    """Words that stories of a class of failure are made of, and how much they tell."""

    failure_class: str
    words: re.Pattern[str]
    weight: int


@cache
def signatures() -> tuple[Signature, ...]:
    """Returns how failures show in a line of a log, in the order of the file."""
    return _signatures("signatures")


@cache
def told_signatures() -> tuple[Signature, ...]:
    """Returns how people tell of failures."""
    return _signatures("told")


@cache
def topics() -> tuple[Topic, ...]:
    """Returns the words by which a class is guessed where no signature is found."""
    return tuple(
        Topic(failure_class, _compiled(topic["match"]), topic["weight"])
        for failure_class, texts in _classes().items()
        for topic in texts.get("topics", ())
    )


@cache
def guesses() -> dict[str, Signature]:
    """Returns what is said of each class where it is only guessed: no change, as too little is known for one."""
    return {
        failure_class: _signature(failure_class, {**_shared(texts), "match": "", "confidence": 0.3, "change": None})
        for failure_class, texts in _classes().items()
    }


@cache
def _classes() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "signatures.yml").read_text(encoding="utf-8"))
    return loaded


def _signatures(kind: str) -> tuple[Signature, ...]:
    return tuple(
        _signature(failure_class, {**_shared(texts), **own})
        for failure_class, texts in _classes().items()
        for own in texts.get(kind, ())
    )


def _shared(texts: dict[str, Any]) -> dict[str, Any]:
    return {name: text for name, text in texts.items() if name not in ("signatures", "told", "topics")}


def _signature(failure_class: str, fields: dict[str, Any]) -> Signature:
    return Signature(
        failure_class=failure_class,
        match=_compiled(fields["match"]),
        with_=_compiled(fields["with"]) if "with" in fields else None,
        near=_compiled(fields["near"]) if "near" in fields else None,
        unless=_compiled(fields["unless"]) if "unless" in fields else None,
        phases=frozenset(fields.get("phase", ())),
        any_level=fields.get("level") == "any",
        repeated=fields.get("repeated", 1),
        while_serving=fields.get("serving", False),
        confidence=fields["confidence"],
        title=fields["title"],
        explanation=fields["explanation"],
        reference=fields["reference"],
        change=fields.get("change"),
        ladder=fields.get("ladder"),
    )


def _compiled(alternatives: str | list[str]) -> re.Pattern[str]:
    pattern = alternatives if isinstance(alternatives, str) else "|".join(alternatives)
    return re.compile(pattern, re.IGNORECASE)

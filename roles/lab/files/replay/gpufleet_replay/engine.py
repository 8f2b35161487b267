# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers requests: the same answer to the same request, as many at a time as max_num_seqs allows, and counts them."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SENTENCE = (
    "hello there this answer comes from a replay engine that computes nothing and says the same words to the same "
    "request every time so that tests can compare them"
)
_SHORTEST, _LONGEST = 6, 16
_DIMENSIONS = 64
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Dead(Exception):
    """The engine has ended, and answers nothing any more."""


@dataclass
class Counts:
    """What /metrics and the log tell, since the start."""

    running: int = 0
    waiting: int = 0
    tokens_in_cache: int = 0
    requests: int = 0
    stopped: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    first_token_seconds: float = 0.0
    request_seconds: float = 0.0


class Engine:
    """A started engine. seconds_per_token: how long each token takes."""

    def __init__(self, config: Mapping[str, Any], kv_tokens: int, seconds_per_token: float) -> None:
        self.config = config
        self.kv_tokens = kv_tokens
        self.counts = Counts()
        self.dead = threading.Event()
        self._seconds_per_token = seconds_per_token
        self._changed = threading.Condition()

    def answer(self, prompt: str, longest: int, ignore_eos: bool = False) -> Iterator[str]:
        """Yields the words of the answer to a prompt, at most that many. Raises Dead if the engine ends meanwhile."""
        began = time.monotonic()
        prompt_tokens = count_tokens(prompt)
        self._enter(prompt_tokens)
        words = answer_words(prompt, longest, ignore_eos)
        done = 0
        try:
            for done, word in enumerate(words, 1):
                if self.dead.wait(self._seconds_per_token) if self._seconds_per_token else self.dead.is_set():
                    raise Dead
                if done == 1:
                    self._count(first_token_seconds=time.monotonic() - began)
                self._count(tokens_in_cache=1)
                yield word
        finally:
            cut = len(words) == longest
            self._count(running=-1, tokens_in_cache=-prompt_tokens - done, prompt_tokens=prompt_tokens)
            self._count(
                generated_tokens=done, stopped=int(not cut), cut=int(cut), request_seconds=time.monotonic() - began
            )

    def embed(self, text: str) -> list[float]:
        """Returns the same vector of length 1 for the same text."""
        tokens = count_tokens(text)
        self._enter(tokens)
        self._count(running=-1, tokens_in_cache=-tokens, prompt_tokens=tokens, stopped=1)
        raw = hashlib.sha512(text.encode()).digest()
        values = [byte / 255 - 0.5 for byte in raw[:_DIMENSIONS]]
        length = sum(value * value for value in values) ** 0.5
        return [value / length for value in values]

    def _enter(self, tokens: int) -> None:
        """Waits until the batch has room."""
        with self._changed:
            self.counts.requests += 1
            self.counts.waiting += 1
            while self.counts.running >= self.config["max_num_seqs"] and not self.dead.is_set():
                self._changed.wait(0.1)
            self.counts.waiting -= 1
            if self.dead.is_set():
                raise Dead
            self.counts.running += 1
            self.counts.tokens_in_cache += tokens

    def _count(self, **changes: float) -> None:
        with self._changed:
            for name, change in changes.items():
                setattr(self.counts, name, getattr(self.counts, name) + change)
            self._changed.notify_all()


def count_tokens(text: str) -> int:
    """Returns the number of tokens of a text: words and punctuation."""
    return max(len(_TOKEN.findall(text)), 1)


def tokens_of(text: str) -> list[int]:
    """Returns a number for each token of a text."""
    return [int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") for word in _TOKEN.findall(text)]


def answer_words(prompt: str, longest: int, ignore_eos: bool) -> list[str]:
    """Returns the words of the answer: chosen by the prompt alone, so that every layout of an engine says the same."""
    digest = hashlib.sha256(prompt.encode()).digest()
    natural = _SHORTEST + digest[0] % (_LONGEST - _SHORTEST)
    count = longest if ignore_eos else min(natural, longest)
    words = _SENTENCE.split()
    return [words[(digest[1] + index) % len(words)] for index in range(count)]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the causes of a failure in a log. Private to the collection.

What is known of failures is in signatures.yml. Here is only how the causes are told from their consequences: a cause
stands above what it causes, what ended the engine stands in a traceback, and what vLLM logged as INFO or WARNING before
it served was none.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ...module_utils import _boot_log_patterns as patterns
from ...module_utils._boot_log import parse_boot_log
from .change import propose
from .context import sharpen
from .lines import Line, continued, read_lines
from .signatures import Signature, guesses, signatures, told_signatures, topics

# Lines of one process: a traceback through vLLM, PyTorch and a compiled graph has some eighty.
_NEAR_ABOVE = 120
_NEAR_BELOW = 40
_CERTAIN = 0.9
_LIKELY = 0.7
_ALONE = 0.8
# What a text with such words may mean; a story around them tells more.
_WEAK = 0.5
# A line outside of every traceback, in a log that has tracebacks, is seldom what ended the engine.
_OUTSIDE_TRACEBACK = 0.1
_MAX_EVIDENCE = 400

# These lines only say that something failed elsewhere.
_CONSEQUENCE = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore (?:failed|encountered|hit)|Failed core proc"
    r"|See root cause above|WorkerProc (?:initialization )?failed|Engine process failed to start"
    r"|leaked \w+ objects|destroy_process_group|Engine loop (?:is not running|has died)|died unexpectedly"
    r"|Engine is (?:already )?dead|Worker \S+ pid \d+ died|Worker proc \S+ died",
    re.IGNORECASE,
)
# A story of more lines than this is a log of something else.
_LONGEST_STORY = 12
# A unit's first lines, before the engine has written any.
_UNIT = re.compile(r"^(?:Start|Stopp?)(?:ing|ed) \S+\.service\b|^Error: No such container: ")
_TROUBLE = re.compile(
    r"fail|error|\berr\b|crash|abort|\bdie[sd]?\b|\bdead\b|kill|exit|throw|exception|segfault|evict|terminat"
    r"|hang|hung|stuck|stall|loop|deadlock|slow|forever|hours?\b|minutes|time.?out|timed|\bnever\b|\bwait|blocked"
    r"|can(?:no|'?)t\b|can not|could ?n[o']t|unable|n't\b|\bnot\b|no longer|\bno\b|without|missing|unknown|undefined"
    r"|broken|breaks?\b|\bbad\b|invalid|wrong|mismatch|incompatib|conflict|unexpected|regression|instead of|uneven"
    r"|\bOOM|out.of.memory|exceed|\bfull\b|filling|leak|insufficient|occupied|hold|\blow\b|100 ?%|\btoo\b|\bonly\b"
    r"|more \w+ (?:\w+ )?than|denied|forbid|refus|reject|support|problem|issue|\bhow\b|\bwhy\b|\?",
    re.IGNORECASE,
)
# Of the words of a class: one that names it, or two that go with it.
_TELLING = 3
_ENDED = re.compile(
    r"fail|error|crash|abort|segfault|cannot|can.?t|unable|\b(?:dead|die[sd]?|died)\b|killed|exit|exception",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")
_SERVES = re.compile(r"Application startup complete|Uvicorn running on")
# The end of a log has no start: an engine that answers after an error has survived it.
_ANSWERS = re.compile(r"Avg (?:prompt|generation) throughput|\"POST /\S+ HTTP/1\.\d\" 200")
_ENDS = next(pattern for phase, pattern in patterns.PHASES if phase == patterns.FAILED)


@dataclass(frozen=True)
class _Candidate:
    signature: Signature
    line: Line
    groups: dict[str, str]
    score: float

    def rank(self) -> tuple[int, int, float]:
        """Sorts the certain before the likely, and among these what stands above before what stands below."""
        band = 0 if self.score >= _CERTAIN else 1 if self.score >= _LIKELY else 2
        return (band, self.line.number, -self.score)


def diagnose(log: str, context: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Returns the causes of failure that a log shows, most probable first; of a healthy log, none.

    log: the journal, `docker logs` or a pasted traceback of any release from 0.6 on, several ranks mixed.
    context: optional, what is known beside the log: {"instance": one instance, "plan": its plan, "hosts": what gpu_info
    tells, in rank order, "unit" and "measured": what boot_info tells}. It fills in changes and explanations.
    Each finding: {"class", "title", "evidence": {"line", "line_number"}, "explanation", "change": {"variable", "from",
    "to"} or None, "confidence": 0..1, "reference"}. A class is given once.
    """
    known = {"measured": parse_boot_log(log), **(context or {})}
    read = read_lines(log)
    lines, serves = _relevant(read)
    candidates = _weighed(_candidates(lines, serves), lines)
    if not candidates and len(lines) == 1:
        # Who pastes one line alone means it, whatever its level.
        alone = _candidates([replace(lines[0], harmless=False)], serves)
        candidates = [candidate for candidate in alone if candidate.score >= _ALONE]
    findings = [_finding(candidate, known) for candidate in _best(candidates)]
    if not serves and (not findings or findings[0]["confidence"] <= _WEAK):
        told = _told(read, known)
        if told and (not findings or told[0]["confidence"] > findings[0]["confidence"]):
            findings = told
    if not serves and not findings:
        findings = _unknown(lines)
    return sharpen(findings, known)


def _best(candidates: list[_Candidate]) -> list[_Candidate]:
    """Each class once, and of a line only what it says most clearly: a line proves one cause."""
    best: dict[str, _Candidate] = {}
    lines: set[int] = set()
    for candidate in sorted(candidates, key=_Candidate.rank):
        if candidate.signature.failure_class not in best and candidate.line.number not in lines:
            best[candidate.signature.failure_class] = candidate
            lines.add(candidate.line.number)
    return list(best.values())


def _told(lines: list[Line], context: dict[str, Any]) -> list[dict[str, Any]]:
    """What somebody tells of a failure in a sentence or two. Not of a log: that has its own words."""
    if any(line.logged or line.harmless or _UNIT.search(line.text) for line in lines) or len(lines) > _LONGEST_STORY:
        return []
    story = " ".join(line.message for line in lines)
    if not _TROUBLE.search(story):
        return []
    told = [signature for signature in told_signatures() if _match(signature, story)]
    best = max(told, key=lambda signature: signature.confidence, default=None) or _guess(story)
    line = next((line for line in lines if best and best.match.search(line.message)), lines[0] if lines else None)
    return [_finding(_Candidate(best, line, {}, best.confidence), context)] if best and line else []


def _guess(story: str) -> Signature | None:
    """The class whose words the story is made of."""
    weights: dict[str, int] = {}
    for topic in topics():
        if topic.words.search(story):
            weights[topic.failure_class] = weights.get(topic.failure_class, 0) + topic.weight
    best = max(weights, key=lambda failure_class: weights[failure_class], default=None)
    if best is not None and weights[best] >= _TELLING:
        return guesses()[best]
    return guesses()["other"] if _ENDED.search(story) else None


def _candidates(lines: list[Line], serves: bool) -> list[_Candidate]:
    loud, all_messages, broken = _loud_messages(lines), _all_messages(lines), _continued_messages(lines)
    near = _Neighbours(lines)
    found = []
    for signature in signatures():
        if serves and not signature.while_serving:
            continue
        messages = all_messages if signature.any_level else loud
        candidate = _first_match(signature, messages, near) or _first_match(signature, broken, near)
        if candidate:
            found.append(candidate)
    return found


def _relevant(lines: list[Line]) -> tuple[list[Line], bool]:
    """The lines that may tell of a failure, and whether the engine still serves after them.

    What an engine logged before it served has not hindered it. An engine that serves also logs the errors of single
    requests, which are none of its own.
    """
    serving = _last(_SERVES, lines)
    later = lines[serving + 1 :]
    ended = any(_ENDS.search(line.text) for line in later)
    alarm = max((index for index, line in enumerate(later) if line.alarming), default=-1)
    return later, not ended and (serving >= 0 or _last(_ANSWERS, later) > alarm)


def _last(pattern: re.Pattern[str], lines: list[Line]) -> int:
    return max((index for index, line in enumerate(lines) if pattern.search(line.text)), default=-1)


class _Neighbours:
    """Finds what stands near a line, of logs with a hundred thousand lines in which each rank tells the same, too."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self._places: dict[str | None, list[int]] = {}
        for index, line in enumerate(lines):
            self._places.setdefault(line.process, []).append(index)
        self._readable = functools.cache(self._places_to_read)
        self._has = functools.cache(lambda near, place: bool(near.search(lines[place].text)))

    def has(self, near: re.Pattern[str], index: int) -> bool:
        """Whether a line close by has it that the same process wrote, or that names no process, as progress bars do."""
        return any(self._stands(near, index, places) for places in self._readable(self.lines[index].process))

    def _places_to_read(self, process: str | None) -> list[list[int]]:
        """Of a paste that was cut, the frames of the process may be gone: then those of another rank count."""
        nameless = self._places.get(None, [])
        if process is None:
            return [nameless]
        own = self._places[process]
        near = [sorted([*own, *nameless])]
        if not any(self.lines[place].frame for place in own):
            near.append(self._places_of_ranks(process))
        return near

    def _places_of_ranks(self, process: str) -> list[int]:
        """Of all processes that are called the same: "VllmWorkerProcess pid=" of "VllmWorkerProcess pid=97"."""
        kind = _NUMBER.sub("", process)
        ranks = (places for name, places in self._places.items() if name and _NUMBER.sub("", name) == kind)
        return sorted(chain.from_iterable(ranks))

    def _stands(self, near: re.Pattern[str], index: int, places: list[int]) -> bool:
        middle = bisect_left(places, index)
        return any(self._has(near, place) for place in places[max(0, middle - _NEAR_ABOVE) : middle + _NEAR_BELOW])


def _first_match(signature: Signature, messages: dict[str, list[int]], neighbours: _Neighbours) -> _Candidate | None:
    lines = neighbours.lines
    matches = [
        (index, match)
        for message, indices in messages.items()
        if (match := _match(signature, message))
        for index in indices
        if _may_stand_in(signature, lines[index])
    ]
    matches.sort(key=lambda one: one[0])
    fitting = (one for one in matches if signature.near is None or neighbours.has(signature.near, one[0]))
    found = list(islice(fitting, signature.repeated))
    if len(found) < signature.repeated:
        return None
    index, match = found[0]
    groups = {name: text for name, text in match.groupdict().items() if text}
    return _Candidate(signature, lines[index], groups, signature.confidence)


def _may_stand_in(signature: Signature, line: Line) -> bool:
    return (signature.any_level or not line.harmless) and (not signature.phases or line.phase in signature.phases)


def _match(signature: Signature, message: str) -> re.Match[str] | None:
    match = signature.match.search(message)
    if match is None or (signature.unless and signature.unless.search(message)):
        return None
    return None if signature.with_ and not signature.with_.search(message) else match


def _loud_messages(lines: list[Line]) -> dict[str, list[int]]:
    """Where each message stands that may be a failure. Every rank writes the same one: one look at it is enough."""
    messages: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        if not line.harmless:
            messages.setdefault(line.message, []).append(index)
    return messages


def _all_messages(lines: list[Line]) -> dict[str, list[int]]:
    """Where each message stands. An engine that serves logs the same with other figures for ever: one counts."""
    messages: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for index, line in enumerate(lines):
        message = line.message
        if line.harmless:
            message = kinds.setdefault(_NUMBER.sub(_zero_or_not, message), message)
        messages.setdefault(message, []).append(index)
    return messages


def _zero_or_not(number: re.Match[str]) -> str:
    return "0" if set(number.group()) == {"0"} else "9"


def _continued_messages(lines: list[Line]) -> dict[str, list[int]]:
    """The same of messages that go on on the next lines."""
    messages: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        message = continued(lines, index) if line.exception else None
        if message:
            messages.setdefault(message, []).append(index)
    return messages


def _weighed(candidates: list[_Candidate], lines: list[Line]) -> list[_Candidate]:
    """Lowers what is told outside of tracebacks, and leaves out what a whole log only mentions.

    A pasted sentence has no levels; there every line counts. In a log an error is marked as one.
    """
    is_log = any(line.harmless for line in lines)
    has_traceback = any(line.in_traceback for line in lines)
    weighed = []
    for candidate in candidates:
        line, score = candidate.line, candidate.score
        if is_log and not line.alarming and not _speaks_for_itself(candidate):
            continue
        if has_traceback and not line.in_traceback:
            score -= _OUTSIDE_TRACEBACK
        weighed.append(replace(candidate, score=score))
    return weighed


def _speaks_for_itself(candidate: _Candidate) -> bool:
    signature = candidate.signature
    return signature.any_level and (candidate.score >= _CERTAIN or signature.repeated > 1)


def _finding(candidate: _Candidate, context: dict[str, Any]) -> dict[str, Any]:
    signature = candidate.signature
    return {
        "class": signature.failure_class,
        "title": signature.title,
        "evidence": {"line": candidate.line.text[:_MAX_EVIDENCE], "line_number": candidate.line.number},
        "explanation": signature.explanation,
        "change": propose(signature.change, candidate.groups, context),
        "confidence": round(candidate.score, 2),
        "reference": signature.reference,
    }


def _unknown(lines: list[Line]) -> list[dict[str, Any]]:
    """The first exception that is not the echo of another one, if nothing is known about it."""
    line = next((line for line in lines if line.exception and not _CONSEQUENCE.search(line.text)), None)
    if line is None:
        line = next((line for line in lines if not line.harmless and _CONSEQUENCE.search(line.text)), None)
    if line is None:
        return []
    signature = next(signature for signature in signatures() if signature.failure_class == "other")
    return [
        {
            "class": "other",
            "title": "The engine ended for a reason that has no class of its own",
            "evidence": {"line": line.text[:_MAX_EVIDENCE], "line_number": line.number},
            "explanation": "Read the log from this line upwards.",
            "change": None,
            "confidence": 0.3,
            "reference": signature.reference,
        }
    ]

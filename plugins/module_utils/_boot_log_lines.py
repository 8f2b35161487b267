# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands before the message of a log line: who wrote it, when, how serious. Private to the collection.

A line comes from the journal, ``docker logs``, Docker's JSON files, Compose, Kubernetes, Ray, or was pasted from an
issue or a terminal; each of these puts something of its own before what vLLM wrote, sometimes several of them at once.
"""

from __future__ import annotations

import json
import re

# With the escape character, and without it, as it is lost where a log was pasted.
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|(?<![\w\]])\[(?:\d{1,3};){0,3}\d{1,3}m")

# Each is taken off again and again, in any order, as long as one of them is found.
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?Z| ?[+-]\d\d:?\d\d)?"
_PREFIXES = [
    re.compile(pattern)
    for pattern in (
        # Google Cloud's and FastChat's collectors: their level is not that of vLLM's line
        r"(?:DEFAULT|NOTICE|INFO|WARNING|ERROR) " + _TIME + r" \[resource[^\]]*\] ",
        _TIME + r" \| \w+ +\| std(?:out|err) \| ",
        # quoted in an issue; numbered by a CI server
        r"> ?(?:- )?|\d{1,6}\t",
        # Compose and stern: "vllm-1  | "
        r"(?:[\w./-]{1,60} +)?\| {1,2}(?=\S)(?!\d+/\d)",
        # journalctl: "May 30 07:40:19 gpu1 docker[1234]: ", also with --output=short-iso
        r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? \S+ [^\s:\[\]]+(?:\[\d+\])?: ",
        _TIME + r" \S+ [^\s:\[\]]+\[\d+\]: ",
        # Kubernetes, CI
        r"\[?" + _TIME + r"\]?[ \t]+(?:(?:stdout|stderr) [FP] )?(?=\S)",
        # torch.distributed and Ray
        r"\[rank\d+\]: ?",
        r"\(raylet(?:, ip=[\d.]+)?\) ",
    )
]
# "(EngineCore_DP0 pid=9)", "(VllmWorker rank=3 pid=9)", "(VllmWorker TP0 pid=9)", "(Worker_TP0_EP0 pid=9)",
# "(RayWorkerWrapper pid=9, ip=10.0.0.1)", "(pid=9)"
PROCESS = re.compile(
    r"\((?P<name>[\w.:-]+(?: [\w.:-]+)*?)?,? ?(?:rank=(?P<rank>\d+) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.:a-f]+))?\) ?"
)
_LEVELS = "DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"
_LONG_LEVELS = {"WARN": "WARNING", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_LEVEL = re.compile(
    # "INFO 05-30 07:40:19 [core.py:133] ", "INFO 05-30 07:40:19 core.py:133] "
    r"(?P<vllm>" + _LEVELS + r") \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:\[[^\]]*:\d+\](?: |$)|\S+\.py:\d+\](?: |$))"
    # the same without its time, and uvicorn's "INFO:     "
    r"|(?P<short>" + _LEVELS + r"):? {1,5}(?:\[\S+:\d+\] )?"
    # Ray's "INFO worker.py:1749 -- ", Python's "INFO - ", "[INFO] "
    # PyTorch's C++: "[E306 00:03:07.842961975 socket.cpp:1011] "
    r"|\[?(?P<glog>[IWEF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d+)? [^\]]*\] ?"
    r"|\[(?P<bracket>" + _LEVELS + r")(?:\|[^\]]*)?\] ?|(?:- )?(?P<dash>" + _LEVELS + r") - "
)


class Prefix:
    """What stood before a message. process: its label, such as "Worker_TP0 pid=9", or None. level: or None."""

    __slots__ = ("process", "level")

    def __init__(self):
        self.process = None
        self.level = None


def plain(line):
    """Returns the line without colours, of a line of Docker's JSON files its text."""
    line = ANSI.sub("", line)
    if line.startswith('{"log":'):
        try:
            return ANSI.sub("", str(json.loads(line)["log"])).rstrip("\r\n")
        except (ValueError, KeyError, TypeError):
            return line
    return line


def split_prefix(line):
    """Returns (Prefix, message) of a plain line."""
    prefix, rest = Prefix(), line.strip()
    while True:
        before = rest
        for pattern in _PREFIXES:
            match = pattern.match(rest)
            if match:
                rest = rest[match.end() :].lstrip()
        match = PROCESS.match(rest)
        if match:
            prefix.process = match.group(0).strip(" ()")
            rest = rest[match.end() :].lstrip()
        match = _LEVEL.match(rest) if prefix.level is None else None
        if match:
            level = next(level for level in match.groups() if level)
            prefix.level = _LONG_LEVELS.get(level, level)
            rest = rest[match.end() :].lstrip()
        if rest == before:
            return prefix, rest

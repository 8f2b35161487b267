# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each release of vLLM logs and says: the texts of wording.json and faults.json."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=None)
def data(name: str) -> dict[str, Any]:
    """Returns one of the JSON files of this package."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".json")
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)


def version(text: str) -> tuple[int, ...]:
    """Returns the numbers of a release: "v0.20.0-cu129" as (0, 20, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    if match is None:
        raise ValueError(f"{text!r} names no release of vLLM. Give one such as 0.27.1 in REPLAY_RELEASE.")
    return tuple(int(part) for part in match.group(1).split("."))


def since(release: str, first: str) -> bool:
    """Whether a release is as new as another one."""
    return version(release) >= version(first)


def of_release(entries: list[list[Any]], release: str) -> list[Any]:
    """Returns what follows the release in the entry that holds for it: the last one that is not newer."""
    return [entry for entry in entries if since(release, entry[0])][-1][1:]

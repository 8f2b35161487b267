# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a task of Ansible failed, in one line. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LONGEST = 300
"""Characters of a reason; all of it is in the output of the run."""

OURS = re.compile(r"gpufleet\.vllm\.\w+: ")
"""How our filters begin their messages, which Ansible wraps into messages of its own."""

WRAPPED = re.compile(
    r"Task failed: |Action failed: |Failed to connect to the host via ssh: "
    r"|Data could not be sent to remote host \S+ Make sure this host can be reached over ssh: "
)
"""What Ansible says around a reason."""

NEXT = re.compile(r"\s*\bNext\b[^:]{0,80}:.*")
"""The next command of a message; reports end with their own."""


def reason_of(result: Mapping[str, Any]) -> str:
    """The message of a failed task's result, in one line: of a loop the first one, of a filter the filter's own."""
    items = [item for item in result.get("results") or () if item.get("failed") or item.get("unreachable")]
    failed = items[0] if items else result
    words = " ".join(str(failed.get("msg") or failed.get("exception") or "no message").split())
    ours = list(OURS.finditer(words))
    words = words[ours[-1].end() :] if ours else words
    words = NEXT.sub("", WRAPPED.sub("", words)).strip()
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 2].rstrip()} …"

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for people. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from .fleet import once
from .html import fleet_page
from .summary import summarize
from .text import explain, explain_others
from .tuning import explain_tuning, read_tuning
from .tuning_page import tuning_page
from .upgrade import explain_upgrade

__all__ = [
    "explain",
    "explain_others",
    "explain_tuning",
    "explain_upgrade",
    "fleet_page",
    "once",
    "read_tuning",
    "summarize",
    "tuning_page",
]

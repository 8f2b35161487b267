# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a log to its causes, and from these to the next change. Private to the collection."""

from __future__ import annotations

from .diagnose import diagnose
from .evidence import diagnose_evidence, diagnose_log
from .ladder import ladder, ladder_row
from .report import explain_diagnoses
from .serving import diagnose_serving

__all__ = [
    "diagnose",
    "diagnose_evidence",
    "diagnose_log",
    "diagnose_serving",
    "explain_diagnoses",
    "ladder",
    "ladder_row",
]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to change next on an engine that is tuned, and what came of it. Private to the collection."""

from __future__ import annotations

from .case import PARAMETERS, TuningError
from .ledger import next_step, read_rows, row_of, rows_of_last_run

__all__ = ["PARAMETERS", "TuningError", "next_step", "read_rows", "row_of", "rows_of_last_run"]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is this host able to run these images? Private to the collection gpufleet.vllm.

* :func:`preflight` judges the facts of a host, before anything is changed on it,
* :func:`table` shows the result for a terminal of 100 columns.
"""

from __future__ import annotations

from .checks import CHECK_NAMES, preflight
from .table import table

__all__ = ["CHECK_NAMES", "preflight", "table"]

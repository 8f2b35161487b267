# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdicts of a plan; what they mean is in __init__. Private to the collection gpufleet.vllm."""

from __future__ import annotations

VERDICTS = ("fits", "fits_reduced", "unverified", "does_not_fit", "unsupported")

FITTING = ("fits", "fits_reduced", "unverified")
"""With these an engine may be started."""

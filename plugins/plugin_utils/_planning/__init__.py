# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an instance and the facts of its hosts to a plan: pure functions. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from .errors import InstanceError
from .fleet import plan_instances
from .plan import plan

__all__ = ["InstanceError", "plan", "plan_instances"]

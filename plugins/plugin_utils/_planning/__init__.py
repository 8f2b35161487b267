# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From an instance and the facts of its hosts to a plan: pure functions. Private to the collection gpufleet.vllm.

The verdicts of a plan:

* `fits`: every promise of the workload is kept, by the low end of the prediction.
* `fits_reduced`: a promise was cut; the decisions say which, `needs` says what would keep it.
* `unverified`: the memory of the model is not understood; the low end keeps what `workload` says. It may be started.
* `does_not_fit`: `needs` says what would (cards, quantisation, context).
* `unsupported`: `needs` says which rule of release, card or model forbids it.
"""

from __future__ import annotations

from .errors import InstanceError, refused_pin
from .fleet import plan_instances
from .plan import plan

__all__ = ["InstanceError", "plan", "plan_instances", "refused_pin"]

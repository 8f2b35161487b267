# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: diagnose_evidence
short_description: Find out what is wrong with an instance on a host
description:
  - Takes what M(gpufleet.vllm.evidence_info) collected, and says why the engine failed, is slow or does not answer.
    Most probable first, each with what proves it and at most one change of one variable.
  - Of a log without a host, give the text instead. It is then what P(gpufleet.vllm.diagnose#filter) finds, in the form
    that P(gpufleet.vllm.explain_diagnoses#filter) shows.
positional: _input
options:
  _input:
    description: What M(gpufleet.vllm.evidence_info) returned, or a log.
    type: raw
    required: true
  context:
    description:
      - What is known beside it. C(instance), C(plan), C(hosts) (what M(gpufleet.vllm.gpu_info) returned, in rank order)
        and C(checkpoint) (C(filesystem) and C(gib)), each optional.
    type: dict
    default: {}
  host:
    description: Name of the host.
    type: str
    default: ""
  source:
    description: What to call a log that was given as text.
    type: str
    default: the log
seealso:
  - plugin: gpufleet.vllm.explain_diagnoses
    plugin_type: filter
author:
  - gpufleet maintainers (@gpufleet)
"""

EXAMPLES = r"""
- name: Say what is wrong
  gpufleet.vllm.show:
    text: "{{ [evidence | gpufleet.vllm.diagnose_evidence(host=inventory_hostname)]
              | gpufleet.vllm.explain_diagnoses }}"
"""

RETURN = r"""
_value:
  description:
    - C(host), C(instance), C(state), C(findings) (as P(gpufleet.vllm.diagnose#filter) returns them), C(source) (the log
      in which their line numbers count), C(earlier) (the last archived failure, or none) and C(errors).
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._diagnosis import diagnose_evidence as find_out
from ..plugin_utils._diagnosis import diagnose_log


def diagnose_evidence(
    evidence: Any, context: dict[str, Any] | None = None, host: str = "", source: str = "the log"
) -> dict[str, Any]:
    """The diagnosis. Raises AnsibleFilterError if the input is neither evidence nor a log."""
    if isinstance(evidence, str):
        return diagnose_log(evidence, context, source)
    if not isinstance(evidence, Mapping) or "unit" not in evidence:
        raise AnsibleFilterError(
            "gpufleet.vllm.diagnose_evidence: the input must be what gpufleet.vllm.evidence_info returned, or a log as "
            f"text, and is {type(evidence).__name__}."
        )
    return find_out(dict(evidence), context, host)


class FilterModule:
    """Ansible filter: what a host tells to what is wrong there."""

    def filters(self) -> dict[str, Any]:
        return {"diagnose_evidence": diagnose_evidence}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: explain
short_description: Explain a plan in words and bars
description:
  - Shows plans of P(gpufleet.vllm.plan#filter) as text in 100 columns. Equal plans of several hosts are told once.
  - The verdict comes first, then what would make it fit, the warnings, a bar for the memory of each GPU, each argument
    with its reason and its cost, and what was decided.
  - Shows reports of P(gpufleet.vllm.upgrade_report#filter) in the same way. What is found for several instances is said
    once.
positional: _input
options:
  _input:
    description: One plan or report, or a list of plans or of reports.
    type: raw
    required: true
  format:
    description:
      - V(text) for a terminal of 100 columns.
      - V(summary) for a short table of all hosts and instances, the worst first, with the next commands.
      - V(html) for one self-contained page of the whole fleet, without scripts and without network, light and dark.
    type: str
    choices: [text, summary, html]
    default: text
  running:
    description:
      - The plans that run now, by the name of the host and then of the instance. The text then shows what differs,
        argument by argument, and whether a deployment would restart the engine.
      - A plan holds no API key, so that a changed key is not seen.
    type: dict
  hosts:
    description:
      - What M(gpufleet.vllm.gpu_info) returned, by the name of the host; empty for a host that could not be read.
      - The table and the page then list all hosts, the page with the cards that no instance takes.
    type: dict
    default: {}
  failures:
    description:
      - What Ansible returned for the task that failed (C(ansible_failed_result)), by the name of the host.
      - The table and the page say for each host without a plan why it has none.
    type: dict
    default: {}
  others:
    description:
      - Names of instances that are on a host and not in its inventory, by the name of the host. The text ends with
        them, for they hold memory and ports, and nothing else tells of them.
    type: dict
    default: {}
  commands:
    description:
      - The next commands that the table ends with, and C(remove), with which the text ends where there are others.
        C(plan) is shown where something does not fit, C(deploy) where
        something does, C(reach) where a host could not be reached.
      - P(gpufleet.vllm.next_command#lookup) writes them as the user types them.
    type: dict
    default: {}
seealso:
  - plugin: gpufleet.vllm.plan
    plugin_type: filter
author:
  - gpufleet contributors
"""

EXAMPLES = r"""
- name: Say what was planned, and why
  ansible.builtin.debug:
    msg: "{{ my_plans | gpufleet.vllm.explain }}"

- name: Write the report of the whole fleet
  ansible.builtin.copy:
    content: "{{ all_plans | gpufleet.vllm.explain(format='html') }}"
    dest: "{{ playbook_dir }}/report.html"
    mode: "0644"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
_value:
  description: The text, in which several plans are parted by a line, or the page.
  type: str
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ..plugin_utils._report import explain as explain_plans
from ..plugin_utils._report import explain_others, explain_upgrade, fleet_page, once, summarize

FORMATS = ("text", "summary", "html")


def explain(
    plans: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    format: str = "text",
    running: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    others: Mapping[str, Sequence[str]] | None = None,
    hosts: Mapping[str, Mapping[str, Any]] | None = None,
    failures: Mapping[str, Mapping[str, Any]] | None = None,
    commands: Mapping[str, str] | None = None,
) -> str:
    """The text, table or page of plans, or the text of upgrade reports. Raises AnsibleFilterError for anything else."""
    if format not in FORMATS:
        raise AnsibleFilterError(
            f"gpufleet.vllm.explain: format {format!r} is unknown; write {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
        )
    several = [plans] if isinstance(plans, Mapping) else plans
    try:
        several = once(several)
        if format == "html":
            return fleet_page(several, hosts or {}, failures or {})
        if format == "summary":
            return summarize(several, hosts or {}, failures or {}, commands or {})
        if several and all("findings" in report for report in several):
            return explain_upgrade(several)
        return explain_plans(several, running) + explain_others(others or {}, (commands or {}).get("remove", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise AnsibleFilterError(
            f"gpufleet.vllm.explain: this is not a plan ({error!r}); "
            "give the result of gpufleet.vllm.plan or gpufleet.vllm.upgrade_report, or one of its items."
        ) from error


class FilterModule:
    """Ansible filter: a plan as text."""

    def filters(self) -> dict[str, Any]:
        return {"explain": explain}

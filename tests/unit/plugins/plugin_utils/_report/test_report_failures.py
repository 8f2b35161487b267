# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages as ansible-core 2.16 to 2.21 give them."""

from __future__ import annotations

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._report.failures import LONGEST, reason_of

SSH = "ssh: connect to host 10.0.0.1 port 22: No route to host"
RESULTS = {
    "2.16 unreachable": (
        f'could not be reached: Data could not be sent to remote host "10.0.0.1". Make sure this host can be reached '
        f"over ssh: {SSH}\r\n",
        f"could not be reached: {SSH}",
    ),
    "2.19 unreachable": (
        f"could not be reached: Task failed: Failed to connect to the host via ssh: {SSH}",
        f"could not be reached: {SSH}",
    ),
    "2.16 filter": ("gpufleet.vllm.plan: instance 'chat': port 0 is no port.", "instance 'chat': port 0 is no port."),
    "2.19 filter": (
        "Task failed: Finalization of task args for 'ansible.builtin.set_fact' failed: Error while resolving value for "
        "'_vllm_plans': The filter plugin 'gpufleet.vllm.plan' failed: gpufleet.vllm.plan: instance 'chat': no port.",
        "instance 'chat': no port.",
    ),
    "next command": ("no key. Next, where it can be reached: ansible-playbook x.yml", "no key."),
    "lines": ("first\n   second\n", "first second"),
}


@pytest.mark.parametrize(("message", "reason"), RESULTS.values(), ids=RESULTS)
def test_what_ansible_wraps_around_a_reason_is_left_out(message, reason):
    assert reason_of({"failed": True, "msg": message}) == reason


def test_of_a_loop_the_first_failure_counts():
    items = [{"msg": "fine"}, {"failed": True, "msg": "broken"}, {"failed": True, "msg": "broken too"}]
    assert reason_of({"failed": True, "msg": "One or more items failed", "results": items}) == "broken"


def test_a_long_reason_is_cut():
    assert len(reason_of({"msg": "word " * 200})) <= LONGEST


def test_a_failure_without_a_message_is_a_reason_too():
    assert reason_of({}) == "no message"

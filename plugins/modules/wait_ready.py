#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_ready
short_description: Follows the start of a vLLM engine until it serves or has failed
description:
  - Runs M(gpufleet.vllm.boot_info) on the host again and again and prints a line for each new phase of the start-up,
    with progress, such as C(gpu1) C(vllm-chat) C(loading weights, 7 of 30 shards).
  - Ends as soon as C(/health) answers. An engine that answers there may still fail its first request, so send one.
  - Stops at once when the unit fails, restarts, or logs a line that ends the engine. The message has the most probable
    cause, the line that proves it, what to change, and the next command.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode no engine was started, so there is none to wait for and the task is skipped.
  diff_mode:
    support: none
    details:
      - This action does not change anything.
options:
  name:
    description:
      - Name of the instance. Its unit is C(vllm-NAME.service).
    type: str
    required: true
  address:
    description:
      - Address on which the instance is published. For an address that means all of them, loopback is asked.
    type: str
    default: 127.0.0.1
  port:
    description:
      - Port on which the instance is published.
    type: int
    default: 8000
  member:
    description:
      - Whether the engine spans several hosts and this is one of them. O(address) and O(port) of a host that does not
        serve itself are those of the watcher C(vllm-members@NAME), who knows whether the engine serves as a whole.
      - An engine that was started anew in the meantime, as another member has ended, has failed. So has one that waits
        longer than two minutes for the others to begin their starts.
    type: bool
    default: false
  timeout:
    description:
      - Seconds to wait at most, from the beginning of the task on.
      - Without it each phase has a deadline of its own, and that of loading is computed from O(bytes_to_read).
    type: int
  bytes_to_read:
    description:
      - Size of the checkpoint in bytes, to know how long loading may take.
    type: int
  read_mib_per_second:
    description:
      - How fast the slowest disk in use reads, in MiB per second.
    type: int
    default: 100
  load_seconds:
    description:
      - Seconds that reading the weights takes by a measurement of the disk, as
        RV(gpufleet.vllm.checkpoint#module:checkpoint.load_seconds_estimate). Loading may last three times as long.
    type: float
    default: 0
  interval:
    description:
      - Seconds between two looks at the engine.
    type: float
    default: 3
  context:
    description:
      - What is known beside the log, to say what to change if the start fails. C(plan), C(instance) and C(hosts), see
        P(gpufleet.vllm.diagnose#filter).
    type: dict
    default: {}
seealso:
  - module: gpufleet.vllm.boot_info
  - plugin: gpufleet.vllm.diagnose
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Wait until the engine serves
  gpufleet.vllm.wait_ready:
    name: chat
    address: 10.0.0.7
    port: 8000
    bytes_to_read: "{{ checkpoint.weights.total_bytes }}"
    context:
      plan: "{{ plan }}"
  register: boot
"""

RETURN = r"""
unit:
  description: State of the systemd unit, see M(gpufleet.vllm.boot_info). If the start failed, that of the failure.
  returned: always
  type: dict
healthy:
  description: Whether C(/health) answered 200.
  returned: always
  type: bool
phase:
  description: The phase that the start-up reached, V(serving) if the task succeeded.
  returned: always
  type: str
progress:
  description: Progress within the phase, see M(gpufleet.vllm.boot_info).
  returned: always
  type: dict
measured:
  description: What vLLM measured, see M(gpufleet.vllm.boot_info).
  returned: always
  type: dict
log:
  description: The last lines of the log.
  returned: always
  type: str
ending:
  description:
    - How the start failed. V(failed), V(restarted), V(stopped), V(absent), or V(followed) of a member that was ended
      because another one had ended.
  returned: when the unit ended
  type: str
findings:
  description: The causes that the log shows, most probable first.
  returned: failure
  type: list
  elements: dict
"""

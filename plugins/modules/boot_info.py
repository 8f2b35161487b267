#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_info
short_description: Tells how far the start of a vLLM engine is and what vLLM measured
description:
  - Reads the systemd unit of an instance, the journal of its current activation, and C(/health).
  - Gives the phase of the start-up, with progress, and the figures that vLLM logged, such as the size of the KV cache.
  - Decides nothing. An engine that failed, or a unit that does not exist, is not a failure of the module.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
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
  health:
    description:
      - Whether to ask C(/health). An engine that spans hosts serves on its first host only.
    type: bool
    default: true
  health_timeout:
    description:
      - Seconds to wait for an answer of C(/health).
    type: float
    default: 3
  member:
    description:
      - Whether O(address) and O(port) are those of the watcher of an engine that spans hosts, C(vllm-members@NAME). It
        answers for the engine that runs, whatever its log says so far.
    type: bool
    default: false
  lines:
    description:
      - How many of the last lines of the log to return in RV(log).
    type: int
    default: 100
  invocation_id:
    description:
      - Read the journal of this activation of the unit, and not of the current one. See RV(unit).
    type: str
notes:
  - Needs Python 3.8 and systemd 236 on the host. Reading the journal needs C(become), or membership in the group
    C(systemd-journal).
seealso:
  - module: gpufleet.vllm.wait_ready
"""

EXAMPLES = r"""
- name: How far is the engine?
  gpufleet.vllm.boot_info:
    name: chat
    port: 8000
  register: boot

- name: Show the KV cache that vLLM measured
  ansible.builtin.debug:
    msg: "{{ boot.phase }}, {{ boot.measured.kv_tokens }} tokens of KV cache"
"""

RETURN = r"""
unit:
  description: State of the systemd unit.
  returned: always
  type: dict
  contains:
    name:
      description: Name of the unit.
      type: str
      sample: vllm-chat.service
    load_state:
      description: V(loaded), or V(not-found) where there is no such unit.
      type: str
    active_state:
      description: V(active), V(activating), V(inactive), V(failed) and so on, as systemd says.
      type: str
    sub_state:
      description: V(running), V(auto-restart), V(failed) and so on, as systemd says.
      type: str
    result:
      description: V(success), V(exit-code), V(signal), V(oom-kill), V(start-limit-hit) and so on, as systemd says.
      type: str
    exec_code:
      description: How the main process ended, V(exited), V(killed) or V(dumped); none if it did not.
      type: str
    exec_status:
      description: Exit code or signal of the main process.
      type: int
    n_restarts:
      description: How often systemd restarted the unit by itself since it was started.
      type: int
    invocation_id:
      description: ID of the current activation of the unit.
      type: str
    active_since:
      description: When the unit became active.
      type: str
    active_monotonic_us:
      description: The same in microseconds of the host's monotonic clock.
      type: int
healthy:
  description:
    - Whether C(/health) answered 200; none if it was not asked.
    - Who answers while the engine has not started its server is somebody else and does not count.
  returned: always
  type: bool
phase:
  description:
    - One of V(starting), V(loading weights), V(compiling), V(profiling), V(capturing graphs), V(warming up),
      V(serving), V(stopped), V(failed).
  returned: always
  type: str
  sample: loading weights
progress:
  description: Progress within the phase, C(done) of C(total) and C(percent); none if vLLM shows none.
  returned: always
  type: dict
  sample: {done: 7, total: 30, percent: 23}
measured:
  description:
    - What vLLM logged in this start. Sizes are GiB per GPU, times seconds. A figure that was not logged is none.
    - Of several ranks, RV(measured.kv_pool_gib) is the smallest and RV(measured.weights_gib) the largest.
  returned: always
  type: dict
  contains:
    version:
      description: Version of vLLM.
      type: str
    weights_gib:
      description: Memory that the weights take.
      type: float
    activation_gib:
      description: Peak of the activations in the profile run.
      type: float
    non_torch_gib:
      description: Memory that CUDA and NCCL take beside PyTorch.
      type: float
    cuda_graph_gib:
      description: Memory that the CUDA graphs took.
      type: float
    cuda_graph_estimate_gib:
      description: What vLLM estimated for the CUDA graphs before.
      type: float
    kv_pool_gib:
      description: Memory of the KV cache.
      type: float
    kv_tokens:
      description: Tokens that the KV cache holds.
      type: int
    max_concurrency:
      description: How many requests of C(max_model_len) tokens fit at once.
      type: float
    max_model_len:
      description: Longest request in tokens.
      type: int
    ranks:
      description: The same figures for each rank.
      type: dict
    binding_rank:
      description: The rank with the smallest KV pool.
      type: str
    warnings:
      description: What vLLM warned of, each once, as C(line) and C(line_number).
      type: list
      elements: dict
log:
  description: The last O(lines) lines of the log. Keys and tokens are made unreadable.
  returned: always
  type: str
errors:
  description: What could not be read, and why.
  returned: always
  type: list
  elements: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ..module_utils._boot_log import parse_boot_log
from ..module_utils._engine_unit import health_url, may_listen, phase_of, read_journal, read_unit
from ..module_utils._redaction import redact


def is_healthy(url, timeout):
    """Whether the engine answers 200."""
    try:
        return open_url(url, timeout=timeout, use_proxy=False).getcode() == 200
    except Exception:  # refused, reset, timed out, 503: the engine does not serve, whatever the reason
        return False


def boot_info(run, params):
    """Returns everything that the module returns. ``run`` runs a command, as ``AnsibleModule.run_command``."""
    unit = read_unit(run, "vllm-" + params["name"] + ".service")
    log, tail, error = read_journal(run, params["invocation_id"] or unit["invocation_id"], params["lines"])
    measured = parse_boot_log(log)
    logged_phase, progress = measured.pop("phase"), measured.pop("progress")
    healthy = None
    if params["health"]:
        url = health_url(params["address"], params["port"])
        # The watcher of a member knows which start it speaks of.
        ours = params.get("member") or may_listen(unit, logged_phase, measured["version"], time.monotonic())
        healthy = ours and is_healthy(url, params["health_timeout"])
    phase = phase_of(unit, logged_phase, healthy)
    return {
        "unit": unit,
        "healthy": healthy,
        "phase": phase,
        "progress": progress if phase == logged_phase else None,
        "measured": measured,
        "log": redact(tail),
        "errors": [f"The journal of {unit['name']} cannot be read: {error}"] if error else [],
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 8000},
            "health": {"type": "bool", "default": True},
            "health_timeout": {"type": "float", "default": 3},
            "member": {"type": "bool", "default": False},
            "lines": {"type": "int", "default": 100},
            "invocation_id": {"type": "str"},
        },
        supports_check_mode=True,
    )
    for command in ("systemctl", "journalctl"):
        module.get_bin_path(command, required=True)
    module.exit_json(changed=False, **boot_info(module.run_command, module.params))


if __name__ == "__main__":
    main()

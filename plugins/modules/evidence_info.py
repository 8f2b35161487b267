#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: evidence_info
short_description: Collects what tells why a vLLM engine failed, is slow or hangs
description:
  - Reads the journal of the current start and the archived failures of an instance, the state of its unit and
    container, its plan, receipt and ledger, and looks at C(/metrics) and C(/health) more than once.
  - Takes keys, tokens and passwords out before anything leaves the host.
  - Decides nothing. P(gpufleet.vllm.diagnose_evidence#filter) does.
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
  lines:
    description:
      - How many of the last lines of the journal to return, beside its start.
    type: int
    default: 4000
  samples:
    description:
      - How often to look at C(/metrics) of an engine that runs. One look cannot tell a busy engine from one that hangs.
    type: int
    default: 2
  interval:
    description:
      - Seconds between two looks.
    type: float
    default: 5
  request_timeout:
    description:
      - Seconds to wait for the answer to a real request, which C(/etc/vllm/NAME/smoke.sh) sends between the looks. An
        engine that hangs may still answer C(/health), and shows no request in C(/metrics).
      - With V(0) no request is sent.
    type: int
    default: 30
  timeout:
    description:
      - Seconds to wait for an answer of C(/metrics) and C(/health).
    type: float
    default: 5
  failures:
    description:
      - How many of the newest archived failures to return.
    type: int
    default: 2
notes:
  - Needs Python 3.8 and systemd 236 on the host, and C(become).
  - An engine whose C(/metrics) is not reached without a key, behind a proxy of the host for instance, gives no samples.
seealso:
  - module: gpufleet.vllm.boot_info
  - plugin: gpufleet.vllm.diagnose_evidence
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Collect what the host tells of an engine
  gpufleet.vllm.evidence_info:
    name: chat
    port: 8000
  register: evidence

- name: Show what is wrong
  gpufleet.vllm.show:
    text: "{{ [evidence | gpufleet.vllm.diagnose_evidence(host=inventory_hostname)]
              | gpufleet.vllm.explain_diagnoses }}"
"""

RETURN = r"""
name:
  description: Name of the instance.
  returned: always
  type: str
  sample: chat
unit:
  description: State of the systemd unit, as M(gpufleet.vllm.boot_info) returns it.
  returned: always
  type: dict
phase:
  description: Phase of the engine, as M(gpufleet.vllm.boot_info) returns it.
  returned: always
  type: str
  sample: serving
log:
  description: The journal of the current activation of the unit, of a very long one its start and its end.
  returned: always
  type: str
container:
  description: C(State), C(HostConfig), C(Image) and C(Args) of the container, or none where there is none.
  returned: always
  type: dict
samples:
  description: The looks at an engine that runs, each C(seconds) since the first, C(metrics) as text, and C(healthy).
  returned: always
  type: list
  elements: dict
request:
  description: What came of the request, C(rc) (V(124) for no answer in time), C(seconds) and C(output), or none.
  returned: always
  type: dict
failures:
  description:
    - The newest archived failures, newest first, each C(number) and C(files) by name (C(log), C(failure.json),
      C(inspect.json), C(plan.json) and so on).
  returned: always
  type: list
  elements: dict
files:
  description: C(plan.json), C(receipt.json) and C(ledger.jsonl) of the instance as text, as far as they are there.
  returned: always
  type: dict
host:
  description: Disks, memory, the kernel's words on GPUs and killed processes, C(nvidia-smi), as text by name of a file.
  returned: always
  type: dict
errors:
  description: What could not be read, and why.
  returned: always
  type: list
  elements: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ..module_utils._boot_log import parse_boot_log
from ..module_utils._engine_unit import health_url, phase_of, read_journal, read_unit
from ..module_utils._evidence import Instance, read_container, read_failures, read_files, read_host, secrets_of
from ..module_utils._redaction import redact


def get(url, timeout):
    """Returns (status, text), or (None, "") where nothing answers."""
    try:
        answer = open_url(url, timeout=timeout, use_proxy=False)
        return answer.getcode(), answer.read().decode("utf-8", "replace")
    except Exception:  # refused, reset, timed out, 401, 503: there is no sample, whatever the reason
        return None, ""


def look(health, timeout, began):
    """One look at an engine."""
    status, _text = get(health, timeout)
    code, metrics = get(health[: -len("health")] + "metrics", timeout)
    return {
        "seconds": round(time.monotonic() - began, 2),
        "metrics": metrics if code == 200 else None,
        "healthy": status == 200,
    }


def watch(run, params, smoke, secrets):
    """Returns (looks at an engine that runs, what came of a request between the first two)."""
    url, began, looks, request = health_url(params["address"], params["port"]), time.monotonic(), [], None
    for number in range(params["samples"]):
        if number == 1 and looks[0]["healthy"] and params["request_timeout"] and os.path.exists(smoke):
            request = send(run, smoke, params["request_timeout"], secrets)
        if number:
            time.sleep(max(0.0, number * params["interval"] - (time.monotonic() - began)))
        looks.append(look(url, params["timeout"], began))
    return looks, request


def send(run, smoke, timeout, secrets):
    """A real request to the engine, as the deployment sends it."""
    began = time.monotonic()
    rc, out, err = run(["timeout", str(timeout), smoke])
    return {"rc": rc, "seconds": round(time.monotonic() - began, 2), "output": redact(out + err, secrets)}


def evidence_info(run, params, root="/"):
    """Returns everything that the module returns. ``run`` runs a command, as ``AnsibleModule.run_command``."""
    instance = Instance(params["name"], root)
    secrets = secrets_of(instance)
    unit = read_unit(run, instance.container + ".service")
    log, _tail, error = read_journal(run, unit["invocation_id"], params["lines"])
    files, errors = read_files(instance, secrets)
    looks, request = [], None
    if unit["active_state"] == "active":
        looks, request = watch(run, params, os.path.join(instance.configuration, "smoke.sh"), secrets)
    phase = phase_of(unit, parse_boot_log(log)["phase"], looks[-1]["healthy"] if looks else None)
    if error:
        errors.append(f"The journal of {unit['name']} cannot be read: {error}")
    return {
        "name": params["name"],
        "unit": unit,
        "phase": phase,
        "log": redact(log, secrets),
        "container": read_container(run, instance, secrets),
        "samples": looks,
        "request": request,
        "failures": read_failures(instance, params["failures"], secrets),
        "files": files,
        "host": read_host(run, secrets),
        "errors": errors,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": 8000},
            "lines": {"type": "int", "default": 4000},
            "samples": {"type": "int", "default": 2},
            "interval": {"type": "float", "default": 5},
            "request_timeout": {"type": "int", "default": 30},
            "timeout": {"type": "float", "default": 5},
            "failures": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    for command in ("systemctl", "journalctl"):
        module.get_bin_path(command, required=True)

    def run(command):
        return module.run_command(command, handle_exceptions=False) if _there(module, command) else (127, "", "")

    module.exit_json(changed=False, **evidence_info(run, module.params))


def _there(module, command):
    """A host without Docker or nvidia-smi tells nothing of them. ``timeout`` runs what comes after its seconds."""
    program = command[2] if command[0] == "timeout" else command[0]
    return module.get_bin_path(program) is not None


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One deployment at a time on a host: the part that runs there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: deploy_lock
short_description: One deployment at a time on a host
description:
  - Holds C(/run/vllm/deploy.lock) for this run of C(ansible-playbook), from the task on until it is freed, whatever
    happens to the connection. It is gone after a reboot of the host.
  - Who holds it already holds it again without a change.
  - A lock whose C(ansible-playbook) ran on this controller and is gone is taken over, with a warning. What ran
    elsewhere cannot be known to be gone.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode it fails as it would, and changes nothing.
  diff_mode:
    support: none
options:
  state:
    description:
      - With V(held) this run holds the lock.
      - With V(free) this run does not hold it any more. The lock of another run stays.
    type: str
    choices: [held, free]
    default: held
  wait:
    description:
      - Seconds to wait for another run to end. With V(0) the task fails at once.
    type: int
    default: 0
  break_lock:
    description:
      - Take the lock from whoever holds it. Only when that run is known to be gone.
    type: bool
    default: false
  path:
    description:
      - The file.
    type: path
    default: /run/vllm/deploy.lock
  owner:
    description:
      - This run. Set by the action plugin of the same name.
    type: dict
  take_over:
    description:
      - The holder whose lock may be taken. Set by the action plugin of the same name.
    type: dict
notes:
  - Needs C(become), as everything that deploys.
seealso:
  - module: gpufleet.vllm.instance_release
"""

EXAMPLES = r"""
- name: Deploy, and nobody else
  block:
    - name: Hold the lock of the host
      gpufleet.vllm.deploy_lock:
        wait: 60
        break_lock: "{{ vllm_break_lock }}"

    - name: Deploy
      ansible.builtin.include_tasks: deploy.yml
  always:
    - name: Free the lock of the host
      gpufleet.vllm.deploy_lock:
        state: free
"""

RETURN = r"""
held:
  description: Whether this run holds the lock now; in check mode, whether it would.
  returned: always
  type: bool
holder:
  description: Who holds the lock; before the task, where it was taken over.
  returned: if there is one
  type: dict
  contains:
    controller:
      description: Host name of the machine that C(ansible-playbook) runs on.
      type: str
    pid_namespace:
      description: Where the process ID holds.
      type: str
    user:
      description: Who runs it.
      type: str
    pid:
      description: Process ID of C(ansible-playbook).
      type: int
    started:
      description: When that process was started, in a form that tells it from a later one of the same ID.
      type: str
    since:
      description: Since when the lock is held (UTC, clock of the host).
      type: str
taken_over:
  description: Whether the lock was another's.
  returned: always
  type: bool
"""

import contextlib
import datetime
import fcntl
import json
import os

from ansible.module_utils.basic import AnsibleModule


def hold(path, owner, take_over, check):
    """Returns {"changed", "held", "holder", "taken_over"}. Only the lock of exactly the holder take_over is taken."""
    holder = read_holder(path)
    if holder is None or (take_over is not None and holder == take_over):
        if not check:
            _write(path, dict(owner, since=_now()))
        return {"changed": True, "held": True, "holder": holder, "taken_over": holder is not None}
    return {"changed": False, "held": is_same(holder, owner), "holder": holder, "taken_over": False}


def free(path, owner, check):
    """Returns {"changed", "held", "holder", "taken_over"}."""
    holder = read_holder(path)
    own = holder is not None and is_same(holder, owner)
    if own and not check:
        os.unlink(path)
    return {"changed": own, "held": False, "holder": holder, "taken_over": False}


def is_same(holder, owner):
    """Whether both are the same run."""
    return all(holder.get(key) == owner[key] for key in ("controller", "pid_namespace", "pid", "started"))


def read_holder(path):
    """Who holds the lock, None if nobody does. Of a file that is no lock there is a holder without a name."""
    try:
        with open(path, encoding="utf-8") as file:
            holder = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _write(path, holder):
    unfinished = path + ".tmp"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(holder, file)
    os.rename(unfinished, path)


def _now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def alone(directory):
    """Between reading the file and writing it nobody else does."""
    os.makedirs(directory, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
            "wait": {"type": "int", "default": 0},
            "break_lock": {"type": "bool", "default": False},
            "path": {"type": "path", "default": "/run/vllm/deploy.lock"},
            "owner": {"type": "dict"},
            "take_over": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params, check = module.params, module.check_mode
    try:
        with contextlib.nullcontext() if check else alone(os.path.dirname(params["path"])):
            if params["state"] == "held":
                result = hold(params["path"], params["owner"], params["take_over"], check)
            else:
                result = free(params["path"], params["owner"], check)
    except OSError as error:
        module.fail_json(
            msg=f"The lock {params['path']} cannot be used: {error}. Deploying needs root on the host. Next: run it "
            "with become: true, and look at the folder: ls -ld " + os.path.dirname(params["path"])
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()

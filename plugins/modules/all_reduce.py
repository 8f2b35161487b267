#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: all_reduce
short_description: Adds up tensors over all GPUs of a vLLM engine that spans hosts
description:
  - Runs PyTorch's all-reduce through the image of the engine, on every host at once, with the network and the variables
    that the engine will have. It proves that NCCL connects the GPUs, and says how fast.
  - Where the image sees no GPU, it does the same between CPUs with Gloo.
  - The engine must not run, for its master port is used and memory of its GPUs.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode nothing is run.
  diff_mode:
    support: none
options:
  plan:
    description: The plan of the engine, as P(gpufleet.vllm.plan#filter) gives it.
    type: dict
    required: true
  image:
    description: What Docker on the host calls the image, if not as the plan does.
    type: str
    default: ""
  timeout:
    description: Seconds that it may take, with the start of the container.
    type: int
    default: 180
  command:
    description: The command. Set by the action plugin.
    type: list
    elements: str
    default: []
  folder:
    description: Folder for the script that the container runs. Set by the action plugin.
    type: path
"""

EXAMPLES = r"""
- name: Look at the network between the GPUs
  gpufleet.vllm.all_reduce:
    plan: "{{ plan }}"
  register: all_reduce

- name: Say how fast it is
  gpufleet.vllm.show:
    text: "{{ all_reduce.text }}"
  when: all_reduce.text | length > 0
"""

RETURN = r"""
text:
  description: The result in words, on the first host; empty on the others.
  returned: success
  type: str
measured:
  description:
    - On the first host, C(backend) (V(nccl) or V(gloo)), C(gpus), C(mebibytes), C(seconds) of one all-reduce and
      C(gigabytes_per_second), its bus bandwidth as nccl-tests compute it.
  returned: success
  type: dict
"""

import contextlib
import json
import os
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule

#: What runs in the container, once for each GPU. Bus bandwidth: bytes / time * 2 * (n - 1) / n, as in nccl-tests.
SCRIPT = """
import datetime, json, os, time
import torch
import torch.distributed as dist

MEBIBYTES, TIMES = 64, 5
cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=60))
ranks = dist.get_world_size()
tensor = torch.ones(MEBIBYTES * 2**18, dtype=torch.float32, device="cuda" if cuda else "cpu")
dist.all_reduce(tensor)
if float(tensor[0]) != ranks or float(tensor[-1]) != ranks:
    raise SystemExit(f"the sum over {ranks} ranks is {float(tensor[0])}")
if cuda:
    torch.cuda.synchronize()
began = time.perf_counter()
for _ in range(TIMES):
    dist.all_reduce(tensor)
if cuda:
    torch.cuda.synchronize()
seconds = (time.perf_counter() - began) / TIMES
if dist.get_rank() == 0:
    rate = MEBIBYTES * 2**20 * 2 * (ranks - 1) / ranks / seconds / 1e9
    told = {"backend": dist.get_backend(), "gpus": ranks, "mebibytes": MEBIBYTES, "seconds": round(seconds, 4)}
    print("MEASURED " + json.dumps({**told, "gigabytes_per_second": round(rate, 2)}), flush=True)
dist.destroy_process_group()
"""


def run(module):
    """(return code or None where the time is over, output)."""
    folder = module.params["folder"]
    os.makedirs(folder, mode=0o755, exist_ok=True)
    try:
        with open(os.path.join(folder, "all_reduce.py"), "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        done = subprocess.run(
            module.params["command"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=module.params["timeout"],
            check=False,
        )
        return done.returncode, done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as error:
        return None, (error.stdout or b"").decode("utf-8", "replace")
    finally:
        command = module.params["command"]
        container = command[command.index("--name") + 1]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["docker", "rm", "--force", container], capture_output=True, timeout=30, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def read_measured(output):
    """What rank 0 printed, or {}."""
    lines = [line.partition("MEASURED ")[2] for line in output.splitlines() if "MEASURED " in line]
    return json.loads(lines[-1]) if lines else {}


def in_words(plan, measured):
    """The result for a person."""
    if not measured:
        return ""
    how = "NCCL" if measured["backend"] == "nccl" else f"{measured['backend']}, as the image sees no GPU"
    return (
        f"all-reduce of {measured['mebibytes']} MiB over {measured['gpus']} ranks on {', '.join(plan['hosts'])}: "
        f"{measured['seconds'] * 1000:.1f} ms, {measured['gigabytes_per_second']:g} GB/s ({how})"
    )


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "image": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 180},
            "command": {"type": "list", "elements": "str", "default": []},
            "folder": {"type": "path"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, text="", measured={})
    code, output = run(module)
    if code != 0:
        name, seconds = module.params["plan"]["name"], module.params["timeout"]
        how = f"did not end within {seconds} s" if code is None else f"failed with code {code}"
        module.fail_json(
            msg=f"The all-reduce over the GPUs of {name} {how}; its last lines:\n"
            + "\n".join(output.splitlines()[-15:])
            + "\nNext: the same command with -e vllm_all_reduce=false goes on without it; "
            "environment NCCL_DEBUG: INFO of the instance says more."
        )
    measured = read_measured(output)
    module.exit_json(changed=False, text=in_words(module.params["plan"], measured), measured=measured)


if __name__ == "__main__":
    main()

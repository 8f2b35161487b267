#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_source
short_description: Have a model checkpoint where others can copy it from
description:
  - Runs on the host that a checkpoint comes from. Downloads it there if it comes from a hub, hashes its files,
    describes it, or hands it out to another host.
  - It is handed out by a process of its own, over HTTP, on the addresses that lead to the other host, to whoever knows
    the token. It gives no other file, and it ends when the copy is done or nobody has asked for 15 minutes.
  - The bytes cross the network in the clear. They cannot be exchanged on the way, because their hashes go through
    Ansible's own connection.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.checkpoint
attributes:
  check_mode:
    support: partial
    details:
      - In check mode nothing is downloaded, hashed or handed out; RV(manifest) has the hashes that are known.
  diff_mode:
    support: none
options:
  source:
    required: true
  state:
    description:
      - V(present) downloads and hashes it; what is known already is not read again.
      - V(described) describes it. Of a repository that was not downloaded, only the small files and the headers of the
        weights are fetched.
      - V(served) hands it out.
    type: str
    choices: [present, described, served]
    default: present
  to:
    description: Addresses of the host that gets it.
    type: list
    elements: str
    default: []
notes:
  - For a download, the Python there needs C(huggingface_hub) or C(modelscope).
seealso:
  - module: gpufleet.vllm.checkpoint
"""

EXAMPLES = r"""
- name: Hash the checkpoint where it is
  gpufleet.vllm.checkpoint_source:
    source: {path: /srv/models/Qwen3-8B}
  delegate_to: gpu1
  register: model

- name: Hand it out
  gpufleet.vllm.checkpoint_source:
    source: {path: /srv/models/Qwen3-8B}
    state: served
    to: [10.0.0.12]
  delegate_to: gpu1
  register: handed_out
  no_log: true

- name: Copy it
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    source: {path: /srv/models/Qwen3-8B, "on": gpu1}
    manifest: "{{ model.manifest }}"
    offer: "{{ handed_out.offer }}"
"""

RETURN = r"""
manifest:
  description: Every file with size and sha256, and one digest over all. Null in check mode before a download.
  returned: with O(state=present)
  type: dict
  sample:
    digest: 0c7c4a9b1f4d1ba7de9b3d8a5b3bb2f5e9d3c6d6a1f1b7c0a9a1f8a7c6b5d4e3
    total_bytes: 16381516776
    files: [{path: config.json, size: 728, sha256: 3f19d6cd7b6b5a0f6f2c1f3e7a4f3c5f, mtime_ns: 1767225600000000000}]
checkpoint:
  description: RV(gpufleet.vllm.checkpoint_info#module:checkpoint) of it.
  returned: with O(state=described)
  type: dict
offer:
  description: What O(gpufleet.vllm.checkpoint#module:offer) takes. It has a token, so register it with C(no_log).
  returned: with O(state=served)
  type: dict
job:
  description: How far the work is.
  returned: while it runs and O(wait=false)
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _checkpoint_host as checkpoints
from ..module_utils._checkpoint_manifest import state_folder
from ..module_utils._job import JobError, attend
from ..module_utils._transfer import TransferError, addresses_towards, serve


def run(module):
    """What the module returns. Raises: JobError."""
    source = {name: value for name, value in module.params["source"].items() if value is not None}
    place = checkpoints.source_here(source, module.params["hub_python"], module.params["hub_token"])
    if module.params["state"] == "served":
        return {"changed": False, "offer": {} if module.check_mode else offer(place, source, module.params["to"])}
    if module.params["state"] == "described":
        return outcome(module, "checkpoint_outline", place, lambda report: {"outline": place.outline(report)})
    known = checkpoints.manifest_without_hashing(place)
    if module.check_mode or (known and known["digest"]):
        return {"changed": False, "manifest": known}
    return outcome(module, "checkpoint_source", place, lambda report: {"manifest": place.have(report)})


def outcome(module, kind, place, work):
    """Has the work done as a job, which outlives this module."""
    key = checkpoints.job_key(kind, place.directory)
    job = attend(key, work, module.params["job"], module.params["wait"], state_folder("jobs"), interval=0.2)
    if job["state"] == "failed":
        raise JobError(job["error"], job["next"])
    if job["state"] != "done":
        return {"changed": False, "job": {name: job[name] for name in ("id", "state", "progress")}}
    if "outline" in job["result"]:
        return {"changed": False, "checkpoint": checkpoints.describe(job["result"]["outline"])}
    return {"changed": False, "manifest": job["result"]["manifest"]}


def offer(place, source, destinations):
    """The offer, or {"error"}: the result must not be shown, so a failure of this module would not be either."""
    listen = [source["transfer_address"]] if source.get("transfer_address") else addresses_towards(destinations)
    record = checkpoints.manifest_without_hashing(place) or {"files": []}
    files = {entry["path"]: os.path.join(place.directory, entry["path"]) for entry in record["files"]}
    try:
        return serve(files, listen, source["transfer_port"])
    except TransferError as error:
        return {"error": str(error)}


def main():
    module = AnsibleModule(
        argument_spec={
            "source": dict(checkpoints.SOURCE, required=True, required_one_of=[("path", "repository")]),
            "state": {"type": "str", "choices": ["present", "described", "served"], "default": "present"},
            "to": {"type": "list", "elements": "str", "default": []},
            "hub_python": {"type": "path"},
            "hub_token": {"type": "str", "no_log": True},
            "wait": {"type": "bool", "default": True},
            "job": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except JobError as error:
        module.fail_json(msg=str(error), next=error.next_step)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}.", next=f"ls -la {error.filename}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()

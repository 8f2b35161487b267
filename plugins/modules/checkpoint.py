#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint
short_description: Have a model checkpoint on a host, complete and verified
description:
  - Copies a checkpoint to a host from a directory of that host (such as an NFS mount), from the controller, or from
    another host that offers it (M(gpufleet.vllm.checkpoint_source)), or checks one that is there.
  - A copy grows beside O(path) and goes on where it stopped when it was interrupted. When each file has the size and
    the sha256 that it has where it comes from, the copy takes the place of what is at O(path) in one step. What was
    there is kept until O(state=pruned).
  - Free space is checked before anything is copied. A copy that fails leaves what is at O(path) as it was.
  - Files are hashed once. As long as sizes and times of modification stay, nothing is read again.
  - The work goes on when the connection is lost. Run again, the task follows it. Its progress is printed.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.checkpoint
attributes:
  check_mode:
    support: full
    details:
      - Files that were never hashed where they come from are compared by their sizes.
  diff_mode:
    support: full
options:
  path:
    description: Directory on the host in which the checkpoint must be.
    type: path
    required: true
  source:
    description:
      - If empty, it must be at O(path) already.
      - From another host it is copied with O(offer).
    default: {}
  state:
    description:
      - V(present) has the checkpoint at O(path).
      - V(described) changes nothing and describes the checkpoint as it will be, for planning.
      - V(restored) puts the checkpoint that was replaced last in its place again, or that with the manifest O(digest).
      - V(pruned) removes replaced checkpoints and partial copies.
    type: str
    choices: [present, described, restored, pruned]
    default: present
  verify:
    description: With an empty O(source), hash the checkpoint once, so that RV(checkpoint.manifest_digest) is known.
    type: bool
    default: false
  digest:
    description:
      - With O(state=restored), which checkpoint comes back, as RV(checkpoint.manifest_digest). One that is in place
        stays; one that is not kept beside it is an error.
    type: str
  manifest:
    description: Manifest of the checkpoint where it comes from, as M(gpufleet.vllm.checkpoint_source) returns it.
    type: dict
  offer:
    description: The offer of M(gpufleet.vllm.checkpoint_source) on the host that has the checkpoint.
    type: dict
    suboptions:
      urls:
        description: Addresses that it is handed out at.
        type: list
        elements: str
      token:
        description: Token of the offer.
        type: str
      pid:
        description: Process that hands it out.
        type: int
      error:
        description: Why it is not handed out.
        type: str
  step:
    description: A part of the work. Set by the action plugin while it copies from the controller.
    type: str
    choices: [all, begin, append, finish, abandon]
    default: all
  piece:
    description: The file, the offset and the temporary path of what the step V(append) adds. Set by the action plugin.
    type: dict
notes:
  - From the controller it is copied with C(rsync), where both have it and Ansible's connection is C(ssh); otherwise in
    pieces through Ansible's own connection, which is slower. Both go on where they stopped.
  - Nothing is needed on the hosts but Python.
seealso:
  - module: gpufleet.vllm.checkpoint_source
  - module: gpufleet.vllm.checkpoint_info
"""

EXAMPLES = r"""
- name: Copy a checkpoint from an NFS mount to the local disk
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    source:
      path: /mnt/nfs/models/Qwen3-8B

- name: Copy a checkpoint from the controller
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    source:
      path: ~/models/Qwen3-8B
      "on": controller

- name: Download a checkpoint on the controller, once, and copy it to every host
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    source:
      repository: Qwen/Qwen3-8B
      revision: b968826d9c46dd6066d109eabc6255188de91218
      "on": controller

- name: Go back to the checkpoint that was replaced
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    state: restored

- name: Remove what was replaced
  gpufleet.vllm.checkpoint:
    path: /srv/models/Qwen3-8B
    state: pruned
"""

RETURN = r"""
checkpoint:
  description:
    - With O(state=described), what RV(gpufleet.vllm.checkpoint_info#module:checkpoint) is, or null where only another
      host can tell.
    - Otherwise what is at O(path).
  returned: success
  type: dict
  contains:
    path:
      description: Directory of the checkpoint, links followed.
      returned: always
      type: str
    manifest_digest:
      description: One sha256 over all files, equal on every host that has the same. Null where not all are hashed.
      returned: always
      type: str
    bytes:
      description: Bytes of all files.
      returned: always
      type: int
    files:
      description: Number of files.
      returned: always
      type: int
    source:
      description: Where the files came from.
      returned: always
      type: dict
    disk:
      description: The disk, and what it reads, measured when the checkpoint was new there.
      returned: always
      type: dict
      sample:
        kind: local
        filesystem: ext4
        device: /dev/nvme0n1p2
        mount: /srv
        read_bytes_per_second: 3120000000
    load_seconds_estimate:
      description: Seconds that reading it takes at that rate.
      returned: always
      type: float
    python_files:
      description: Every Python file with its sha256. With C(trust_remote_code) each of them could run.
      returned: always
      type: list
      elements: dict
    previous:
      description: Directories that keep replaced checkpoints, the last one first.
      returned: always
      type: list
      elements: str
source_host:
  description: The host that has to be asked by M(gpufleet.vllm.checkpoint_source); then nothing was done yet.
  returned: when the checkpoint comes from another host, is not known to be in place, and there is no O(offer)
  type: str
addresses:
  description: Addresses of this host, for the host that hands out the checkpoint.
  returned: with RV(source_host)
  type: list
  elements: str
removed:
  description: Directories that were removed.
  returned: with O(state=pruned)
  type: list
  elements: str
job:
  description: How far the work is.
  returned: while it runs and O(wait=false)
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _checkpoint_host as checkpoints
from ..module_utils._checkpoint_host import SOURCE
from ..module_utils._checkpoint_manifest import state_folder
from ..module_utils._checkpoint_place import prune, refuse_incomplete, restore, would_restore
from ..module_utils._job import JobError, attend
from ..module_utils._transfer import addresses, withdraw

OFFER = {
    "urls": {"type": "list", "elements": "str"},
    "token": {"type": "str", "no_log": True},
    "pid": {"type": "int"},
    "error": {"type": "str"},
}


class Task:
    """One call of the module."""

    def __init__(self, module):
        self.module = module
        self.options = module.params
        self.path = os.path.realpath(module.params["path"])
        self.source = {name: value for name, value in (module.params["source"] or {}).items() if value is not None}
        self.wanted = module.params["manifest"]
        if self.wanted:
            # What the host that has it says of where that is holds there.
            self.wanted = dict(self.wanted, source=checkpoints.origin_of(self.source))

    def run(self):
        """What the module returns. Raises: JobError."""
        if self.options["state"] == "pruned":
            return self._pruned()
        if self.options["state"] == "restored":
            return self._restored()
        if self.options["state"] == "described":
            return self._described()
        return self._step() if self.options["step"] != "all" else self._present()

    def _pruned(self):
        if self.module.check_mode:
            kept = checkpoints.previous_of(self.path)
            return {"changed": bool(kept), "removed": kept, **self._facts()}
        removed = prune(self.path)
        return {"changed": bool(removed), "removed": removed, **self._facts()}

    def _restored(self):
        digest = self.options["digest"]
        if self.module.check_mode:
            return {"changed": would_restore(self.path, digest), **self._facts()}
        return {"changed": restore(self.path, digest), **self._facts()}

    def _described(self):
        """The description says where the checkpoint will be, not where it was read."""
        if self._is_elsewhere():
            if not checkpoints.is_pinned_here(self.path, self.source):
                return {"changed": False, "checkpoint": None}
            directory = self.path
        elif self.source.get("path") or self.source.get("repository"):
            place = checkpoints.source_here(self.source, self.options["hub_python"], self.options["hub_token"])
            directory = place.outline(lambda progress: None)
        else:
            directory = self.path
        return {"changed": False, "checkpoint": dict(checkpoints.describe(directory), path=self.path)}

    def _is_elsewhere(self):
        return self.source.get("on", "host") != "host"

    def _present(self):
        if not self.source.get("path") and not self.source.get("repository"):
            return self._must_be_there()
        if not self._is_elsewhere():
            return self._from_here()
        if self._is_in_place(self.wanted):
            return self._unchanged()
        if self.module.check_mode:
            return self._predicted(self.wanted)
        if not self.options["offer"]:
            return {"changed": False, "source_host": self.source["on"], "addresses": addresses(), "checkpoint": None}
        if self.options["offer"]["error"]:
            raise JobError(self.options["offer"]["error"], "Set transfer_address or transfer_port in checkpoint_source")
        try:
            told = self._do(self._fetch)
        except JobError:
            withdraw(self.options["offer"])
            raise
        if "job" not in told:
            # The job may have been that of an earlier call, with another offer.
            withdraw(self.options["offer"])
        return told

    def _is_in_place(self, wanted):
        """Whether there is nothing to do. A job that is followed is asked what it did, even if that is done."""
        if self.options["job"]:
            return False
        if checkpoints.is_pinned_here(self.path, self.source):
            return True
        is_known = bool(wanted and (wanted["digest"] or self.module.check_mode))
        return is_known and checkpoints.is_same(checkpoints.read_record(self.path), wanted)

    def _fetch(self, report):
        try:
            return checkpoints.copy_from_host(self.path, self.wanted, self.options["offer"], report)
        finally:
            withdraw(self.options["offer"])

    def _must_be_there(self):
        if not os.path.isdir(self.path):
            raise JobError(
                f"There is no checkpoint at {self.path}, and nothing says where it comes from.",
                f"Put it there, or set checkpoint_source of the instance; look with: ls -ld {self.path}",
            )
        refuse_incomplete(self.path, self.path)
        if self.options["verify"] and not self.module.check_mode:
            return self._do(lambda report: checkpoints.hash_in_place(self.path, report))
        return self._unchanged()

    def _from_here(self):
        place = checkpoints.source_here(self.source, self.options["hub_python"], self.options["hub_token"])
        known = checkpoints.manifest_without_hashing(place)
        if self._is_in_place(known):
            return self._unchanged()
        if self.module.check_mode:
            return self._predicted(known)
        return self._do(lambda report: checkpoints.copy_from_directory(self.path, place, report))

    def _step(self):
        step = self.options["step"]
        if step == "begin":
            return {"changed": False, **checkpoints.begin_push(self.path, self.wanted)}
        if step == "append":
            return {"changed": checkpoints.append(self.path, self.wanted, **self.options["piece"])}
        if step == "abandon":
            return checkpoints.abandon(self.path, self.wanted)
        return self._do(lambda report: checkpoints.finish_push(self.path, self.wanted, report))

    def _do(self, work):
        """Has the work done as a job, which outlives this module."""
        key = checkpoints.job_key("checkpoint", self.path)
        job = attend(key, work, self.options["job"], self.options["wait"], state_folder("jobs"), interval=0.2)
        if job["state"] == "failed":
            raise JobError(job["error"], job["next"])
        if job["state"] != "done":
            return {"changed": False, "job": {name: job[name] for name in ("id", "state", "progress")}}
        if job["result"].get("missing"):
            return {"changed": False, "missing": job["result"]["missing"]}
        before = job["result"].get("before")
        return {"changed": job["result"]["changed"], **self._difference(before, None), **self._facts()}

    def _difference(self, before, after):
        """The contents before and after, where they are asked for."""
        if not self.module._diff or before is None:
            return {}
        after = after or checkpoints.read_record(self.path)
        lines = [
            "{}: {} bytes, manifest {}\n".format(self.path, told["total_bytes"], told["digest"] or "not hashed")
            if told["files"]
            else ""
            for told in (before, after)
        ]
        return {"diff": {"before": lines[0], "after": lines[1]}}

    def _unchanged(self):
        return {"changed": False, **self._facts()}

    def _predicted(self, wanted):
        told = f"{self.path} {checkpoints.would_copy(self.path, wanted)}"
        facts = checkpoints.absent_facts(self.path, wanted)
        before = checkpoints.read_record(self.path)
        return {"changed": True, "msg": told, "checkpoint": facts, **self._difference(before, wanted)}

    def _facts(self):
        if not os.path.isdir(self.path):
            return {"checkpoint": None}
        facts, warnings = checkpoints.facts(self.path, may_write=not self.module.check_mode)
        for warning in warnings:
            self.module.warn(warning)
        return {"checkpoint": facts}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "source": dict(SOURCE, default={}),
            "state": {
                "type": "str",
                "choices": ["present", "described", "restored", "pruned"],
                "default": "present",
            },
            "verify": {"type": "bool", "default": False},
            "digest": {"type": "str"},
            "manifest": {"type": "dict"},
            "offer": {"type": "dict", "options": OFFER},
            "hub_python": {"type": "path"},
            "hub_token": {"type": "str", "no_log": True},
            "wait": {"type": "bool", "default": True},
            "job": {"type": "str"},
            "step": {
                "type": "str",
                "choices": ["all", "begin", "append", "finish", "abandon"],
                "default": "all",
            },
            "piece": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        result = Task(module).run()
    except JobError as error:
        module.fail_json(msg=str(error), next=error.next_step)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}.", next=f"ls -la {error.filename}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()

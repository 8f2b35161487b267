#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Describe a model checkpoint on a host and tell whether it is complete
description:
  - Reads the directory of a checkpoint, its C(config.json) and the headers of its safetensors files, and returns the
    shape of the model, the bytes of its weights by group, and what is missing or damaged.
  - Only headers are read, so a checkpoint of hundreds of GiB takes seconds. Nothing is changed, and no code of the
    checkpoint is run.
  - A directory without weights is described from C(config.json) alone; its weights are then counted from the shape.
author:
  - gpufleet maintainers (@gpufleet)
options:
  path:
    description:
      - Directory that holds C(config.json), or Mistral's C(params.json).
      - A Hugging Face cache folder (C(models--org--name)) is followed to the snapshot that its C(main) points to, else
        to the newest one. A folder of ModelScope is a plain directory.
    type: path
    required: true
  manifest:
    description:
      - File on the host that says what the checkpoint must consist of. Either what C(sha256sum) prints, or JSON, a list
        of objects with C(path), C(size) and C(sha256), alone or under C(files).
      - Files that are missing or have another size are findings. Hashes are compared only with O(hash=true).
    type: path
  hash:
    description:
      - Hash the files and compare them with O(manifest). Without one, a Hugging Face cache is compared with the names
        of its own files, which are their hashes.
      - Several files are hashed at once, in a job that goes on when the connection is lost. How far it is is printed.
    type: bool
    default: false
  wait:
    description: Return when the files are hashed. The action plugin sets it to follow the work.
    type: bool
    default: true
  job:
    description: The job that is followed. Set by the action plugin.
    type: str
extends_documentation_fragment:
  - gpufleet.vllm.attributes
  - gpufleet.vllm.attributes.info_module
seealso:
  - module: gpufleet.vllm.gpu_info
"""

EXAMPLES = r"""
- name: Describe a checkpoint
  gpufleet.vllm.checkpoint_info:
    path: /srv/models/Qwen3-8B
  register: model

- name: Stop where it would not load
  ansible.builtin.assert:
    that: model.checkpoint.complete
    fail_msg: "{{ model.checkpoint.findings | map(attribute='title') | join('; ') }}"

- name: Prove a copy against the hashes that were taken where it came from
  gpufleet.vllm.checkpoint_info:
    path: /srv/models/Qwen3-8B
    manifest: /srv/models/Qwen3-8B.sha256
    hash: true

- name: Describe a checkpoint in a Hugging Face cache
  gpufleet.vllm.checkpoint_info:
    path: /srv/huggingface/hub/models--Qwen--Qwen3-8B
"""

RETURN = r"""
checkpoint:
  description: The model as the planner takes it.
  returned: success
  type: dict
  contains:
    architecture:
      description: First architecture of C(config.json).
      returned: always
      type: str
      sample: Qwen3ForCausalLM
    known:
      description: Whether the family is described. If not, the layers are taken as Llama's and a warning says so.
      returned: for models
      type: bool
    task:
      description: One of V(generate), V(embed), V(classify), V(reward), V(transcribe).
      returned: for models
      type: str
    max_model_len:
      description: Longest context, in tokens, that the model is made for.
      returned: for models
      type: int
    layers:
      description: Runs of equal layers, each with C(count), C(attention), C(mlp) and C(tensors).
      returned: for models
      type: list
      elements: dict
    quantization:
      description: Method, bits, group size, schemes and what is left out; null for unquantised weights.
      returned: for models
      type: dict
    weights:
      description: Bytes and parameters, in all and by group; C(source) says whether they were read or counted.
      returned: for models
      type: dict
      sample: {source: safetensors, total_bytes: 16381470720, total_parameters: 8190735360}
    tokenizer:
      description: The tokenizer's files, and whether a chat template is there.
      returned: for models
      type: dict
    requires_trust_remote_code:
      description: Whether the checkpoint brings Python code.
      returned: for models
      type: bool
    remote_code:
      description: Python files that would run with C(trust_remote_code).
      returned: for models
      type: list
      elements: str
    python_files:
      description:
        - Every Python file of the checkpoint with its hash. With C(trust_remote_code) each of them could run, those of
          RV(checkpoint.remote_code) for certain.
      returned: for models
      type: list
      elements: dict
      sample: [{path: modeling_kimi.py, sha256: 5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef}]
    complete:
      description: Whether no finding has severity V(error).
      returned: always
      type: bool
    would_start_offline:
      description: Whether nothing would have to be fetched to start it, either.
      returned: for models
      type: bool
    findings:
      description: What is wrong with the checkpoint.
      returned: always
      type: list
      elements: dict
      contains:
        class:
          description: Class of the failure that it would lead to, as the diagnosis names it.
          returned: always
          type: str
        title:
          description: What is wrong.
          returned: always
          type: str
        evidence:
          description: Where it shows.
          returned: always
          type: str
        next:
          description: What to do.
          returned: always
          type: str
        severity:
          description: V(error) where the model would not load or would be wrong, V(warning) otherwise.
          returned: always
          type: str
    path:
      description: Directory that was read, after following a cache.
      returned: always
      type: str
    layout:
      description: V(directory), V(huggingface_cache) or V(modelscope).
      returned: always
      type: str
    revision:
      description: Snapshot of a Hugging Face cache.
      returned: always
      type: str
    files:
      description: Number of files, their bytes, and how many were hashed and are right.
      returned: for models
      type: dict
job:
  description: How far the hashing is.
  returned: while it runs and O(wait=false)
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._checkpoint import describe_checkpoint
from ..module_utils._checkpoint_host import job_key
from ..module_utils._checkpoint_manifest import state_folder
from ..module_utils._job import JobError, attend


def hashed(parameters):
    """What the module returns when files are hashed, which is a job: it may take minutes."""

    def work(report):
        try:
            return describe_checkpoint(parameters["path"], parameters["manifest"], True, report)
        except (ValueError, OSError) as error:
            raise JobError(str(error)) from None

    parameters = dict(parameters, path=os.path.abspath(parameters["path"]))
    key = job_key("checkpoint_info", parameters["path"])
    job = attend(key, work, parameters["job"], parameters["wait"], state_folder("jobs"), interval=0.2)
    if job["state"] == "failed":
        raise JobError(job["error"])
    if job["state"] != "done":
        return {"job": {name: job[name] for name in ("id", "state", "progress")}}
    return {"checkpoint": job["result"]}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "manifest": {"type": "path"},
            "hash": {"type": "bool", "default": False},
            "wait": {"type": "bool", "default": True},
            "job": {"type": "str"},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    try:
        if parameters["hash"]:
            result = hashed(parameters)
        else:
            result = {"checkpoint": describe_checkpoint(parameters["path"], parameters["manifest"])}
    except (JobError, ValueError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_share
short_description: Lets another host fetch an image from this one
description:
  - Saves an image of this host as an archive, or takes an archive that is there, and hands it out for a while, on this
    host's own addresses, to whoever knows a token that is made for this one time.
  - M(gpufleet.vllm.image) on the other host fetches it. The role P(gpufleet.vllm.vllm_image#role) does both.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
    details:
      - Nothing is shared in check mode.
  diff_mode:
    support: none
    details:
      - What is shared is gone afterwards.
options:
  name:
    description:
      - The image, as M(gpufleet.vllm.image) is given it. Its digest is compared.
    type: str
    required: true
  archive:
    description:
      - File on this host that C(docker save) made. Without it, the image is taken from Docker.
    type: path
  id:
    description:
      - Image ID that the image in O(archive) must have.
    type: str
  state:
    description:
      - V(absent) ends it and removes the archive that was made for it.
    type: str
    choices: [present, absent]
    default: present
  addresses:
    description:
      - Own addresses to hand the archive out on. If empty, all but loopback and those of container networks.
    type: list
    elements: str
    default: []
  port:
    description:
      - Port for it; any that is free with V(0).
    type: int
    default: 0
  offer:
    description:
      - RV(offer) that ends with O(state=absent).
    type: dict
  wait:
    description:
      - Whether to return only when the archive is written. The action plugin waits in any case.
    type: bool
    default: true
  job:
    description:
      - RV(job) that is followed. Used by the action plugin.
    type: str
seealso:
  - module: gpufleet.vllm.image
"""

EXAMPLES = r"""
- name: Let other hosts fetch the image
  gpufleet.vllm.image_share:
    name: vllm/vllm-openai:v0.32.0
  delegate_to: gpu1
  register: share

- name: Fetch it
  gpufleet.vllm.image:
    name: vllm/vllm-openai:v0.32.0
    source:
      from_host: gpu1
    offer: "{{ share.offer }}"

- name: End it
  gpufleet.vllm.image_share:
    name: vllm/vllm-openai:v0.32.0
    state: absent
    offer: "{{ share.offer }}"
  delegate_to: gpu1
"""

RETURN = r"""
offer:
  description: For M(gpufleet.vllm.image). It holds the token, which is of no use when the archive was fetched.
  returned: with O(state=present)
  type: dict
job:
  description: The job that writes the archive, while it runs.
  returned: if an archive had to be written
  type: dict
"""

import contextlib
import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _docker_archive as archives
from ..module_utils import _docker_cache as cache
from ..module_utils import _docker_get as getting
from ..module_utils import _docker_image as images
from ..module_utils import _docker_space as space
from ..module_utils import _job as jobs
from ..module_utils import _transfer as transfer
from ..module_utils._docker_engine import DockerError, Engine


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "id": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 0},
            "offer": {"type": "dict"},
            "wait": {"type": "bool", "default": True},
            "job": {"type": "str"},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, skipped=True)
    try:
        end_or_share = end if module.params["state"] == "absent" else share
        module.exit_json(**end_or_share(module.params))
    except jobs.JobError as error:
        module.fail_json(msg=str(error), next=error.next_step)
    except DockerError as error:
        module.fail_json(msg=str(error), next="systemctl status docker")
    except (ValueError, transfer.TransferError) as error:
        module.fail_json(msg=str(error), next="correct the variable")


def share(params):
    """Returns what the module returns when it shares an image."""
    reference = images.parse(params["name"])
    if params["archive"]:
        return _hand_out(params, reference, params["archive"], is_made_for_it=False)
    engine = Engine()
    image, _tagged = images.find(engine, reference, record=images.read_record(params["name"]))
    if image is None:
        raise jobs.JobError(
            f"{params['name']} is not on this host, or not with that digest, so no other can have it from here.",
            "docker image ls --digests",
        )
    path = cache.path_of("shared-" + image["Id"].partition(":")[2])
    if not os.path.exists(path):
        work = _saving(engine, reference, image, path)
        outcome = jobs.attend(f"image-save-{image['Id']}", work, params["job"], params["wait"])
        if outcome["state"] == "failed":
            raise jobs.JobError(outcome["error"], outcome["next"])
        if outcome["state"] != "done":
            return {"changed": False, "job": {name: outcome[name] for name in ("id", "state", "progress")}}
    return _hand_out(params, reference, path, is_made_for_it=True)


def end(params):
    """Ends the process that hands the archive out, and removes the archive if it was made for it."""
    offer = params["offer"]
    if offer:
        transfer.withdraw(offer)
        if offer["is_made_for_it"]:
            with contextlib.suppress(OSError):
                os.unlink(cache.path_of(offer["key"]))
    return {"changed": False}


def _saving(engine, reference, image, path):
    def work(report):
        try:
            os.makedirs(cache.FOLDER, mode=0o755, exist_ok=True)
            space.require_room([(cache.FOLDER, image.get("Size"))], f"saving {reference.tagged}")
            with open(path + ".part", "wb") as archive:
                # By its tag, so that the archive says what it holds.
                for block in engine.blocks("/images/get", {"names": reference.tagged}):
                    archive.write(block)
                    told = {"done_bytes": archive.tell(), "total_bytes": image.get("Size")}
                    report({"phase": "saving", **told})
            os.replace(path + ".part", path)
        except OSError as error:
            raise cache.failure(path, error) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path + ".part")
        return {}

    return work


def _hand_out(params, reference, path, is_made_for_it):
    try:
        size, written = os.path.getsize(path), int(os.path.getmtime(path))
        compressed = archives.compression(path)
    except OSError as error:
        raise jobs.JobError(f"{path} cannot be read: {error.strerror}.", f"ls -l {path}") from error
    content = None if compressed else getting.choose(path, archives.read_archive(path), reference, params["id"])
    addresses = params["addresses"] or transfer.addresses()
    offer = transfer.serve({cache.OFFERED: path}, addresses, params["port"])
    name = os.path.basename(path)[: -len(".tar")] if is_made_for_it else os.path.basename(path)
    # A copy that broke off goes on only with the very archive that it began with.
    key = name if is_made_for_it else f"{name}-{size}-{written}"
    offer.update(size=size, key=key, is_made_for_it=is_made_for_it, id=content.id if content else None)
    return {"changed": False, "offer": offer}


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image
short_description: Has a pinned image on a host
description:
  - Pulls an image from its registry or a mirror, or loads it from an archive, unless it is there, and prints how far
    it is, such as C(gpu1) C(downloading, 43 %, 4.1 GiB of 9.6 GiB, 52 MiB/s, 1:48 left).
  - The work goes on when the connection or the controller is lost. Run again, it follows what runs, and takes up what
    broke off.
  - The digest of the name, or O(source.id), is compared with the image. The tag means a new image only after that; a
    wrong image, a full disk or a registry that does not answer leaves everything as it was, and containers that run
    are never touched.
  - Free space is compared with what the image takes before anything is pulled.
  - Only Docker is supported, not Podman.
author:
  - gpufleet maintainers (@gpufleet)
extends_documentation_fragment:
  - gpufleet.vllm.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
options:
  name:
    description:
      - The image, C(REPOSITORY:TAG), and best its digest, C(@sha256:...).
    type: str
    required: true
  source:
    description:
      - Where the image comes from if it is not there. If empty, from the registry in its name.
      - Credentials are those of C(docker login) on the host.
    type: dict
    default: {}
    suboptions:
      mirror:
        description:
          - Registry that has the same images, such as V(registry.example:5000), perhaps with a folder. The image gets
            its name from O(name) all the same.
        type: str
      archive:
        description:
          - File that C(docker save) made, plain or compressed.
        type: path
      "on":
        description:
          - Where the archive is. V(host) is the host itself, also for a file on NFS, V(controller) the machine that
            runs Ansible.
          - The name of another host of the inventory works with the role P(gpufleet.vllm.vllm_image#role).
          - Write it with quotes, C("on"); without them YAML takes the word for V(true).
        type: str
        default: host
      from_host:
        description:
          - Name of a host of the inventory that has the image. Works with the role P(gpufleet.vllm.vllm_image#role).
        type: str
      id:
        description:
          - Image ID that the image must have, as C(docker image inspect) shows it. It proves an image that comes from
            an archive, of which Docker knows no digest.
        type: str
      transfer_address:
        description:
          - Address of the other host that the image comes from, if not all of its own. Used by the role.
        type: str
      transfer_port:
        description:
          - Port of the other host that the image comes from, if not any that is free. Used by the role.
        type: int
        default: 0
  image_gib:
    description:
      - GiB that the image takes on Docker's disk until it is there. With V(0) it is computed from the size of the
        archive, from what the registry tells, or else from the size of C(vllm/vllm-openai).
    type: float
    default: 0
  prune:
    description:
      - Remove other images of the same repository. Those of containers, of plans on the host (current, or kept for a
        rollback) and of O(keep) stay, and those that have a name in another repository.
    type: bool
    default: false
  keep:
    description:
      - Names of images that O(prune) leaves alone, beside those that this module brought or found in this run.
    type: list
    elements: str
    default: []
  offer:
    description:
      - RV(gpufleet.vllm.image_share#module:offer) of the host that the image comes from.
    type: dict
  upload:
    description:
      - A part of the archive on the controller. Used by the action plugin.
    type: dict
    suboptions:
      key:
        description: What the archive is known by on the host.
        type: str
        required: true
      size:
        description: Bytes of the archive.
        type: int
        required: true
      part:
        description: File on the host with the bytes from O(upload.offset) on. Without it, only RV(received) is told.
        type: path
      offset:
        description: Where the part belongs.
        type: int
        default: 0
      sha256:
        description: SHA-256 of the part.
        type: str
  uploaded:
    description:
      - O(upload.key) of an archive that is there. Used by the action plugin.
    type: str
  wait:
    description:
      - Whether to return only when the image is there. The action plugin waits in any case.
    type: bool
    default: true
  job:
    description:
      - RV(job) that is followed. Used by the action plugin.
    type: str
seealso:
  - module: gpufleet.vllm.image_share
"""

EXAMPLES = r"""
- name: Have the image
  gpufleet.vllm.image:
    name: vllm/vllm-openai:v0.32.0

- name: Have it from a mirror, and remove older ones that nothing needs
  gpufleet.vllm.image:
    name: vllm/vllm-openai:v0.32.0@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
    source:
      mirror: registry.example:5000
    prune: true

- name: Have it from an archive on the controller
  gpufleet.vllm.image:
    name: vllm/vllm-openai:v0.32.0
    source:
      archive: /srv/images/vllm-openai-v0.32.0.tar
      "on": controller
      id: sha256:fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210
"""

RETURN = r"""
image:
  description: The image; none in check mode if it is not there.
  returned: success
  type: dict
  contains:
    id:
      description: Image ID.
      type: str
    digests:
      description: Digests by which it was pulled; none for an image from an archive.
      type: list
      elements: str
    size_bytes:
      description: Unpacked size.
      type: int
    reference:
      description: C(REPOSITORY:TAG), which means this image on this host. For C(docker run).
      type: str
    architecture:
      description: Architecture of the image.
      type: str
    fingerprint:
      description: Equal for equal images on hosts whose image stores give them different IDs.
      type: str
ansible_facts:
  description:
    - C(vllm_image_facts), a dictionary with RV(image) of every image of this run by O(name).
  returned: success
  type: dict
pruned:
  description: Images that were removed, or would be in check mode, with C(id), C(names) and C(size_bytes).
  returned: if O(prune)
  type: list
  elements: dict
transfer:
  description: Host from which the image must be brought with M(gpufleet.vllm.image_share).
  returned: if the image is on another host and O(offer) is missing
  type: str
received:
  description: Bytes of the archive that the host has.
  returned: with O(upload)
  type: int
job:
  description: The job that brings the image, with C(id), C(state) and C(progress). The action plugin waits for its end.
  returned: while it runs, with O(wait=false)
  type: dict
findings:
  description: The causes that the message of a failure shows, most probable first.
  returned: failure
  type: list
  elements: dict
"""

import hashlib
import json

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _docker_cache as cache
from ..module_utils import _docker_get as getting
from ..module_utils import _docker_image as images
from ..module_utils import _docker_prune as pruning
from ..module_utils import _job as jobs
from ..module_utils._docker_engine import DockerError, Engine

_GIB = 1 << 30


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "source": {
                "type": "dict",
                "default": {},
                "options": {
                    "mirror": {"type": "str"},
                    "archive": {"type": "path"},
                    "on": {"type": "str", "default": "host"},
                    "from_host": {"type": "str"},
                    "id": {"type": "str"},
                    "transfer_address": {"type": "str"},
                    "transfer_port": {"type": "int", "default": 0},
                },
                "mutually_exclusive": [("mirror", "archive", "from_host")],
            },
            "image_gib": {"type": "float", "default": 0},
            "prune": {"type": "bool", "default": False},
            "keep": {"type": "list", "elements": "str", "default": []},
            "offer": {"type": "dict"},
            "upload": {
                "type": "dict",
                "options": {
                    "key": {"type": "str", "required": True, "no_log": False},
                    "size": {"type": "int", "required": True},
                    "part": {"type": "path"},
                    "offset": {"type": "int", "default": 0},
                    "sha256": {"type": "str"},
                },
            },
            "uploaded": {"type": "str"},
            "wait": {"type": "bool", "default": True},
            "job": {"type": "str"},
        },
        supports_check_mode=True,
    )
    try:
        if module.params["upload"]:
            module.exit_json(changed=True, received=cache.receive(Engine(), **module.params["upload"]))
        result = Image(Engine(), module.params, module.check_mode).have()
        for warning in result.pop("warnings", []):
            module.warn(warning)
        module.exit_json(**result)
    except jobs.JobError as error:
        module.fail_json(msg=str(error), next=error.next_step)
    except DockerError as error:
        module.fail_json(msg=str(error), next="systemctl status docker")
    except ValueError as error:
        module.fail_json(msg=str(error), next="correct the variable")


class Image:
    """The image that is wanted, and what it takes to have it."""

    def __init__(self, engine, params, check_mode):
        self._engine, self._params, self._check_mode = engine, params, check_mode
        self._source = params["source"]
        self._reference = images.parse(params["name"])
        self._record = images.read_record(params["name"])
        self._offer = params["offer"] or {}
        self._expected_id = self._source.get("id") or self._offer.get("id")

    def have(self):
        """Returns what the module returns."""
        right, tagged = self._find()
        before = self._told(tagged)
        # A job that is followed has the word: it may be about to take back what it brought.
        if right is None or self._params["job"]:
            result = self._bring(before)
        elif tagged and tagged["Id"] == right["Id"]:
            result = {"changed": False}
        else:
            result = self._rename(before, right)
        if "image" not in result:
            result = self._finish(result)
        if self._params["prune"] and (result["image"] or self._check_mode):
            self._prune(result)
        return result

    def _find(self):
        return images.find(self._engine, self._reference, self._expected_id, self._record)

    def _rename(self, before, right):
        if not self._check_mode:
            self._engine.tag(right["Id"], self._reference.repository, self._reference.tag)
        return self._change(before, f"{self._reference.tagged} means {right['Id']} again", right)

    def _bring(self, before):
        self._refuse_what_cannot_be_proven()
        if self._check_mode:
            return {**self._change(before, f"would be {self._way()}"), "image": None}
        place = self._place()
        if place not in ("here", None):
            return {"changed": False, "transfer": place, "image": None}
        outcome = jobs.attend(self._key(), self._work(), self._params["job"], self._params["wait"])
        if outcome["state"] == "failed":
            raise jobs.JobError(outcome["error"], outcome["next"])
        if outcome["state"] != "done":
            told = {name: outcome[name] for name in ("id", "state", "progress")}
            return {**self._change(before, self._way()), "job": told, "image": None}
        return self._change(before, self._way())

    def _finish(self, result):
        """The image is there: tells what it is, and records it."""
        self._record = images.read_record(self._params["name"])
        right, _tagged = self._find()
        if right is None:
            raise jobs.JobError(f"{self._params['name']} is not there any more.", "docker image ls --digests")
        warnings = self._moved(right)
        if not self._check_mode:
            images.write_record(self._params["name"], right)
        return {**result, "image": images.facts(right, self._reference), "warnings": warnings}

    def _moved(self, right):
        recorded = self._record.get("id")
        if recorded in (None, right["Id"]) or self._reference.digest:
            return []
        return [
            f"{self._reference.tagged} was {recorded} on this host and is {right['Id']} now: the tag was moved. "
            "A digest in the name (@sha256:...) keeps an image what it is."
        ]

    def _prune(self, result):
        found, warnings = [], result.setdefault("warnings", [])
        try:
            found = pruning.removable(self._engine, self._reference, self._params["keep"])
        except ValueError as error:
            warnings.append(f"Nothing was pruned: {error}.")
        if not self._check_mode:
            found, problems = pruning.prune(self._engine, found)
            warnings += problems
        result.update(pruned=found, changed=result["changed"] or bool(found))
        if found:
            names = "".join(f"{', '.join(image['names'])} {image['id']}\n" for image in found)
            diff = result.get("diff", {"before": "", "after": ""})
            result["diff"] = {**diff, "before": diff["before"] + names}

    # --- where it comes from

    def _place(self):
        """Where the archive is: "here", "controller" or the name of a host; None for a registry."""
        if self._offer or self._params["uploaded"]:
            return "here"
        if self._source.get("archive"):
            return "here" if self._source["on"] == "host" else self._source["on"]
        return self._source.get("from_host")

    def _way(self):
        source = self._source
        if source.get("archive"):
            return f"loaded from {source['archive']} on {'the host' if source['on'] == 'host' else source['on']}"
        if source.get("from_host"):
            return f"copied from {source['from_host']}"
        reference = self._reference.at(source["mirror"]) if source.get("mirror") else self._reference
        return f"pulled from {reference.registry}"

    def _refuse_what_cannot_be_proven(self):
        """Of an archive Docker knows no digest: a digest that nobody can compare pins nothing."""
        if self._reference.digest and self._source.get("archive") and not self._expected_id:
            raise jobs.JobError(
                f"{self._params['name']} pins a digest, which an archive does not prove. vllm_image_source needs the "
                "image's ID beside the archive, as id.",
                "where the registry can be reached: docker pull "
                f"{self._reference.repository}@{self._reference.digest} && docker image inspect "
                f"--format {{{{.Id}}}} {self._reference.repository}@{self._reference.digest}",
            )

    def _key(self):
        # Not of the offer's token and port, which are new each time: a copy that goes on is the same one.
        asked = [self._params["name"], self._source, self._params["uploaded"], self._offer.get("id")]
        mark = hashlib.sha256(json.dumps(asked, sort_keys=True).encode("utf-8")).hexdigest()[:12]
        return f"image-{self._reference.tagged}-{mark}"

    def _work(self):
        name, reference, engine = self._params["name"], self._reference, self._engine
        needed, expected_id = int(self._params["image_gib"] * _GIB) or None, self._expected_id
        source, offer, uploaded = self._source, self._offer, self._params["uploaded"]

        def work(report):
            if offer:
                path = cache.fetch(engine, offer, report)
            else:
                path = cache.path_of(uploaded) if uploaded else source.get("archive")
            if not path:
                result = getting.pull(engine, reference, report, source.get("mirror"), expected_id, needed)
            else:
                with cache.removing(path if offer or uploaded else None):
                    result = getting.load(engine, reference, path, report, expected_id, needed)
            images.write_record(name, engine.image(result["id"]), result["proven"])
            return result

        return work

    def _told(self, image):
        return f"{self._reference.tagged} {image['Id']}\n" if image else ""

    def _change(self, before, msg, image=None):
        after = self._told(image) if image else f"{self._reference.tagged}, {msg}\n"
        return {"changed": True, "msg": msg, "diff": {"before": before, "after": after}}


if __name__ == "__main__":
    main()

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has an image on a host and prints how far it is; documented beside the module of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from ..plugin_utils._diagnosis import diagnose
from ..plugin_utils._follow import Follower
from ..plugin_utils._upload import Upload, UploadError

_MODULE = "gpufleet.vllm.image"
_FACTS = "vllm_image_facts"


class ActionModule(ActionBase):
    """Follows the job on the host; brings it the archive first, where that is on the controller."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        self._host = str(self._task_vars.get("inventory_hostname", "host"))
        self._known = (self._task_vars.get("ansible_facts") or {}).get(_FACTS) or {}
        arguments = self._localized(dict(self._task.args))
        # Instances of one host may need different images of one repository.
        arguments["keep"] = [*(arguments.get("keep") or []), *self._known]
        # The digest would take the room of the figures.
        subject = "image " + str(arguments.get("name")).partition("@")[0]
        follower = Follower(self, _MODULE, self._task_vars, subject)
        told = follower.follow(arguments)
        diff = follower.first.get("diff")
        if told.get("transfer") == "controller":
            told = self._upload(follower, arguments)
        if told.get("failed"):
            return {**result, **self._failure(told)}
        if diff and told.get("changed") and "pruned" not in told:
            told["diff"] = diff
        return {**result, **self._with_facts(told, str(arguments["name"]))}

    def _localized(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """An archive on the very host that needs it is not on another one."""
        source = dict(arguments.get("source") or {})
        if source.get("archive") and source.get("on") == self._host:
            source["on"] = "host"
        return {**arguments, "source": source}

    def _upload(self, follower: Follower, arguments: dict[str, Any]) -> dict[str, Any]:
        path = Path(arguments["source"]["archive"]).expanduser()
        if not path.is_file():
            msg = f"there is no archive {path.resolve()} on the controller"
            return {"failed": True, "msg": msg, "next": "correct archive of vllm_image_source, or where it is (on)"}
        try:
            return follower.follow({**arguments, "uploaded": Upload(self, follower, arguments, path).send()})
        except UploadError as error:
            return error.told

    def _failure(self, told: dict[str, Any]) -> dict[str, Any]:
        message = str(told.get("msg", "")).rstrip(".")
        advice = f". Next: {told['next']}" if told.get("next") else "."
        # What is diagnosed are logs of vLLM: a full disk is the one cause that both have.
        findings = [finding for finding in diagnose(message, {}) if finding["class"] == "disk_full"]
        return {**told, "msg": f"{self._host}: {message}{advice}", "findings": findings}

    def _with_facts(self, told: dict[str, Any], name: str) -> dict[str, Any]:
        known = {name: told["image"]} if told.get("image") else {}
        return {**told, "ansible_facts": {_FACTS: {**self._known, **known}}}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has a checkpoint on a host and shows how far that is; documented beside the module of the same name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils import _checkpoint_host as checkpoints
from ..module_utils._checkpoint_manifest import state_folder
from ..module_utils._job import JobError, attend
from ..plugin_utils import _checkpoint_push as pushing
from ..plugin_utils._follow import Follower, Progress

_MODULE = "gpufleet.vllm.checkpoint"
_FACTS = "vllm_model_facts"
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_BEFORE_FOLLOWING = 5.0
# The second time brings only files that arrived damaged.
_PUSHES = 2

Work = Callable[[Callable[[dict[str, Any]], None]], dict[str, Any]]


class ActionModule(ActionBase):
    """Runs the module, follows its job, and does what only the controller can: read and send its own files."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self._task_vars = task_vars or {}
        self._host = str(self._task_vars.get("inventory_hostname", "host"))
        self._arguments = dict(self._task.args)
        self._source = self._source_for_the_host(dict(self._arguments.get("source") or {}))
        self._arguments["source"] = self._source
        subject = "checkpoint " + os.path.basename(str(self._arguments.get("path", "")).rstrip("/"))
        self._follower = Follower(self, _MODULE, self._task_vars, subject)
        try:
            told = self._told()
        except JobError as error:
            told = {"failed": True, "msg": str(error), "next": error.next_step}
        return {**result, **self._with_facts(self._readable(told))}

    def _with_facts(self, told: dict[str, Any]) -> dict[str, Any]:
        """What is known of the checkpoint, for whoever deploys with it: one fact for all checkpoints of the host."""
        is_there = self._arguments.get("state", "present") == "present" and told.get("checkpoint")
        if told.get("failed") or not is_there:
            return told
        before = (self._task_vars.get("ansible_facts") or {}).get(_FACTS) or {}
        known = {**told["checkpoint"], "changed": bool(told.get("changed"))}
        return {**told, "ansible_facts": {_FACTS: {**before, str(self._arguments["path"]): known}}}

    def _source_for_the_host(self, source: dict[str, Any]) -> dict[str, Any]:
        if source.get("on") == self._host:
            source["on"] = "host"
        if source.get("on") == "controller" and source.get("path"):
            working_directory = os.environ.get("PWD") or os.getcwd()
            source["path"] = os.path.join(working_directory, os.path.expanduser(str(source["path"])))
        return source

    def _told(self) -> dict[str, Any]:
        if self._source.get("on") != "controller" or self._arguments.get("state", "present") in ("restored", "pruned"):
            return self._follow()
        if self._arguments.get("state") == "described":
            return self._described_on_controller()
        return self._from_controller()

    def _readable(self, told: dict[str, Any]) -> dict[str, Any]:
        """Which host, what is wrong, what comes next: in one message."""
        if told.get("failed") and told.get("next"):
            told = {**told, "msg": f"{self._host}: {told['msg']} Next: {told['next']}"}
        return told

    # --- the checkpoint is on the controller, or is downloaded there

    def _place(self) -> Any:
        return checkpoints.source_here(
            self._source, self._arguments.get("hub_python"), self._arguments.get("hub_token")
        )

    def _described_on_controller(self) -> dict[str, Any]:
        told = self._follow()
        if told.get("failed") or told.get("checkpoint"):
            return told
        place = self._place()
        done = self._locally("checkpoint_outline", place, lambda report: {"directory": place.outline(report)})
        return {**told, "checkpoint": {**checkpoints.describe(done["directory"]), "path": self._arguments["path"]}}

    def _from_controller(self) -> dict[str, Any]:
        place = self._place()
        known = checkpoints.manifest_without_hashing(place)
        is_known = bool(known and (known["digest"] or self._task.check_mode))
        told = self._follow(manifest=known if is_known else None)
        if "source_host" not in told:
            return told
        if not is_known:
            known = self._locally("checkpoint_source", place, place.have)
            told = self._follow(manifest=known)
        return self._push(place.directory, known) if "source_host" in told else told

    def _locally(self, kind: str, place: Any, work: Work) -> dict[str, Any]:
        """Does the work in a job on the controller. Where several hosts want it at once, it is done once."""
        key = checkpoints.job_key(kind, place.directory)
        progress = Progress()
        followed = None
        while True:
            job = attend(key, work, followed, False, state_folder("jobs"))
            if job["state"] == "failed":
                raise JobError(f"On the controller: {job['error']}", job["next"])
            if job["state"] == "done":
                return dict(job["result"])
            line = progress.line(job["progress"], time.monotonic())
            if line:
                self._follower.say(f"controller: {line}")
            followed = job["id"]
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _push(self, directory: str, wanted: dict[str, Any] | None) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for _attempt in range(_PUSHES):
            begun = self._begin(wanted)
            while not begun.get("failed") and begun["partial"] and not self._bring(directory, wanted, begun):
                time.sleep(_SECONDS_BEFORE_FOLLOWING)
                begun = self._begin(wanted)
            if begun.get("failed"):
                return begun
            if not begun["partial"]:
                return self._follow(manifest=wanted)
            told = self._follow(manifest=wanted, step="finish")
            if not told.get("missing"):
                return told
        raise JobError(
            f"These arrived twice with other bytes than they were hashed with: {', '.join(told['missing'])}.",
            f"Hash them again on the controller: cd {directory} && sha256sum {told['missing'][0]}",
        )

    def _begin(self, wanted: dict[str, Any] | None) -> dict[str, Any]:
        return self._follow(manifest=wanted, step="begin")

    def _bring(self, directory: str, wanted: dict[str, Any] | None, begun: dict[str, Any]) -> bool:
        """Brings what is missing; False where somebody else brings it, too."""
        try:
            self._bring_files(directory, wanted, begun)
        except pushing.OvertakenError:
            return False
        except pushing.PushError as error:
            if error.full:
                told = self._follow(manifest=wanted, step="abandon")
                raise JobError(str(told.get("msg")), str(told.get("next", ""))) from None
            raise JobError(str(error), error.next_step) from None
        return True

    def _bring_files(self, directory: str, wanted: dict[str, Any] | None, begun: dict[str, Any]) -> None:
        missing = begun["missing"]
        command = pushing.rsync_command(self) if missing else None
        if command:
            host = str(self._connection.get_option("host") or self._play_context.remote_addr)
            pushing.push_by_rsync(command, host, directory, begun["partial"], missing, self._reporter())
            return

        def append(**options: Any) -> dict[str, Any]:
            return self._follow(manifest=wanted, **options)

        pushing.push_in_pieces(self, append, directory, missing, self._reporter())

    def _reporter(self) -> Callable[[dict[str, Any]], None]:
        progress = Progress()

        def report(told: dict[str, Any]) -> None:
            line = progress.line(told, time.monotonic())
            if line:
                self._follower.say(line)

        return report

    def _follow(self, **options: Any) -> dict[str, Any]:
        arguments = {**self._arguments, **options}
        if self._source.get("on") == "controller":
            # The host needs neither: it does not download.
            arguments.pop("hub_token", None)
            arguments.pop("hub_python", None)
        return self._follower.follow(arguments)

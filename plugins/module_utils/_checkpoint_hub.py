# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One download of a checkpoint from a hub, where a hub can be reached. Private to the collection gpufleet.vllm."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import threading

from . import _hub_script
from ._checkpoint_location import locate
from ._checkpoint_manifest import load_record, make_manifest, state_folder
from ._job import JobError

OUTLINE = ".outline"
"""Ends the name of a directory with all of a checkpoint but its weights."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SCRIPT = inspect.getsource(_hub_script)
"""Read now: Ansible deletes the module's code when the module ends, and the job goes on."""


class Download:
    """A repository at one commit, and where it goes.

    ``source``: {"repository", "revision", "hub", "directory" or None}; ``python`` has the hub's library; ``token`` for
    gated repositories.
    """

    def __init__(self, source, python=None, token=None):
        self.hub = source.get("hub") or "huggingface"
        self.repository = source["repository"]
        self.revision = str(source["revision"])
        self._python = python or sys.executable
        self._token = token
        folder = source.get("directory") or state_folder("downloads")
        name = "{}@{}".format(self.repository.replace("/", "--"), self.revision[:12])
        self.directory = os.path.join(folder, re.sub(r"[^A-Za-z0-9_.@-]+", "_", name))

    @property
    def origin(self):
        """What the manifest's record says of where the files are from."""
        return {"hub": self.hub, "repository": self.repository, "revision": self.revision}

    def is_complete(self):
        return os.path.isdir(self.directory) and load_record(self.directory).get("source") == self.origin

    def have(self, report):
        """Downloads what is missing; returns the manifest's record. Raises: JobError."""
        if not self.is_complete():
            self._run("download", self.directory, report)
            shutil.rmtree(self.directory + OUTLINE, ignore_errors=True)
        return make_manifest(self.directory, report, self.origin)

    def outline(self, report):
        """A directory to describe the checkpoint from, without its weights where they are not here yet."""
        if self.is_complete():
            return self.directory
        outline = self.directory + OUTLINE
        marker = os.path.join(outline, ".complete")
        if not os.path.exists(marker):
            self._run("outline", outline, report)
            with open(marker, "w", encoding="utf-8"):
                pass
        return outline

    def _run(self, mode, directory, report):
        os.makedirs(directory, exist_ok=True)
        request = dict(self.origin, directory=directory, mode=mode)
        environment = dict(os.environ, GPUFLEET_HUB_REQUEST=json.dumps(request), HF_HUB_DISABLE_TELEMETRY="1")
        # The launch's offline mode is not meant for the one place that downloads.
        environment.pop("HF_HUB_OFFLINE", None)
        if self._token:
            environment["HF_TOKEN" if self.hub == "huggingface" else "MODELSCOPE_API_TOKEN"] = self._token
        try:
            with subprocess.Popen(
                [self._python, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            ) as process:
                self._attend(process, directory, report)
        except OSError as error:
            raise JobError(
                f"{self._python} cannot be run: {error.strerror}.", "Set vllm_model_hub_python to a Python there"
            ) from None

    def _attend(self, process, directory, report):
        told, errors = {"total_bytes": None}, []
        readers = [
            threading.Thread(target=_read_lines, args=(process.stdout, told)),
            threading.Thread(target=lambda: errors.append(process.stderr.read()[-4000:])),
        ]
        for reader in readers:
            reader.start()
        # One that is killed at once does not read it; how it ended tells why.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(_SCRIPT.encode("utf-8"))
        while True:
            report({"phase": "downloading", "done_bytes": _bytes_in(directory), "total_bytes": told["total_bytes"]})
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_BETWEEN_LOOKS)
                break
        for reader in readers:
            reader.join()
        self._end(directory, told, b"".join(errors).decode("utf-8", "replace"))

    def _end(self, directory, told, errors):
        if "done" not in told:
            with contextlib.suppress(OSError):
                # Where nothing came, nothing stays.
                os.rmdir(directory)
        if "error" in told:
            raise JobError(told["error"], told["next"])
        if "done" not in told:
            last = " ".join(errors.split())[-300:]
            raise JobError(
                f"The download of {self.repository} broke off: {last or 'the process was killed'}",
                "Run the same command again; the download goes on where it stopped",
            )


def _read_lines(stream, told):
    """Keeps what the script says; what else a library prints there is no JSON."""
    for line in stream:
        with contextlib.suppress(ValueError, TypeError):
            told.update(json.loads(line.decode("utf-8", "replace")))


def _bytes_in(directory):
    """Bytes on the disk; unlike the length of a file, they grow as a download does."""
    total = 0
    for folder, _folders, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total


def directory_of(path):
    """The directory with a checkpoint's files, whatever layout a path has. Raises: JobError."""
    try:
        return os.path.realpath(locate(path).path)
    except ValueError as error:
        raise JobError(str(error)) from None

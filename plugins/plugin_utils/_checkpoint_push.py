# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the files of a checkpoint from the controller to a host. Private to the collection gpufleet.vllm.

With rsync, where both have it and Ansible connects by ssh: the command is made of the connection's own options.
Otherwise in pieces through Ansible's connection, whatever that is. Both go on from what the host has of a file.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from ansible.plugins.action import ActionBase

PIECE_BYTES = 64 * 1024 * 1024
"""What is lost when a copy in pieces is interrupted; each costs two round trips."""
_AGAIN = "Run the same command again; it goes on where it stopped"
_PROGRESS = re.compile(r"^\s*([\d,.]+)\s+\d+%")

Report = Callable[[dict[str, Any]], None]
RunModule = Callable[..., dict[str, Any]]


class PushError(Exception):
    """A copy that failed; ``full`` where rsync's reason is the host's disk; ``next_step``: what to try."""

    def __init__(self, message: str, full: bool = False, next_step: str = _AGAIN) -> None:
        super().__init__(message)
        self.full = full
        self.next_step = next_step


class OvertakenError(Exception):
    """Somebody else brings the same file: as a rule a run that was killed, whose last process still goes on."""


def rsync_command(action: ActionBase) -> list[str] | None:
    """rsync with the way to the host (up to the file names), or None where it cannot be used."""
    connection = action._connection
    if connection.transport != "ssh" or not shutil.which("rsync") or connection.get_option("password"):
        return None
    rsync_path = _remote_rsync(action)
    if rsync_path is None:
        return None
    command = ["rsync", "--copy-links", "--append", "--chmod=D755,F644", "--files-from=-", "--info=progress2"]
    return [*command, "--outbuf=L", f"--rsync-path={rsync_path}", f"--rsh={shlex.join(ssh_command(connection))}"]


def _remote_rsync(action: ActionBase) -> str | None:
    become = action._connection.become
    if become and (become.name.rpartition(".")[2] != "sudo" or become.get_option("become_pass")):
        return None
    if action._low_level_execute_command("command -v rsync")["rc"] != 0:
        return None
    if not become:
        return "rsync"
    return f"sudo -n -u {shlex.quote(become.get_option('become_user') or 'root')} rsync"


def ssh_command(connection: Any) -> list[str]:
    """ssh with the options that Ansible's connection has; without compression, which weights do not gain from."""
    command = [connection.get_option("ssh_executable") or "ssh", "-o", "Compression=no", "-o", "BatchMode=yes"]
    for name in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
        command += shlex.split(connection.get_option(name) or "")
    for flag, name in (("-p", "port"), ("-i", "private_key_file"), ("-l", "remote_user")):
        value = connection.get_option(name)
        command += [flag, os.path.expanduser(str(value))] if value else []
    if not connection.get_option("host_key_checking"):
        command += ["-o", "StrictHostKeyChecking=no"]
    return command


def push_by_rsync(
    command: list[str], host: str, directory: str, partial: str, missing: list[dict[str, Any]], report: Report
) -> None:
    """Runs rsync for the missing files. Raises: PushError."""
    target = f"[{host}]:{partial}/" if ":" in host else f"{host}:{partial}/"
    total, before = _bytes(missing, "size"), _bytes(missing, "have_bytes")
    with tempfile.TemporaryFile("w+") as names, tempfile.TemporaryFile("w+") as errors:
        names.write("".join(entry["path"] + "\n" for entry in missing))
        names.seek(0)
        with subprocess.Popen(
            [*command, f"{directory}/", target], stdin=names, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            for line in process.stdout or ():
                found = _PROGRESS.match(line)
                if found:
                    done = before + int(re.sub(r"\D", "", found.group(1)))
                    report({"phase": "copying (rsync)", "done_bytes": done, "total_bytes": total})
        errors.seek(0)
        told = " ".join(errors.read().split())
        if process.returncode:
            raise PushError(told[-300:] or f"rsync ended with {process.returncode}", full="No space left" in told)


def pieces(directory: str, missing: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int, bytes]]:
    """(entry, offset, bytes) of everything that the host does not have yet; an empty file is one empty piece."""
    for entry in missing:
        with open(os.path.join(directory, entry["path"]), "rb") as handle:
            offset = handle.seek(entry["have_bytes"])
            while offset < entry["size"] or entry["size"] == 0:
                piece = handle.read(min(PIECE_BYTES, entry["size"] - offset))
                if not piece and entry["size"]:
                    raise PushError(f"{handle.name} became shorter while it was copied")
                yield entry, offset, piece
                offset += len(piece)
                if not entry["size"]:
                    break


def push_in_pieces(
    action: ActionBase, run_module: RunModule, directory: str, missing: list[dict[str, Any]], report: Report
) -> None:
    """Brings the missing files through Ansible's connection. Raises: PushError, OvertakenError."""
    total, done = _bytes(missing, "size"), _bytes(missing, "have_bytes")
    remote = action._connection._shell.join_path(action._make_tmp_path(), "piece")
    for entry, offset, piece in pieces(directory, missing):
        with tempfile.NamedTemporaryFile() as local:
            local.write(piece)
            local.flush()
            action._transfer_file(local.name, remote)
        action._fixup_perms2((action._connection._shell.tmpdir, remote))
        told = run_module(step="append", piece={"name": entry["path"], "offset": offset, "piece": remote})
        if told.get("failed"):
            raise PushError(str(told.get("msg")), next_step=str(told.get("next") or _AGAIN))
        if not told["changed"]:
            raise OvertakenError(entry["path"])
        done += len(piece)
        report({"phase": "copying", "done_bytes": done, "total_bytes": total})


def _bytes(missing: list[dict[str, Any]], name: str) -> int:
    return sum(int(entry[name]) for entry in missing)

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The next ansible-playbook command, in the form in which the user typed the last one. Private to gpufleet.vllm."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

COLLECTION = "gpufleet.vllm"
FULL_NAME = re.compile(r"\w+\.\w+\.\w+")

REPEATED = {
    "subset": "--limit",
    "remote_user": "--user",
    "become_ask_pass": "--ask-become-pass",
    "ask_pass": "--ask-pass",
    "ask_vault_pass": "--ask-vault-pass",
    "vault_password_files": "--vault-password-file",
    "vault_ids": "--vault-id",
    "private_key_file": "--private-key",
}
"""Options of ansible-playbook (by their names in ansible.context) that the next command needs just as the last did."""


def next_command(
    playbook: str,
    given: Mapping[str, Any],
    default_inventory: Sequence[str] = (),
    variables: Sequence[str] = (),
    directory: str | None = None,
) -> str:
    """The command line for a playbook of the collection (`deploy_vllm`).

    given: ansible.context.CLIARGS, what ansible-playbook was started with. default_inventory: what it takes without
    --inventory. variables: further words for -e. directory: where the user stands, the working directory by default.

    Files of variables (-e @file) are repeated. Single variables are not: they belong to the last command, and may be
    secret.
    """
    here = Path(directory or os.getcwd())
    words = ["ansible-playbook", *_inventory(given, default_inventory, here), _playbook(playbook, given, here)]
    words += _options(given)
    files = [str(word) for word in given.get("extra_vars") or () if str(word).startswith("@")]
    for variable in (*files, *variables):
        words += ["-e", variable]
    return shlex.join(words)


def reach_command(hosts: str, given: Mapping[str, Any], default_inventory: Sequence[str] = ()) -> str:
    """The command line that tries whether hosts (a pattern) can be reached."""
    here = Path(os.getcwd())
    options = {**given, "subset": None}
    words = ["ansible", *_inventory(given, default_inventory, here), hosts, "-m", "ansible.builtin.ping"]
    return shlex.join([*words, *_options(options)])


def _inventory(given: Mapping[str, Any], default: Sequence[str], here: Path) -> Iterator[str]:
    sources = [str(source) for source in given.get("inventory") or ()]
    if [_shown(source, here) for source in sources] == [_shown(str(source), here) for source in default]:
        return
    for source in sources:
        yield from ("-i", _shown(source, here))


def _shown(source: str, here: Path) -> str:
    """A path as one types it: relative where it lies below the working directory. A list of hosts stays as it is."""
    path = Path(source)
    if "," in source or not path.is_absolute() or not path.is_relative_to(here):
        return source
    return str(path.relative_to(here))


def _playbook(name: str, given: Mapping[str, Any], here: Path) -> str:
    """A playbook beside the one that runs, as a path if that one was a path; else its full name, which always works."""
    args = given.get("args")
    started = str(args[0]) if isinstance(args, Sequence) and not isinstance(args, str) and args else ""
    if started and not FULL_NAME.fullmatch(started):
        folder = Path(started).parent
        for candidate in (folder / f"{name}.yml", folder / "playbooks" / f"{name}.yml"):
            if (here / candidate).is_file():
                return _shown(str(candidate), here)
    return f"{COLLECTION}.{name}"


def _options(given: Mapping[str, Any]) -> Iterator[str]:
    for option, word in REPEATED.items():
        value = given.get(option)
        if value is True:
            yield word
        elif isinstance(value, str) and value:
            yield from (word, value)
        elif isinstance(value, Sequence):
            for item in value:
                yield from (word, str(item))

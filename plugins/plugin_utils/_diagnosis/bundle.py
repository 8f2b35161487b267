# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The support bundle: files without secrets in one archive. Private to the collection."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from itertools import chain, count
from pathlib import Path, PurePosixPath
from typing import Any

from ...module_utils._redaction import HIDDEN, redact, redact_users

_README = f"""\
What hosts told of vLLM engines, collected by gpufleet.vllm (playbook diagnose_vllm).

Taken out of every file, and replaced by {HIDDEN}: API keys, tokens, passwords, Authorization headers, passwords in
URLs, signatures of URLs, private keys, the names of users in paths (/home/{HIDDEN}) and addresses. Names of hosts,
models, paths and addresses of networks are still there. Read it before you send it.

"""


def bundle_files(files: dict[str, Any], secrets: list[str] | None = None) -> dict[str, str]:
    """Returns the files of a bundle, by their path in it, without secrets, and a README.

    files: text, or data that becomes JSON, by path. secrets: values to take out wherever they stand. A path that would
    leave the archive is kept within it.
    """
    cleaned: dict[str, str] = {}
    for name, content in files.items():
        cleaned[_free(_inside(name, secrets or []), cleaned)] = _clean(content, secrets or [])
    contents = "".join(f"{name}\n" for name in sorted(cleaned))
    return {"README": _README + contents, **cleaned}


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Writes the archive, readable by its owner only. Raises OSError."""
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(content), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(content))


def _clean(content: Any, secrets: list[str]) -> str:
    text = content if isinstance(content, str) else json.dumps(content, indent=2, sort_keys=True, default=str)
    return redact_users(redact(text, secrets))


def _inside(name: str, secrets: list[str]) -> str:
    cleaned = redact_users(redact(name, secrets)).replace("\\", "/")
    parts = [part for part in PurePosixPath(cleaned).parts if part not in ("/", "..", ".")]
    return "/".join(parts) or "file"


def _free(name: str, taken: dict[str, str]) -> str:
    """Names that differ only in what was taken out of them stay apart."""
    return next(free for free in chain([name], (f"{name}.{number}" for number in count(2))) if free not in taken)

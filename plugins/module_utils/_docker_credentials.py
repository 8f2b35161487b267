# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``docker login`` left on the host, as the engine's API wants it. Private to the collection.

Formats: https://docs.docker.com/reference/cli/docker/login/ (credential stores and helpers) and
https://docs.docker.com/reference/api/engine/ (authentication).
"""

from __future__ import annotations

import base64
import json
import os
import subprocess

_DOCKER_HUB = "https://index.docker.io/v1/"
_HELPER_SECONDS = 30


def registry_headers(registry, folder=None):
    """Returns {"X-Registry-Auth": ...} for a registry, or {} where nobody logged in."""
    config = _read(folder or os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    keys = [_DOCKER_HUB, "docker.io"] if registry == "docker.io" else [registry, "https://" + registry]
    for key in keys:
        credentials = _from_helper(config, key) or _from_file(config, key)
        if credentials:
            text = json.dumps({**credentials, "serveraddress": key}).encode("utf-8")
            return {"X-Registry-Auth": base64.urlsafe_b64encode(text).decode("ascii")}
    return {}


def _read(folder):
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return {}


def _from_file(config, key):
    entry = (config.get("auths") or {}).get(key) or {}
    if entry.get("identitytoken"):
        return {"identitytoken": entry["identitytoken"]}
    try:
        user, colon, password = base64.b64decode(entry.get("auth", "")).decode("utf-8").partition(":")
    except ValueError:
        return None
    return {"username": user, "password": password} if colon else None


def _from_helper(config, key):
    helper = (config.get("credHelpers") or {}).get(key) or config.get("credsStore")
    if not helper:
        return None
    try:
        command = ["docker-credential-" + helper, "get"]
        told = subprocess.run(command, input=key, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=True)
        secret = json.loads(told.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    if secret.get("Username") == "<token>":
        return {"identitytoken": secret.get("Secret")}
    return {"username": secret.get("Username"), "password": secret.get("Secret")}

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""route_probe and the catalogue's routes against the server of an installed vLLM; see test_real_parser.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.modules import route_probe
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import known_releases, release

VLLM_PYTHON = os.environ.get("GPUFLEET_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(not VLLM_PYTHON, reason="GPUFLEET_VLLM_PYTHON names no Python with an installed vLLM")


@pytest.fixture(scope="module", name="server")
def ask_server() -> dict[str, Any]:
    """What vLLM's server answers to the method of route_probe, for every path that any release has."""
    paths = sorted({path for version in known_releases() for path in release(version).routes})
    script = Path(__file__).with_name("real_routes.py")
    result = subprocess.run(
        [str(VLLM_PYTHON), str(script)],
        input=json.dumps({"method": route_probe.METHOD, "paths": paths}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_no_route_has_the_method(server: dict[str, Any]) -> None:
    assert "GET" in server["methods"]
    assert route_probe.METHOD not in server["methods"]


def test_the_probe_tells_what_the_catalogue_says(server: dict[str, Any]) -> None:
    installed = release(server["version"])
    told = {path: route_probe.judge(status) for path, status in server["statuses"].items()}
    assert {path for path, kind in told.items() if kind == "unguarded"} <= set(installed.unguarded_routes)
    assert {path for path in installed.guarded_routes if told[path] != "guarded"} == set()
    assert told["/health"] == told["/invocations"] == "unguarded"
    assert told["/v1/chat/completions"] == "guarded"
    assert "unclear" not in told.values()

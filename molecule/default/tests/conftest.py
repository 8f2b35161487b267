"""What the tests of the scenario share."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCENARIO = Path(__file__).resolve().parents[1]
REPOSITORY = SCENARIO.parents[1]


@pytest.fixture
def receipt(host):
    return json.loads(host.file("/var/lib/vllm/demo/receipt.json").content_string)


@pytest.fixture
def plan(host):
    return json.loads(host.file("/etc/vllm/demo/plan.json").content_string)


@pytest.fixture
def api_key(host):
    return host.file("/etc/vllm/demo/engine.env").content_string.strip().removeprefix("VLLM_API_KEY=")


def run_playbook(*arguments: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ansible-playbook on the scenario's hosts as a user would, from a clone unless cwd says otherwise."""
    return subprocess.run(
        ["ansible-playbook", "--inventory", f"{SCENARIO}/inventory", *arguments],
        cwd=cwd,
        env={**os.environ, "ANSIBLE_CONFIG": f"{REPOSITORY}/ansible.cfg", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

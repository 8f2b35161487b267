# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution environment: its file, the context that ansible-builder makes of it, and what it takes from here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from awx_data import ROOT, run

FILE = ROOT / "execution-environment.yml"
DEFINITION = yaml.safe_load(FILE.read_text(encoding="utf-8"))
VERSION = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]


def locked(name: str) -> str:
    (version,) = re.findall(rf"^{name}==(\S+)", (ROOT / "requirements/test.txt").read_text(encoding="utf-8"), re.M)
    return version


def test_everything_is_pinned():
    assert re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", DEFINITION["images"]["base_image"]["name"])
    dependencies = DEFINITION["dependencies"]
    assert dependencies["ansible_core"]["package_pip"] == f"ansible-core=={locked('ansible-core')}"
    assert dependencies["ansible_runner"]["package_pip"] == f"ansible-runner=={locked('ansible-runner')}"
    (collection,) = dependencies["galaxy"]["collections"]
    assert Path(collection["name"]).name == f"gpufleet-vllm-{VERSION}.tar.gz"


@pytest.fixture(scope="module", name="context")
def make_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The context, made as execution-environment.yml says: in a clone, after the collection was built there."""
    clone = tmp_path_factory.mktemp("context") / "clone"
    assert run("tools/ci/export.sh", str(clone)).returncode == 0
    for command in (["ansible-galaxy", "collection", "build"], ["ansible-builder", "create"]):
        result = run(*command, cwd=clone)
        assert result.returncode == 0, result.stdout + result.stderr
    return clone / "context"


def test_the_context_has_what_the_build_needs(context: Path):
    (file,) = (path for path in context.iterdir() if path.name in ("Containerfile", "Dockerfile"))
    text = file.read_text(encoding="utf-8")
    assert f'ARG EE_BASE_IMAGE="{DEFINITION["images"]["base_image"]["name"]}"' in text
    assert f'ARG ANSIBLE_INSTALL_REFS="ansible-core=={locked("ansible-core")}' in text
    assert "COPY _build /build\nWORKDIR /build" in text  # where the name of the collection's archive counts from


def test_the_collection_installs_as_the_build_does_it(context: Path, tmp_path: Path):
    install = ["ansible-galaxy", "collection", "install", "-r", "requirements.yml", "--collections-path", str(tmp_path)]
    result = run(*install, cwd=context / "_build")
    assert result.returncode == 0, result.stdout + result.stderr
    introspected = run("ansible-builder", "introspect", "--sanitize", str(tmp_path))
    assert introspected.returncode == 0, introspected.stderr
    needs = yaml.safe_load(introspected.stdout)
    assert not needs.get("python") and not needs.get("system"), needs
    found = run(
        "ansible-doc", "--type", "module", "--list", "--json", "gpufleet.vllm", ANSIBLE_COLLECTIONS_PATH=str(tmp_path)
    )
    assert "gpufleet.vllm.gpu_info" in json.loads(found.stdout)

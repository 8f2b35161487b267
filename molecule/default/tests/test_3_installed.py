"""The collection built and installed elsewhere, without the clone, does the same to the same hosts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import REPOSITORY, run_playbook


def test_the_installed_collection_finds_nothing_to_change(tmp_path):
    (tmp_path / "ansible.cfg").write_text("[defaults]\ncallback_result_format = yaml\n")
    elsewhere = {
        "ANSIBLE_CONFIG": f"{tmp_path}/ansible.cfg",
        "ANSIBLE_COLLECTIONS_PATH": f"{tmp_path}/collections",  # the clone must not be found there
    }
    galaxy("build", "--output-path", f"{tmp_path}/artefact", str(REPOSITORY), cwd=tmp_path, **elsewhere)
    (artefact,) = (tmp_path / "artefact").glob("*.tar.gz")
    galaxy(
        "install",
        "--offline",
        "--collections-path",
        f"{tmp_path}/collections",
        str(artefact),
        cwd=tmp_path,
        **elsewhere,
    )
    result = run_playbook("gpufleet.vllm.deploy_vllm", cwd=tmp_path, **elsewhere)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed=0" in result.stdout


def galaxy(*arguments: str, cwd: Path, **environment: str) -> None:
    command = ["ansible-galaxy", "collection", *arguments]
    subprocess.run(command, check=True, capture_output=True, cwd=cwd, env={**os.environ, **environment})

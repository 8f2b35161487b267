"""The collection built and installed elsewhere, without the clone, does the same to the same hosts."""

from __future__ import annotations

import subprocess

from conftest import REPOSITORY, run_playbook


def test_the_installed_collection_finds_nothing_to_change(tmp_path):
    build = ["ansible-galaxy", "collection", "build", "--output-path", f"{tmp_path}/artefact", str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True, cwd=tmp_path)
    (artefact,) = (tmp_path / "artefact").glob("*.tar.gz")
    install = ["ansible-galaxy", "collection", "install", "--offline", "--collections-path", f"{tmp_path}/collections", str(artefact)]
    subprocess.run(install, check=True, capture_output=True, cwd=tmp_path)
    config = tmp_path / "ansible.cfg"
    config.write_text("[defaults]\ncallback_result_format = yaml\n")
    result = run_playbook(
        "gpufleet.vllm.deploy_vllm",
        cwd=tmp_path,
        ANSIBLE_CONFIG=str(config),
        ANSIBLE_COLLECTIONS_PATH=f"{tmp_path}/collections",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed=0" in result.stdout

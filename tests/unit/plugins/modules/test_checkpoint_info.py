# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json

import pytest
import yaml
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.modules import checkpoint_info


@contextlib.contextmanager
def module_arguments(arguments):
    """ansible-core 2.19 and newer have a function for it; before, a variable."""
    try:
        from ansible.module_utils.testing import patch_module_args
    except ImportError:
        basic._ANSIBLE_ARGS = to_bytes(json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
        yield
        basic._ANSIBLE_ARGS = None
    else:
        with patch_module_args(arguments):
            yield


@pytest.fixture(autouse=True)
def jobs_of_the_test(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_info, "state_folder", lambda name: str(tmp_path / "state" / name))


def run_module(capsys, **arguments):
    """(exit code, result) of the module."""
    with module_arguments(arguments), pytest.raises(SystemExit) as end:
        checkpoint_info.main()
    return end.value.code, json.loads(capsys.readouterr().out)


def test_a_checkpoint_is_described_and_nothing_changes(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "model")
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir())
    code, result = run_module(capsys, path=str(path))
    assert (code, result["changed"]) == (0, False)
    assert (result["checkpoint"]["architecture"], result["checkpoint"]["complete"]) == ("Qwen3ForCausalLM", True)
    assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in path.iterdir()) == before


def test_check_mode_returns_the_same(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "model")
    code, result = run_module(capsys, path=str(path))
    checked_code, checked = run_module(capsys, path=str(path), _ansible_check_mode=True)
    assert (checked_code, checked["checkpoint"]) == (code, result["checkpoint"])


def test_findings_do_not_fail_the_module(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "model")
    (path / "model-00001-of-00002.safetensors").unlink()
    code, result = run_module(capsys, path=str(path))
    assert (code, result["checkpoint"]["complete"]) == (0, False)
    assert "model-00001-of-00002.safetensors is missing" in result["checkpoint"]["findings"][0]["title"]


def test_a_manifest_is_compared_with_hashes(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "model")
    (tmp_path / "sums").write_text("0" * 64 + "  config.json\n")
    code, result = run_module(capsys, path=str(path), manifest=str(tmp_path / "sums"), hash=True)
    assert code == 0
    assert [entry["title"] for entry in result["checkpoint"]["findings"]] == [
        "config.json is not the file that the manifest means"
    ]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ({"path": "/nowhere"}, ["/nowhere is not a directory", "ls -la /nowhere"]),
        ({}, ["missing required arguments: path"]),
    ],
)
def test_a_mistake_is_named_with_the_next_step(capsys, arguments, texts):
    code, result = run_module(capsys, **arguments)
    assert code == 1
    for text in texts:
        assert text in result["msg"]


def test_the_documentation_is_that_of_the_module():
    documentation = yaml.safe_load(checkpoint_info.DOCUMENTATION)
    assert set(documentation["options"]) == {"path", "manifest", "hash", "wait", "job"}
    returned = yaml.safe_load(checkpoint_info.RETURN)["checkpoint"]["contains"]
    finding = returned["findings"]["contains"]
    assert set(finding) == {"class", "title", "evidence", "next", "severity"}

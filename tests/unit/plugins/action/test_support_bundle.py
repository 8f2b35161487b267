# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import tarfile
from unittest.mock import MagicMock

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.gpufleet.vllm.plugins.action.support_bundle import ActionModule


def run(check_mode=False, **arguments):
    task = MagicMock(async_val=False, check_mode=check_mode, diff=False, args=arguments)
    action = ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), None)
    action._load_name = "gpufleet.vllm.support_bundle"  # the plugin loader sets it
    return action.run(task_vars={})


def test_the_archive_is_written(tmp_path):
    path = tmp_path / "vllm-support.tar.gz"
    result = run(path=str(path), files={"gpu01/log": "seen planted0123456789"}, secrets=["planted0123456789"])
    assert (result["changed"], result["path"], result["names"]) == (True, str(path), ["README", "gpu01/log"])
    with tarfile.open(path) as archive:
        assert archive.extractfile("vllm-support/gpu01/log").read() == b"seen ***"


def test_check_mode_writes_nothing(tmp_path):
    result = run(check_mode=True, path=str(tmp_path / "x.tar.gz"), files={"a": "b"})
    assert result["changed"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(AnsibleActionFail, match="cannot be written.*vllm_support_bundle"):
        run(path=str(tmp_path / "missing" / "x.tar.gz"), files={"a": "b"})

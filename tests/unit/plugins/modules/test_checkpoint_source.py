# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What checkpoint_source does alone; together with checkpoint it is tested in test_checkpoint.py."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request

import pytest
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_manifest as manifests
from ansible_collections.gpufleet.vllm.plugins.module_utils import _transfer as transfer
from ansible_collections.gpufleet.vllm.plugins.modules import checkpoint_source


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


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    for module in (checkpoint_source, manifests):
        monkeypatch.setattr(module, "state_folder", lambda name: str(tmp_path / "state" / name))

    def call(**arguments):
        with module_arguments(arguments), pytest.raises(SystemExit) as end:
            checkpoint_source.main()
        return {**json.loads(capsys.readouterr().out), "rc": end.value.code}

    return call


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "tiny")


def test_a_manifest_is_made_once(run, source):
    predicted = run(source={"path": str(source)}, _ansible_check_mode=True)["manifest"]
    assert (predicted["digest"], os.path.exists(f"{source}.manifest.json")) == (None, False)
    first = run(source={"path": str(source)}, wait=False)
    assert first["job"]["state"] == "running"
    made = run(source={"path": str(source)}, job=first["job"]["id"])["manifest"]
    assert run(source={"path": str(source)}, wait=False)["manifest"]["digest"] == made["digest"]


def test_it_is_described(run, source):
    told = run(source={"path": str(source)}, state="described")
    assert (told["changed"], told["checkpoint"]["architecture"]) == (False, "Qwen3ForCausalLM")


def test_only_its_files_are_handed_out(run, source):
    (source / ".netrc").write_text("secret")
    offer = run(source={"path": str(source)}, state="served", to=["127.0.0.1"])["offer"]
    headers = {"Authorization": f"Bearer {offer['token']}"}
    codes = {}
    for name in ("config.json", ".netrc"):
        request = urllib.request.Request(offer["urls"][0] + name, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                codes[name] = answer.status
        except urllib.error.HTTPError as error:
            codes[name] = error.code
    transfer.withdraw(offer)
    assert codes == {"config.json": 206, ".netrc": 404}


def test_nothing_is_handed_out_in_check_mode(run, source):
    assert run(source={"path": str(source)}, state="served", to=["127.0.0.1"], _ansible_check_mode=True)["offer"] == {}


def test_a_directory_that_is_not_there_is_told(run, tmp_path):
    told = run(source={"path": str(tmp_path / "nothing")})
    assert (told["rc"], "is not a directory" in told["msg"]) == (1, True)

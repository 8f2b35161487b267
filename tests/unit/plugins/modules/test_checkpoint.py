# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

import pytest
from ansible.module_utils import basic
from ansible.module_utils.common.text.converters import to_bytes
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_host as checkpoints
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_hub as hubs
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_manifest as manifests
from ansible_collections.gpufleet.vllm.plugins.modules import checkpoint, checkpoint_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


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
def state(tmp_path, monkeypatch):
    for module in (checkpoint, checkpoint_source, manifests, hubs):
        monkeypatch.setattr(module, "state_folder", lambda name: str(tmp_path / "state" / name))


@pytest.fixture
def run(capsys):
    def call(module=checkpoint, **arguments):
        """The result of the module, with ``rc``."""
        with module_arguments(arguments), pytest.raises(SystemExit) as end:
            module.main()
        return {**json.loads(capsys.readouterr().out), "rc": end.value.code}

    return call


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "nfs" / "tiny")


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "tiny"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def files_below(folder):
    return sorted(str(path) for path in folder.rglob("*"))


def test_predicted_done_and_not_done_again(run, source, target, tmp_path):
    arguments = {"path": str(target), "source": {"path": str(source)}, "_ansible_diff": True}
    before = files_below(tmp_path)
    predicted = run(**arguments, _ansible_check_mode=True)
    assert (predicted["rc"], predicted["changed"], files_below(tmp_path)) == (0, True, before)
    done = run(**arguments)
    assert (done["rc"], done["changed"], contents(target)) == (0, True, contents(source))
    assert done["diff"]["before"] == ""
    assert done["checkpoint"]["manifest_digest"] in done["diff"]["after"]
    for check_mode in (True, False):
        again = run(**arguments, _ansible_check_mode=check_mode)
        assert (again["changed"], again["checkpoint"]) == (False, done["checkpoint"])
    assert (predicted["checkpoint"]["bytes"], predicted["checkpoint"]["files"]) == (
        done["checkpoint"]["bytes"],
        done["checkpoint"]["files"],
    )


def test_a_change_at_the_source_is_copied_and_the_old_one_kept_until_pruned(run, source, target):
    arguments = {"path": str(target), "source": {"path": str(source)}}
    first = run(**arguments)["checkpoint"]
    (source / "tokenizer.json").write_text("[1]")
    assert run(**arguments, _ansible_check_mode=True)["changed"] is True
    second = run(**arguments)
    assert (second["changed"], len(second["checkpoint"]["previous"])) == (True, 1)
    for check_mode in (True, False):
        assert run(path=str(target), state="restored", _ansible_check_mode=check_mode)["changed"] is True
    assert run(path=str(target), state="restored")["changed"] is False
    assert run(path=str(target), state="present")["checkpoint"]["manifest_digest"] == first["manifest_digest"]
    assert run(**arguments)["changed"] is True
    for check_mode in (True, False):
        assert len(run(path=str(target), state="pruned", _ansible_check_mode=check_mode)["removed"]) == 1
    assert run(path=str(target), state="pruned")["changed"] is False
    assert run(**arguments)["checkpoint"]["previous"] == []


def test_a_followed_job_tells_what_it_did(run, source, target):
    arguments = {"path": str(target), "source": {"path": str(source)}}
    told = run(**arguments, wait=False)
    assert (told["changed"], told["job"]["state"]) == (False, "running")
    ended = run(**arguments, job=told["job"]["id"])
    assert (ended["changed"], contents(target)) == (True, contents(source))


def test_what_must_be_there_is_checked_and_left_alone(run, source):
    before = contents(source)
    told = run(path=str(source))
    assert (told["rc"], told["changed"], told["checkpoint"]["manifest_digest"]) == (0, False, None)
    assert contents(source) == before
    verified = run(path=str(source), verify=True)
    assert (verified["changed"], len(verified["checkpoint"]["manifest_digest"])) == (False, 64)


def test_what_changed_since_it_was_verified_is_told(run, source):
    run(path=str(source), verify=True)
    (source / "tokenizer.json").write_text("[1]")
    assert run(path=str(source))["checkpoint"]["manifest_digest"] is None
    _facts, warnings = checkpoints.facts(str(source))
    assert warnings == [f"{source}: changed since they were verified: tokenizer.json."]


def test_what_is_not_there_is_told(run, target):
    told = run(path=str(target))
    assert told["rc"] == 1
    assert f"no checkpoint at {target}" in told["msg"]
    assert "checkpoint_source" in told["next"]


def test_a_truncated_shard_is_found_where_it_is_and_where_it_comes_from(run, source, target):
    run(path=str(target), source={"path": str(source)})
    before = contents(target)
    os.truncate(source / "model-00002-of-00002.safetensors", 100)
    for arguments in ({"path": str(source)}, {"path": str(target), "source": {"path": str(source)}}):
        told = run(**arguments)
        assert told["rc"] == 1
        assert f"{source} would not load: model-00002-of-00002.safetensors is damaged" in told["msg"]
        assert "sha256sum" in told["next"]
    assert contents(target) == before


def test_python_files_are_listed_with_their_hashes(run, source):
    (source / "modeling_tiny.py").write_text("x = 1\n")
    (source / "layers").mkdir()
    (source / "layers" / "attention.py").write_text("y = 1\n")
    told = run(path=str(source))["checkpoint"]["python_files"]
    assert told == [
        {"path": "layers/attention.py", "sha256": hashlib.sha256(b"y = 1\n").hexdigest()},
        {"path": "modeling_tiny.py", "sha256": hashlib.sha256(b"x = 1\n").hexdigest()},
    ]


def test_from_another_host(run, source, target):
    there = run(checkpoint_source, source={"path": str(source)})
    assert there["manifest"]["digest"]
    arguments = {"path": str(target), "source": {"path": str(source), "on": "gpu1"}}
    asked = run(**arguments)
    assert (asked["changed"], asked["source_host"], asked["checkpoint"]) == (False, "gpu1", None)
    assert run(**arguments, manifest=there["manifest"])["source_host"] == "gpu1"
    predicted = run(**arguments, manifest=there["manifest"], _ansible_check_mode=True)
    assert (predicted["changed"], target.exists()) == (True, False)
    offer = run(checkpoint_source, source={"path": str(source)}, state="served", to=["127.0.0.1"])["offer"]
    done = run(**arguments, manifest=there["manifest"], offer=offer)
    assert (done["changed"], contents(target)) == (True, contents(source))
    assert done["checkpoint"]["source"] == {"path": str(source), "on": "gpu1"}
    again = run(**arguments, manifest=there["manifest"])
    assert (again["changed"], "source_host" in again) == (False, False)


def test_a_host_that_cannot_hand_it_out_is_told_by_the_copy(run, source, target):
    there = run(checkpoint_source, source={"path": str(source)})
    served = run(checkpoint_source, source={"path": str(source), "transfer_address": "192.0.2.1"}, state="served")
    told = run(
        path=str(target),
        source={"path": str(source), "on": "gpu1"},
        manifest=there["manifest"],
        offer=served["offer"],
    )
    assert (served["rc"], told["rc"]) == (0, 1)
    assert "192.0.2.1" in told["msg"]


def test_the_token_is_in_no_result(run, source, target):
    there = run(checkpoint_source, source={"path": str(source)})
    offer = {"urls": ["http://127.0.0.1:9/"], "token": "very-secret"}
    told = run(
        path=str(target),
        source={"path": str(source), "on": "gpu1"},
        manifest=there["manifest"],
        offer=offer,
        hub_token="hf_secret",
    )
    assert told["rc"] == 1
    assert "very-secret" not in json.dumps(told)
    assert "hf_secret" not in json.dumps(told)


def test_a_commit_in_place_is_not_asked_for_again(run, source, target):
    wanted = {"repository": "org/name", "revision": COMMIT, "on": "gpu1"}
    there = run(checkpoint_source, source={"path": str(source)})
    offer = run(checkpoint_source, source={"path": str(source)}, state="served", to=["127.0.0.1"])["offer"]
    run(path=str(target), source=wanted, manifest=there["manifest"], offer=offer)
    again = run(path=str(target), source=wanted)
    assert (again["changed"], "source_host" in again) == (False, False)
    assert run(path=str(target), source=wanted, state="described")["checkpoint"]["architecture"] == "Qwen3ForCausalLM"
    other = run(path=str(target), source={**wanted, "revision": "f" * 40})
    assert other["source_host"] == "gpu1"
    assert run(path=str(target), source={**wanted, "revision": "f" * 40}, state="described")["checkpoint"] is None


def test_a_description_is_that_of_the_source_and_names_the_place(run, source, target, tmp_path):
    before = files_below(tmp_path)
    told = run(path=str(target), source={"path": str(source)}, state="described")
    assert (told["changed"], told["checkpoint"]["complete"], told["checkpoint"]["path"]) == (False, True, str(target))
    assert files_below(tmp_path) == before


def test_pieces_from_the_controller(run, source, target, tmp_path):
    there = run(checkpoint_source, source={"path": str(source)})
    arguments = {
        "path": str(target),
        "source": {"path": str(source), "on": "controller"},
        "manifest": there["manifest"],
    }
    begun = run(**arguments, step="begin")
    assert {entry["path"] for entry in begun["missing"]} == set(contents(source))
    for entry in begun["missing"]:
        content = (source / entry["path"]).read_bytes()
        for offset in range(0, len(content), 400):
            piece = tmp_path / "piece"
            piece.write_bytes(content[offset : offset + 400])
            sent = {"name": entry["path"], "offset": offset, "piece": str(piece)}
            assert run(**arguments, step="append", piece=sent)["changed"] is True
            piece.write_bytes(b"the same piece from a run that was killed")
            assert run(**arguments, step="append", piece=sent)["changed"] is False
    assert run(**arguments, step="begin")["missing"][0]["have_bytes"] > 0
    done = run(**arguments, step="finish")
    assert (done["changed"], contents(target)) == (True, contents(source))
    assert run(**arguments, step="begin")["partial"] is None


def test_what_the_controller_left_out_or_damaged_is_named(run, source, target):
    there = run(checkpoint_source, source={"path": str(source)})
    arguments = {
        "path": str(target),
        "source": {"path": str(source), "on": "controller"},
        "manifest": there["manifest"],
    }
    begun = run(**arguments, step="begin")
    for entry in begun["missing"][1:]:
        (Path(begun["partial"]) / entry["path"]).write_bytes((source / entry["path"]).read_bytes())
    (Path(begun["partial"]) / "tokenizer.json").write_text("[]")
    told = run(**arguments, step="finish")
    assert (told["changed"], told["missing"]) == (False, sorted([begun["missing"][0]["path"], "tokenizer.json"]))
    assert not target.exists()


@pytest.mark.parametrize(
    "source",
    [{"repository": "org/name"}, {"path": "/a", "repository": "org/name", "revision": COMMIT}, {"hub": "other"}],
)
def test_a_source_that_makes_no_sense_is_refused(run, target, source):
    assert run(path=str(target), source=source)["rc"] == 1

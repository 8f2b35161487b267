# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_manifest as manifests


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    folder = tmp_path / "state"
    monkeypatch.setattr(manifests, "state_folder", lambda name: str(folder / name))
    return folder


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "models" / "tiny")


def nobody(progress):
    pass


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_manifest_has_every_file_with_size_and_sha256(model):
    record = manifests.make_manifest(str(model), nobody)
    files = {entry["path"]: entry for entry in record["files"]}
    assert sorted(files) == sorted(path.name for path in model.iterdir())
    for name, entry in files.items():
        assert (entry["size"], entry["sha256"]) == ((model / name).stat().st_size, sha256(model / name))
    assert record["total_bytes"] == sum(entry["size"] for entry in files.values())


def test_the_digest_is_that_of_the_names_and_contents_alone(model, tmp_path):
    other = write_checkpoint(tmp_path / "elsewhere")
    os.utime(other / "config.json", (1, 1))
    digests = {manifests.make_manifest(str(path), nobody)["digest"] for path in (model, other)}
    assert len(digests) == 1
    (other / "config.json").rename(other / "configuration.json")
    digests.add(manifests.make_manifest(str(other), nobody)["digest"])
    assert len(digests) == 2


def test_what_did_not_change_is_not_read_again(model, monkeypatch):
    first = manifests.make_manifest(str(model), nobody)
    read = []
    real = manifests.sha256_of
    monkeypatch.setattr(manifests, "sha256_of", lambda path, advance: read.append(Path(path).name) or real(path))
    assert manifests.make_manifest(str(model), nobody)["digest"] == first["digest"]
    assert read == []
    (model / "tokenizer.json").write_text("[]")
    assert manifests.make_manifest(str(model), nobody)["digest"] != first["digest"]
    assert read == ["tokenizer.json"]


def test_a_file_of_the_same_size_with_another_time_is_another_file(model):
    before = manifests.make_manifest(str(model), nobody)
    (model / "tokenizer.json").write_text("[]")
    os.utime(model / "tokenizer.json", ns=(1, 1))
    now = manifests.read_record(str(model))
    assert (now["digest"], now["changed"]) == (None, ["tokenizer.json"])
    assert before["digest"] is not None


def test_a_file_that_is_gone_is_a_change(model):
    manifests.make_manifest(str(model), nobody)
    (model / "tokenizer.json").unlink()
    assert manifests.read_record(str(model))["changed"] == ["tokenizer.json"]


def test_hidden_files_and_those_of_broken_downloads_are_no_part_of_it(model):
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("x")
    (model / ".gitattributes").write_text("x")
    (model / "model.safetensors.incomplete").write_text("x")
    (model / "code").mkdir()
    (model / "code" / "modeling.py").write_text("x")
    names = [entry["path"] for entry in manifests.list_files(str(model))]
    assert "code/modeling.py" in names
    assert not [name for name in names if "git" in name or "incomplete" in name]


def test_links_are_followed(model, tmp_path):
    blob = tmp_path / "blob"
    blob.write_text("a large file of a Hugging Face cache")
    (model / "linked.bin").symlink_to(blob)
    entry = next(entry for entry in manifests.list_files(str(model)) if entry["path"] == "linked.bin")
    assert entry["size"] == blob.stat().st_size


def test_the_record_lies_beside_the_checkpoint(model):
    record = manifests.make_manifest(str(model), nobody, {"path": "/nfs/tiny", "on": "host"})
    written = json.loads((model.parent / "tiny.manifest.json").read_text())
    assert (written["digest"], written["source"]) == (record["digest"], {"path": "/nfs/tiny", "on": "host"})
    assert manifests.read_record(str(model))["source"] == written["source"]


def test_where_that_place_cannot_be_written_it_lies_in_the_state_folder(model, state):
    (model.parent / "tiny.manifest.json").mkdir()  # as on a read-only mount, which root cannot make here
    digest = manifests.make_manifest(str(model), nobody)["digest"]
    assert [path.name[:5] for path in (state / "manifests").iterdir()] == ["tiny-"]
    assert manifests.read_record(str(model))["digest"] == digest


def test_a_record_of_another_directory_is_not_taken(model):
    manifests.make_manifest(str(model), nobody)
    moved = model.rename(model.parent / "renamed")
    (model.parent / "tiny.manifest.json").rename(model.parent / "renamed.manifest.json")
    assert manifests.read_record(str(moved))["digest"] is None


def test_progress_counts_the_bytes_to_hash(model):
    told = []
    total = manifests.make_manifest(str(model), told.append)["total_bytes"]
    assert told[-1] == {"phase": "hashing", "done_bytes": total, "total_bytes": total}

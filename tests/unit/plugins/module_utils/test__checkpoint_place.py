# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os

import pytest
from checkpoint_examples import write_checkpoint

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_manifest as manifests
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_place as places
from ansible_collections.gpufleet.vllm.plugins.module_utils import _transfer as transfer
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import JobError


def nobody(progress):
    pass


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setattr(manifests, "state_folder", lambda name: str(tmp_path / "state" / name))


@pytest.fixture
def source(tmp_path):
    return write_checkpoint(tmp_path / "source")


@pytest.fixture
def target(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models" / "tiny"


def copy_to(target, source):
    wanted = manifests.make_manifest(str(source), nobody)
    copy = places.Copy(str(target), wanted)
    return copy, places.begin(copy)


def have(target, source):
    """Copies by directory, as the module does; returns where the previous checkpoint is."""
    copy, entries = copy_to(target, source)
    places.bring_from_directory(copy, entries, str(source), nobody)
    return places.finish(copy)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def beside(target):
    return sorted(path.name for path in target.parent.iterdir() if path != target)


def change(source, name="tokenizer.json", text="[1]"):
    (source / name).write_text(text)


def test_a_copy_is_what_it_was_made_from_and_its_record_says_so(target, source):
    assert have(target, source) is None
    assert contents(target) == contents(source)
    assert beside(target) == ["tiny.manifest.json"]
    assert manifests.read_record(str(target))["digest"] == manifests.read_record(str(source))["digest"]


def test_until_it_is_whole_nothing_is_at_its_place(target, source):
    copy_to(target, source)
    assert not target.exists()
    assert [name for name in beside(target) if name.startswith("tiny.partial-")]


def test_what_was_there_is_kept_and_shares_what_did_not_change(target, source):
    have(target, source)
    before, running = contents(target), os.open(target, os.O_RDONLY)
    change(source)
    previous = have(target, source)
    assert contents(target) == contents(source)
    assert contents(type(target)(previous)) == before
    # An engine that has the directory mounted sees what it started with.
    opened = os.open("tokenizer.json", os.O_RDONLY, dir_fd=running)
    assert os.read(opened, 100) == b"{}"
    os.close(opened)
    os.close(running)
    shard = "model-00001-of-00002.safetensors"
    assert os.path.samefile(os.path.join(previous, shard), target / shard)


def test_the_previous_one_comes_back(target, source):
    have(target, source)
    before, digest = contents(target), manifests.read_record(str(target))["digest"]
    change(source)
    have(target, source)
    assert places.restore(str(target)) is True
    assert contents(target) == before
    assert manifests.read_record(str(target))["digest"] == digest
    assert places.restore(str(target)) is False


def test_the_one_that_is_asked_for_comes_back_whichever_way(target, source):
    digests = []
    for text in ("[1]", "[2]"):
        change(source, text=text)
        have(target, source)
        digests.append(manifests.read_record(str(target))["digest"])
    for digest, changes in ((digests[1], False), (digests[0], True), (digests[1], True), (digests[0], True)):
        assert places.would_restore(str(target), digest) is changes
        assert places.restore(str(target), digest) is changes
        assert manifests.read_record(str(target))["digest"] == digest


def test_one_that_is_not_kept_does_not_come_back(target, source):
    have(target, source)
    before = contents(target)
    with pytest.raises(JobError, match="not kept beside it either. Nothing was changed"):
        places.restore(str(target), "f" * 64)
    assert contents(target) == before


def test_nothing_else_is_left_after_pruning(target, source):
    have(target, source)
    change(source)
    have(target, source)
    change(source, text="[2]")
    copy_to(target, source)
    assert len(places.prune(str(target))) == 2
    assert beside(target) == ["tiny.manifest.json"]
    assert places.prune(str(target)) == []


def test_a_file_that_is_half_there_goes_on(target, source):
    copy, entries = copy_to(target, source)
    shard = source / "model-00001-of-00002.safetensors"
    with open(os.path.join(copy.partial, shard.name), "wb") as handle:
        handle.write(shard.read_bytes()[:20])
    told = []
    places.bring_from_directory(copy, entries, str(source), told.append)
    assert told[0]["done_bytes"] >= 20
    assert told[-1]["done_bytes"] == told[-1]["total_bytes"] == copy.wanted["total_bytes"]
    places.finish(copy)
    assert contents(target) == contents(source)


def test_a_half_file_that_is_wrong_is_brought_again(target, source):
    copy, entries = copy_to(target, source)
    shard = source / "model-00001-of-00002.safetensors"
    with open(os.path.join(copy.partial, shard.name), "wb") as handle:
        handle.write(b"\0" * 20)
    places.bring_from_directory(copy, entries, str(source), nobody)
    places.finish(copy)
    assert contents(target) == contents(source)


def test_bytes_that_are_not_what_the_manifest_says_do_not_get_in(target, source):
    have(target, source)
    before = contents(target)
    change(source)
    copy, entries = copy_to(target, source)
    size = (source / "tokenizer.json").stat().st_size
    (source / "tokenizer.json").write_bytes(b"x" * size)
    with pytest.raises(JobError, match="tokenizer.json arrived twice with other bytes") as error:
        places.bring_from_directory(copy, entries, str(source), nobody)
    assert "sha256sum tokenizer.json" in error.value.next_step
    assert contents(target) == before


def test_a_source_that_becomes_shorter_is_told(target, source):
    copy, entries = copy_to(target, source)
    os.truncate(source / "model-00001-of-00002.safetensors", 10)
    with pytest.raises(JobError, match="model-00001-of-00002.safetensors became shorter while it was copied"):
        places.bring_from_directory(copy, entries, str(source), nobody)


def test_a_checkpoint_that_would_not_load_does_not_get_in(target, source):
    have(target, source)
    before = contents(target)
    os.truncate(source / "model-00001-of-00002.safetensors", 30)
    with pytest.raises(JobError, match=f"{target} would not load: model-00001-of-00002.safetensors is damaged"):
        have(target, source)
    assert contents(target) == before


def test_room_is_asked_for_before_anything_is_written(target, source, monkeypatch):
    free = os.statvfs(target.parent)

    class Small:
        f_bavail, f_frsize = 10, 1

    monkeypatch.setattr(places.os, "statvfs", lambda path: Small)
    with pytest.raises(JobError, match=r"no room for .*tiny: .* are to be copied, 0.0 MiB are free") as error:
        have(target, source)
    assert f"df -h {target.parent}" in error.value.next_step
    assert beside(target) == []
    assert free.f_bavail > 0


def test_what_is_shared_or_there_already_needs_no_room(target, source, monkeypatch):
    have(target, source)
    change(source, text="[12345]")
    copy, _entries = copy_to(target, source)

    class Small:
        f_bavail, f_frsize = len("[12345]"), 1

    monkeypatch.setattr(places.os, "statvfs", lambda path: Small)
    places.check_space(copy)


def test_a_disk_that_becomes_full_is_told_and_freed(target, source, monkeypatch):
    have(target, source)
    before = contents(target)
    change(source)
    copy, entries = copy_to(target, source)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(places, "_copy_file", full)
    with pytest.raises(JobError, match="became full while .*tiny was copied"):
        places.bring_from_directory(copy, entries, str(source), nobody)
    assert contents(target) == before
    assert not os.path.exists(copy.partial)


def test_a_manifest_cannot_write_elsewhere(target, source):
    wanted = manifests.make_manifest(str(source), nobody)
    for path in ("/etc/passwd", "../other/config.json"):
        wanted["files"][0]["path"] = path
        with pytest.raises(JobError, match="outside of the checkpoint"):
            places.begin(places.Copy(str(target), wanted))


def test_from_another_host(target, source):
    copy, entries = copy_to(target, source)
    offer = transfer.serve({entry["path"]: str(source / entry["path"]) for entry in entries}, ["127.0.0.1"])
    places.bring_from_host(copy, entries, offer, nobody)
    transfer.withdraw(offer)
    places.finish(copy)
    assert contents(target) == contents(source)


def test_what_somebody_else_brought_is_verified(target, source):
    copy, entries = copy_to(target, source)
    places.bring_from_directory(copy, entries, str(source), nobody)
    damaged = os.path.join(copy.partial, "config.json")
    with open(damaged, "r+b") as handle:
        handle.write(b"X")
    os.unlink(os.path.join(copy.partial, "tokenizer.json"))
    missing = places.wrong_files(copy, entries, nobody)
    assert sorted(entry["path"] for entry in missing) == ["config.json", "tokenizer.json"]
    assert not os.path.exists(damaged)


def test_a_power_cut_between_the_two_renames_is_mended(target, source, monkeypatch):
    have(target, source)
    before = contents(target)
    change(source)
    copy, entries = copy_to(target, source)
    places.bring_from_directory(copy, entries, str(source), nobody)

    def power_cut(old, new):
        raise SystemExit

    with monkeypatch.context() as cut:
        cut.setattr(places.os, "rename", power_cut)
        with pytest.raises(SystemExit):
            places.finish(copy)
    if contents(target) == before:
        pytest.skip("this file system cannot exchange two directories")
    places.end_what_was_cut_short(str(target), copy.wanted["digest"])
    assert contents(target) == contents(source)
    assert manifests.read_record(str(target))["digest"] == copy.wanted["digest"]
    (previous,) = places.previous_of(str(target))
    assert contents(type(target)(previous)) == before


def test_without_an_exchange_of_names_it_works_as_well(target, source, monkeypatch):
    monkeypatch.setattr(places.ctypes, "CDLL", lambda name: object())
    have(target, source)
    before = contents(target)
    change(source)
    previous = have(target, source)
    assert contents(target) == contents(source)
    assert contents(type(target)(previous)) == before
    assert places.restore(str(target)) is True
    assert contents(target) == before


def test_shared_files_of_a_download_take_no_room(target, source):
    copy, entries = copy_to(target, source)
    places.bring_from_directory(copy, entries, str(source), nobody, link=True)
    places.finish(copy)
    assert os.path.samefile(source / "config.json", target / "config.json")

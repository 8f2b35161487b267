# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib

import pytest
from docker_examples import GIB, Docker

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_cache as cache
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_space as space
from ansible_collections.gpufleet.vllm.plugins.module_utils import _transfer as transfer
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import JobError


@pytest.fixture(name="folder", autouse=True)
def cache_here(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "FOLDER", str(tmp_path / "cache"))
    return tmp_path / "cache"


def send(tmp_path, content, offset, sha256=None):
    (tmp_path / "part").write_bytes(content)
    sha256 = sha256 or hashlib.sha256(content).hexdigest()
    return cache.receive(Docker(), "key", 6, str(tmp_path / "part"), offset, sha256)


def test_an_archive_grows_part_by_part(tmp_path, folder):
    assert cache.receive(Docker(), "key", 6) == 0
    assert send(tmp_path, b"abc", 0) == 3
    assert cache.receive(Docker(), "key", 6) == 3
    # Sent twice, as after a lost connection, and damaged on the way.
    assert send(tmp_path, b"abc", 0) == 3
    assert send(tmp_path, b"xyz", 3, sha256="0" * 64) == 3
    assert send(tmp_path, b"def", 3) == 6
    assert (folder / "key.tar").read_bytes() == b"abcdef"
    with cache.removing(str(folder / "key.tar")):
        pass
    assert list(folder.iterdir()) == []


def test_a_disk_without_room_is_found_before_the_first_part(monkeypatch):
    monkeypatch.setattr(space, "free_bytes", lambda folder: 2 * GIB)
    # The archive itself, the archive as the engine unpacks it, and the layers.
    with pytest.raises(JobError, match=r"2\.0 GiB free, and bringing key\.tar and loading it takes 3\.0 GiB"):
        cache.receive(Docker(root=cache.FOLDER), "key", GIB)


def test_a_folder_that_cannot_be_written_is_named(folder):
    folder.write_text("in the way", encoding="utf-8")
    with pytest.raises(JobError, match=r"key\.tar cannot be written: File exists"):
        cache.receive(Docker(), "key", 6)


def test_an_archive_is_fetched_from_another_host_and_what_is_here_is_kept(tmp_path, folder):
    (tmp_path / "image.tar").write_bytes(b"abcdef")
    folder.mkdir()
    (folder / "shared-1.tar").write_bytes(b"abc")
    offer = transfer.serve({cache.OFFERED: str(tmp_path / "image.tar")}, ["127.0.0.1"], idle_seconds=20)
    told = []
    try:
        path = cache.fetch(Docker(), {**offer, "size": 6, "key": "shared-1", "host": "gpu1"}, told.append)
    finally:
        transfer.withdraw(offer)
    assert path == str(folder / "shared-1.tar")
    assert (folder / "shared-1.tar").read_bytes() == b"abcdef"
    assert [(report["phase"], report["done_bytes"]) for report in told] == [
        ("copying from gpu1", 3),
        ("copying from gpu1", 6),
    ]


def test_a_host_that_cannot_be_reached_is_named():
    offer = {"urls": ["http://127.0.0.1:1/"], "token": "t", "size": 6, "key": "k", "host": "gpu1"}
    with pytest.raises(JobError, match=r"http://127\.0\.0\.1:1/"):
        cache.fetch(Docker(), offer, lambda told: None)

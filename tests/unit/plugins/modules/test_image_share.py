# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from docker_examples import GIB, Docker, config_id, inspected, save

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_cache as cache
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_image as images
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_space as space
from ansible_collections.gpufleet.vllm.plugins.module_utils import _job as jobs
from ansible_collections.gpufleet.vllm.plugins.modules import image_share as module

NAME = "vllm/vllm-openai:v0.32.0"


@pytest.fixture(name="docker")
def host(tmp_path, monkeypatch):
    """A host with the image, whose folders are here and whose job runs in this process."""
    docker = Docker([inspected("new", [NAME])])
    save(tmp_path / "saved.tar", {"new": [NAME]})
    docker.blocks = lambda path, query: iter([(tmp_path / "saved.tar").read_bytes()])
    monkeypatch.setattr(module, "Engine", lambda: docker)
    monkeypatch.setattr(cache, "FOLDER", str(tmp_path / "cache"))
    monkeypatch.setattr(images.read_record, "__defaults__", (str(tmp_path / "records"),))
    monkeypatch.setattr(space, "free_bytes", lambda folder: 100 * GIB)

    def attend(key, work, follow, wait):
        return {"id": "c0ffee", "state": "done", "result": work(lambda told: None)}

    monkeypatch.setattr(module.jobs, "attend", attend)
    return docker


def share(**params):
    return module.share(
        {
            "name": NAME,
            "archive": None,
            "id": None,
            "addresses": ["127.0.0.1"],
            "port": 0,
            "job": None,
            "wait": True,
            **params,
        }
    )


def fetched(offer, token=None):
    request = urllib.request.Request(
        offer["urls"][0] + cache.OFFERED, headers={"Authorization": f"Bearer {token or offer['token']}"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read()


def test_an_image_is_saved_handed_out_to_whoever_knows_the_token_and_taken_away(docker, tmp_path):
    offer = share()["offer"]
    try:
        assert fetched(offer) == (tmp_path / "saved.tar").read_bytes()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetched(offer, token="guessed")
        assert (offer["id"], offer["size"]) == (config_id("new"), (tmp_path / "saved.tar").stat().st_size)
    finally:
        module.end({"offer": offer})
    assert list((tmp_path / "cache").iterdir()) == []
    module.end({"offer": None})


def test_an_archive_that_is_there_is_handed_out_and_stays(docker, tmp_path):
    offer = share(archive=str(tmp_path / "saved.tar"))["offer"]
    assert offer["id"] == config_id("new") and offer["key"].startswith("saved.tar-")
    module.end({"offer": offer})
    assert (tmp_path / "saved.tar").exists()


def test_what_the_host_does_not_have_is_named(docker, tmp_path):
    with pytest.raises(jobs.JobError, match=r"vllm/vllm-openai:v1 is not on this host"):
        share(name="vllm/vllm-openai:v1")
    with pytest.raises(jobs.JobError, match=r"none\.tar cannot be read: No such file"):
        share(archive=str(tmp_path / "none.tar"))
    save(tmp_path / "old.tar", {"old": ["vllm/vllm-openai:v0.31.0"]})
    with pytest.raises(jobs.JobError, match=r"holds vllm/vllm-openai:v0\.31\.0"):
        share(archive=str(tmp_path / "old.tar"))
    with pytest.raises(jobs.JobError, match=r"is not the pinned image"):
        share(archive=str(tmp_path / "old.tar"), id=config_id("new"))


def test_a_disk_without_room_for_the_archive_is_named(docker, tmp_path, monkeypatch):
    monkeypatch.setattr(space, "free_bytes", lambda folder: 1000)
    with pytest.raises(jobs.JobError, match=r"saving vllm/vllm-openai:v0\.32\.0 takes 1\.0 GiB"):
        share()
    assert list((tmp_path / "cache").iterdir()) == []

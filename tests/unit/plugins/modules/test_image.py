# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from docker_examples import GIB, Docker, config_id, inspected, save, sha

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_cache as cache
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_get as getting
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_image as images
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_prune as pruning
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_space as space
from ansible_collections.gpufleet.vllm.plugins.module_utils import _job as jobs
from ansible_collections.gpufleet.vllm.plugins.modules import image as module

NAME = "vllm/vllm-openai:v0.32.0"
DIGEST = sha("manifest of new")
PINNED = f"{NAME}@{DIGEST}"
SOURCE = {"mirror": None, "archive": None, "on": "host", "from_host": None, "id": None}


@pytest.fixture(autouse=True)
def host(tmp_path, monkeypatch):
    """The folders of the host are here, its job runs in this process, and its disk has room."""
    for function in (images.read_record, images.write_record):
        monkeypatch.setattr(function, "__defaults__", (*function.__defaults__[:-1], str(tmp_path / "records")))
    monkeypatch.setattr(cache, "FOLDER", str(tmp_path / "cache"))
    monkeypatch.setattr(pruning.removable, "__defaults__", ((), (f"{tmp_path}/plan.json",)))
    monkeypatch.setattr(space, "free_bytes", lambda folder: 100 * GIB)
    monkeypatch.setattr(getting, "_layer_sizes", lambda engine, wanted: {})

    def attend(key, work, follow, wait):
        return {"id": "c0ffee", "state": "done", "result": work(lambda told: None)}

    monkeypatch.setattr(module.jobs, "attend", attend)


def have(docker, name=NAME, check_mode=False, source=None, **params):
    defaults = {"offer": None, "uploaded": None, "job": None, "wait": True, "prune": False, "keep": [], "image_gib": 0}
    params = {**defaults, "name": name, "source": {**SOURCE, **(source or {})}, **params}
    return module.Image(docker, params, check_mode).have()


def test_an_image_that_is_there_changes_nothing():
    told = have(Docker([inspected("new", [NAME])]))
    assert (told["changed"], told["warnings"]) == (False, [])
    assert told["image"]["id"] == config_id("new")
    assert told["image"]["reference"] == NAME


def test_a_missing_image_is_pulled_and_recorded():
    told = have(Docker(registry={f"vllm/vllm-openai@{DIGEST}": "new"}), PINNED)
    assert (told["changed"], told["msg"], told["image"]["digests"]) == (True, "pulled from docker.io", [DIGEST])
    assert images.read_record(PINNED)["proven"] == [DIGEST]


def test_check_mode_says_what_would_be_done_and_does_nothing():
    docker = Docker([inspected("old", [NAME])], registry={f"registry.example:5000/vllm/vllm-openai@{DIGEST}": "new"})
    told = have(docker, PINNED, check_mode=True, source={"mirror": "registry.example:5000"})
    assert told == {
        "changed": True,
        "msg": "would be pulled from registry.example:5000",
        "diff": {
            "before": f"{NAME} {config_id('old')}\n",
            "after": f"{NAME}, would be pulled from registry.example:5000\n",
        },
        "image": None,
    }
    assert docker.pulls == [] and images.read_record(PINNED) == {}


def test_the_right_image_that_lost_its_tag_gets_it_again():
    new = inspected("new", [], [f"vllm/vllm-openai@{DIGEST}"])
    docker = Docker([inspected("old", [NAME]), new])
    assert have(docker, PINNED, check_mode=True)["changed"] and docker.image(NAME)["Id"] == config_id("old")
    assert have(docker, PINNED)["changed"] and docker.image(NAME)["Id"] == config_id("new")
    assert not have(docker, PINNED)["changed"]


def test_an_archive_on_the_host_is_loaded_and_its_digest_is_known_from_then_on(tmp_path):
    save(tmp_path / "image.tar", {"new": [NAME]})
    docker, source = Docker(), {"archive": str(tmp_path / "image.tar"), "id": config_id("new")}
    assert have(docker, PINNED, source=source)["msg"] == f"loaded from {tmp_path}/image.tar on the host"
    assert not have(docker, PINNED)["changed"]
    assert (tmp_path / "image.tar").exists()


def test_a_digest_that_an_archive_cannot_prove_needs_the_id():
    with pytest.raises(jobs.JobError, match="pins a digest, which an archive does not prove") as caught:
        have(Docker(), PINNED, source={"archive": "/srv/image.tar"}, check_mode=True)
    assert (
        f"docker pull vllm/vllm-openai@{DIGEST} && docker image inspect --format {{{{.Id}}}}" in caught.value.next_step
    )


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ({"archive": "/srv/image.tar", "on": "controller"}, "controller"),
        ({"archive": "/srv/image.tar", "on": "gpu1"}, "gpu1"),
        ({"from_host": "gpu1"}, "gpu1"),
    ],
)
def test_what_is_elsewhere_must_be_brought_first(source, place):
    assert have(Docker(), source=source) == {"changed": False, "transfer": place, "image": None}
    assert not have(Docker([inspected("new", [NAME])]), source=source)["changed"]


def test_an_archive_that_was_brought_is_loaded_and_removed(tmp_path):
    (tmp_path / "cache").mkdir()
    save(tmp_path / "cache" / "upload-1.tar", {"new": [NAME]})
    told = have(Docker(), source={"archive": "/srv/image.tar", "on": "controller"}, uploaded="upload-1")
    assert told["msg"] == "loaded from /srv/image.tar on controller"
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_image_of_another_host_must_have_the_id_that_it_has_there(tmp_path, monkeypatch):
    save(tmp_path / "image.tar", {"wrong": [NAME]})
    monkeypatch.setattr(cache, "fetch", lambda engine, offer, report: str(tmp_path / "image.tar"))
    with pytest.raises(jobs.JobError, match="is not the pinned image"):
        have(Docker(), PINNED, source={"from_host": "gpu1"}, offer={"id": config_id("new")})
    assert not (tmp_path / "image.tar").exists()


def test_a_job_that_runs_is_told_and_one_that_failed_fails(monkeypatch):
    state = {"id": "c0ffee", "state": "running", "progress": {"phase": "downloading"}}
    monkeypatch.setattr(module.jobs, "attend", lambda key, work, follow, wait: state)
    told = have(Docker(), wait=False)
    assert (told["changed"], told["job"], told["image"]) == (True, state, None)
    # Also where the tag is there already: the job may take it back.
    assert have(Docker([inspected("new", [NAME])]), job="c0ffee")["job"] == state
    state.update(state="failed", error="The disk is full.", next="df -h")
    with pytest.raises(jobs.JobError, match="The disk is full") as caught:
        have(Docker())
    assert caught.value.next_step == "df -h"


def test_jobs_for_different_sources_are_different_ones(monkeypatch):
    keys = []

    def attend(key, work, follow, wait):
        keys.append(key)
        return {"id": "c0ffee", "state": "running", "progress": {}}

    monkeypatch.setattr(module.jobs, "attend", attend)
    have(Docker())
    have(Docker(), source={"mirror": "registry.example:5000"})
    have(Docker(), source={"from_host": "gpu1"}, offer={"id": "sha256:1", "token": "one"})
    have(Docker(), source={"from_host": "gpu1"}, offer={"id": "sha256:1", "token": "two"})
    assert len(set(keys)) == 3 and keys[2] == keys[3]


def test_a_tag_that_was_moved_is_told():
    have(Docker([inspected("old", [NAME])]))
    warnings = have(Docker([inspected("new", [NAME])]))["warnings"]
    assert len(warnings) == 1 and config_id("old") in warnings[0] and config_id("new") in warnings[0]
    assert have(Docker([inspected("new", [NAME])]))["warnings"] == []


def test_old_images_are_listed_in_check_mode_and_removed_when_asked(tmp_path):
    old = inspected("old", ["vllm/vllm-openai:v0.31.0"])
    docker = Docker([inspected("new", [NAME]), old])
    assert "pruned" not in have(docker)
    listed = have(docker, prune=True, check_mode=True)
    assert (listed["changed"], [image["id"] for image in listed["pruned"]]) == (True, [old["Id"]])
    assert listed["diff"] == {"before": f"vllm/vllm-openai:v0.31.0 {old['Id']}\n", "after": ""}
    assert old["Id"] in docker.images
    assert have(docker, prune=True)["changed"] and old["Id"] not in docker.images
    assert have(docker, prune=True)["pruned"] == []
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    told = have(docker, prune=True)
    assert not told["changed"] and "Nothing was pruned" in told["warnings"][0]

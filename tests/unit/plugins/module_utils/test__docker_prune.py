# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from docker_examples import Docker, config_id, inspected, sha

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_image as images
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_prune as pruning
from ansible_collections.gpufleet.vllm.plugins.module_utils._docker_engine import DockerError

REPOSITORY = "vllm/vllm-openai"
NEW = images.parse(f"{REPOSITORY}:v0.32.0")


def image(content, tag, repository=REPOSITORY):
    return inspected(content, [f"{repository}:{tag}"], [f"{repository}@{sha('manifest of ' + content)}"])


def removable(docker, keep=(), patterns=()):
    return [found["id"] for found in pruning.removable(docker, NEW, keep, patterns)]


def test_older_images_of_the_repository_are_removable_also_those_of_a_mirror():
    old, mirrored = image("old", "v0.31.0"), image("older", "v0.30.0", "registry.example:5000/" + REPOSITORY)
    untagged = inspected("untagged", [], [f"{REPOSITORY}@{sha('x')}"])
    docker = Docker([image("new", "v0.32.0"), old, mirrored, untagged, image("other", "1", "busybox")])
    assert set(removable(docker)) == {old["Id"], mirrored["Id"], untagged["Id"]}


def test_what_somebody_needs_stays():
    used, kept, renamed = image("used", "v0.31.0"), image("kept", "v0.30.0"), image("renamed", "v0.29.0")
    renamed["RepoTags"].append("our/production:1")
    docker = Docker([image("new", "v0.32.0"), used, kept, renamed], containers=[used["Id"]])
    assert removable(docker, keep=[f"{REPOSITORY}:v0.30.0"]) == []
    assert removable(docker) == [kept["Id"]]


@pytest.mark.parametrize("named_by", ["tag", "digest", "id", "mirror"])
def test_what_a_rollback_needs_stays(tmp_path, named_by):
    old = image("old", "v0.31.0", "registry.example:5000/" + REPOSITORY if named_by == "mirror" else REPOSITORY)
    plan = {
        "tag": {"image": f"{REPOSITORY}:v0.31.0"},
        "mirror": {"image": f"{REPOSITORY}:v0.31.0"},
        "digest": {"image": f"{REPOSITORY}:v9@{sha('manifest of old')}"},
        "id": {"image": f"{REPOSITORY}:v9", "image_id": config_id("old")},
    }[named_by]
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    docker = Docker([image("new", "v0.32.0"), old])
    assert removable(docker) == [old["Id"]]
    assert removable(docker, patterns=[f"{tmp_path}/*.json"]) == []


def test_an_image_stays_that_a_release_served_with_before_its_tag_was_moved(tmp_path):
    moved = inspected("moved", [], [f"{REPOSITORY}@{sha('manifest of moved')}"])
    docker = Docker([image("new", "v0.32.0"), moved])
    assert removable(docker) == [moved["Id"]]
    release = {"number": 1, "image": f"{REPOSITORY}:v0.32.0", "image_id": moved["Id"], "model_manifest": None}
    folder = tmp_path / "var/lib/vllm/chat/releases/0001"
    folder.mkdir(parents=True)
    (folder / "release.json").write_text(json.dumps(release), encoding="utf-8")
    assert removable(docker, patterns=[f"{tmp_path}{pattern}" for pattern in pruning.PLANS]) == []


def test_a_plan_that_cannot_be_read_keeps_everything(tmp_path):
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"plan\.json cannot be read"):
        removable(Docker(), patterns=[f"{tmp_path}/*.json"])


def test_all_names_of_an_image_go_and_what_cannot_go_is_told():
    old, stubborn = image("old", "v0.31.0"), image("stubborn", "v0.30.0")
    docker = Docker([image("new", "v0.32.0"), old, stubborn])
    remove = docker.remove_image

    def refuse(name):
        if docker.image(name) is stubborn:
            raise DockerError("conflict: image is being used by running container 1234", 409)
        remove(name)

    docker.remove_image = refuse
    gone, problems = pruning.prune(docker, pruning.removable(docker, NEW, patterns=()))
    assert [image["id"] for image in gone] == [old["Id"]]
    assert set(docker.images) == {config_id("new"), stubborn["Id"]}
    assert len(problems) == 1 and "v0.30.0" in problems[0] and "being used by running container" in problems[0]

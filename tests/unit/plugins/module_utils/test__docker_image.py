# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from docker_examples import Docker, inspected, sha

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_image as images

NAME = "vllm/vllm-openai:v0.32.0"
DIGEST = sha("manifest of new")
PINNED = f"{NAME}@{DIGEST}"


@pytest.mark.parametrize(
    ("name", "repository", "tag", "digest", "registry", "path"),
    [
        (NAME, "vllm/vllm-openai", "v0.32.0", None, "docker.io", "vllm/vllm-openai"),
        (PINNED, "vllm/vllm-openai", "v0.32.0", DIGEST, "docker.io", "vllm/vllm-openai"),
        ("docker.io/vllm/vllm-openai:v1", "vllm/vllm-openai", "v1", None, "docker.io", "vllm/vllm-openai"),
        ("r.example:5000/a/b:v1", "r.example:5000/a/b", "v1", None, "r.example:5000", "a/b"),
        ("localhost/b:v1", "localhost/b", "v1", None, "localhost", "b"),
    ],
)
def test_the_parts_of_a_name(name, repository, tag, digest, registry, path):
    reference = images.parse(name)
    assert reference == (repository, tag, digest)
    assert (reference.registry, reference.path) == (registry, path)


@pytest.mark.parametrize("name", ["vllm/vllm-openai", "r.example:5000/vllm", f"{NAME}@sha256:12", "@" + DIGEST, ""])
def test_a_name_that_pins_nothing_is_refused(name):
    with pytest.raises(ValueError, match="REPOSITORY:TAG"):
        images.parse(name)


def test_the_same_image_in_a_mirror():
    mirrored = images.parse("quay.io/org/vllm:v1").at("https://registry.example:5000/quay/")
    assert mirrored.tagged == "registry.example:5000/quay/org/vllm:v1"


def find(docker, name, **more):
    right, tagged = images.find(docker, images.parse(name), **more)
    return right and right["Id"], tagged and tagged["Id"]


def test_without_a_digest_the_tag_decides():
    old = inspected("old", [NAME])
    assert find(Docker([old]), NAME) == (old["Id"], old["Id"])
    assert find(Docker(), NAME) == (None, None)


def test_a_tag_with_another_digest_is_not_the_image():
    old = inspected("old", [NAME], [f"vllm/vllm-openai@{sha('manifest of old')}"])
    assert find(Docker([old]), PINNED) == (None, old["Id"])


def test_a_digest_counts_whichever_mirror_it_came_from():
    new = inspected("new", [NAME], [f"registry.example:5000/vllm/vllm-openai@{DIGEST}"])
    assert find(Docker([new]), PINNED) == (new["Id"], new["Id"])


def test_the_right_image_under_no_tag_is_found():
    old, new = inspected("old", [NAME]), inspected("new", [], [f"vllm/vllm-openai@{DIGEST}"])
    assert find(Docker([old, new]), PINNED) == (new["Id"], old["Id"])


def test_an_image_from_an_archive_is_proven_by_its_id_and_by_what_was_recorded(tmp_path):
    new = inspected("new", [NAME])
    assert find(Docker([new]), PINNED) == (None, new["Id"])
    assert find(Docker([new]), PINNED, expected_id=new["Id"]) == (new["Id"], new["Id"])
    images.write_record(PINNED, new, [DIGEST], str(tmp_path))
    record = images.read_record(PINNED, str(tmp_path))
    assert find(Docker([new]), PINNED, record=record) == (new["Id"], new["Id"])
    other = inspected("other", [NAME])
    assert find(Docker([other]), PINNED, record=record) == (None, other["Id"])


def test_a_record_is_written_when_something_changed(tmp_path):
    new = inspected("new", [NAME])
    first = images.write_record(NAME, new, folder=str(tmp_path))
    assert images.write_record(NAME, new, folder=str(tmp_path)) == first
    assert images.write_record(NAME, new, [DIGEST], str(tmp_path))["proven"] == [DIGEST]
    # What was proven of another image says nothing of this one.
    assert images.write_record(NAME, inspected("other"), folder=str(tmp_path))["proven"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["vllm_vllm-openai_v0.32.0.json"]


def test_equal_images_have_equal_fingerprints_whatever_their_id():
    here, there = inspected("new", [NAME]), inspected("new", ["mirror/" + NAME])
    there.update(Id=DIGEST, Config={**there["Config"], "Cmd": []})
    assert images.fingerprint(here) == images.fingerprint(there)
    assert images.fingerprint(here) != images.fingerprint(inspected("old"))

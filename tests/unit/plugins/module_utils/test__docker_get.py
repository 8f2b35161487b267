# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import copy
import gzip

import pytest
from docker_examples import GIB, Docker, config_id, inspected, save, sha

from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_get as getting
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_image as images
from ansible_collections.gpufleet.vllm.plugins.module_utils import _docker_space as space
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import JobError

NAME = "vllm/vllm-openai:v0.32.0"
DIGEST = sha("manifest of new")
TAGGED, PINNED = images.parse(NAME), images.parse(f"{NAME}@{DIGEST}")


@pytest.fixture(autouse=True)
def without_command_line_and_pauses(monkeypatch):
    monkeypatch.setattr(getting.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(getting, "_layer_sizes", lambda engine, wanted: {"0123456789ab": 100})
    monkeypatch.setattr(getting, "registry_headers", lambda registry: {"X-Registry-Auth": registry})
    monkeypatch.setattr(space, "free_bytes", lambda folder: 100 * GIB)


def pull(docker, reference=TAGGED, **more):
    told = []
    return getting.pull(docker, reference, told.append, **more), told


def load(docker, path, reference=TAGGED, **more):
    told = []
    return getting.load(docker, reference, str(path), told.append, **more), told


# --- pull


def test_a_pull_by_tag():
    docker = Docker(registry={NAME: "new"})
    result, told = pull(docker)
    assert result == {"id": config_id("new"), "proven": []}
    assert docker.pulls == [(NAME, {"X-Registry-Auth": "docker.io"})]
    assert [report["phase"] for report in told] == ["asking docker.io for its size", "downloading", "extracting"]
    assert told[1] == {"phase": "downloading", "done_bytes": 50, "total_bytes": 100}


def test_a_pinned_image_is_pulled_from_a_mirror_by_its_digest_and_gets_its_name():
    docker = Docker([inspected("old", [NAME])], registry={f"registry.example:5000/vllm/vllm-openai@{DIGEST}": "new"})
    result, _told = pull(docker, PINNED, mirror="registry.example:5000")
    assert result == {"id": config_id("new"), "proven": [DIGEST]}
    assert docker.image(NAME)["Id"] == config_id("new")


def refused(docker, reference=TAGGED, **more):
    """The error of a pull that must change nothing."""
    before = copy.deepcopy(docker.images)
    with pytest.raises(JobError) as caught:
        pull(docker, reference, **more)
    assert docker.images == before
    return caught.value


@pytest.mark.parametrize(
    ("said", "means", "advice"),
    [
        ("write /x: no space left on device", "the disk of / filled up (100.0 GiB are free now)", "docker system df"),
        ("manifest unknown", "docker.io has no such image", "docker manifest inspect"),
        (
            "pull access denied for x, repository does not exist or may require",
            "wants a login",
            "docker login docker.io",
        ),
        ("toomanyrequests: You have reached your pull rate limit", "limits pulls", "docker login"),
        ("Get https://x/v2/: x509: certificate signed by unknown authority", "not trusted", "/etc/docker/certs.d/"),
        ("http: server gave HTTP response to HTTPS client", "speaks HTTP", "insecure-registries"),
        ("dial tcp: lookup x: no such host", "cannot be reached", "vllm_image_source"),
        ("net/http: request canceled while waiting for connection", "cannot be reached", "vllm_image_source"),
        ("no matching manifest for linux/arm64 in the manifest list", "kind of processor", "architecture"),
        ("manifest verification failed for digest sha256:1", "something else than what the digest says", "mirror"),
    ],
)
def test_what_the_engine_says_is_told_with_its_cause_and_the_next_command(said, means, advice):
    docker = Docker([inspected("old", [NAME])], registry={NAME: "new"})
    docker.failures = [said] * 9
    error = refused(docker)
    assert means in str(error) and said in str(error) and "go on serving" in str(error)
    assert advice in error.next_step


def test_a_pull_that_breaks_off_is_tried_again():
    docker = Docker(registry={NAME: "new"})
    docker.failures = ["unexpected EOF", "read tcp: connection reset by peer"]
    _result, told = pull(docker)
    assert len(docker.pulls) == 3
    assert {"phase": "interrupted, trying again", "done_bytes": 50, "total_bytes": 100} in told


def test_an_engine_that_is_stopped_in_the_middle_is_waited_for(tmp_path):
    """Its answer ends without a word of what went wrong."""

    class Stopped(Docker):
        stops = 2

        def messages(self, *arguments, **more):
            for message in super().messages(*arguments, **more):
                if self.stops:
                    self.stops -= 1
                    self.images = {}
                    return
                yield message

    assert pull(Stopped(registry={NAME: "new"}))[0]["id"] == config_id("new")
    save(tmp_path / "image.tar", {"new": [NAME]})
    result, told = load(Stopped(), tmp_path / "image.tar")
    assert result["id"] == config_id("new")
    assert [report["phase"] for report in told].count("interrupted, trying again") == 2


def test_what_no_second_try_can_mend_is_not_tried_again():
    docker = Docker()
    refused(docker)
    assert len(docker.pulls) == 1


def test_a_wrong_image_is_taken_back():
    """By tag, with the ID that it must have: the tag means what it meant."""
    docker = Docker([inspected("old", [NAME])], registry={NAME: "wrong"})
    error = refused(docker, expected_id=config_id("new"))
    assert config_id("wrong") in str(error) and config_id("new") in str(error)


def test_a_disk_without_room_is_found_before_anything_is_pulled(monkeypatch):
    monkeypatch.setattr(space, "free_bytes", lambda folder: 330)
    docker = Docker(registry={NAME: "new"})
    error = refused(docker)
    assert docker.pulls == []
    assert "The disk of / has 0.0 GiB free, and pulling vllm/vllm-openai:v0.32.0 takes" in str(error)
    monkeypatch.setattr(space, "free_bytes", lambda folder: 340)
    assert pull(docker)[0]["id"] == config_id("new")


def test_what_a_pull_takes_when_the_registry_does_not_tell():
    assert space.bytes_to_pull(None, "vllm/vllm-openai") == pytest.approx(37.9 * GIB, rel=0.001)
    assert space.bytes_to_pull(None, "somebody/else") is None


def test_layers_that_are_there_count_as_downloaded():
    told = []
    progress = getting.PullProgress(told.append, {"aaaaaaaaaaaa": 100, "bbbbbbbbbbbb": 300})
    for message in (
        {"id": "v0.32.0", "status": "Pulling from vllm/vllm-openai"},
        {"id": "aaaaaaaaaaaa", "status": "Already exists"},
        {"id": "bbbbbbbbbbbb", "status": "Pulling fs layer"},
        {"id": "bbbbbbbbbbbb", "status": "Downloading", "progressDetail": {"current": 60, "total": 300}},
        {"id": "bbbbbbbbbbbb", "status": "Download complete"},
        {"id": "bbbbbbbbbbbb", "status": "Extracting", "progressDetail": {"current": 150, "total": 300}},
        {"status": "Digest: sha256:1"},
    ):
        progress.update(message)
    assert [(report["phase"], report["done_bytes"], report["total_bytes"]) for report in told[2:]] == [
        ("downloading", 160, 400),
        ("extracting", 100, 400),
        ("extracting", 250, 400),
    ]


def test_the_layers_of_a_manifest_for_this_machine():
    def entry(architecture, size):
        layer = {"digest": "sha256:" + "a" * 64, "size": size}
        platform = {"architecture": architecture, "os": "linux"}
        return {"Descriptor": {"platform": platform}, "OCIManifest": {"layers": [layer]}}

    both = [entry("arm64", 1), entry("amd64", 2)]
    assert getting.layer_sizes(both, {"Architecture": "x86_64"}) == {"a" * 12: 2}
    assert getting.layer_sizes(both, {"Architecture": "aarch64"}) == {"a" * 12: 1}
    assert getting.layer_sizes(both[0], {"Architecture": "x86_64"}) == {}


# --- archive


def test_an_archive_is_loaded(tmp_path):
    save(tmp_path / "image.tar", {"new": [NAME], "another": ["busybox:1"]})
    result, told = load(Docker(), tmp_path / "image.tar")
    assert result == {"id": config_id("new"), "proven": []}
    assert told[-1]["phase"] == "loading"


@pytest.mark.parametrize("tags", [[], ["registry.example:5000/" + NAME], ["other:1"]])
def test_an_archive_proven_by_its_id_gets_the_name(tmp_path, tags):
    save(tmp_path / "image.tar", {"new": tags})
    docker = Docker([inspected("old", [NAME])])
    result, _told = load(docker, tmp_path / "image.tar", PINNED, expected_id=config_id("new"))
    assert result == {"id": config_id("new"), "proven": [DIGEST, config_id("new")]}
    assert docker.image(NAME)["Id"] == config_id("new")


def loads_nothing(docker, path, match, **more):
    before = copy.deepcopy(docker.images)
    with pytest.raises(JobError, match=match) as caught:
        load(docker, path, **more)
    assert docker.images == before
    return caught.value


def test_a_wrong_archive_is_refused_before_it_is_loaded(tmp_path):
    save(tmp_path / "image.tar", {"wrong": [NAME]})
    docker = Docker([inspected("old", [NAME])])
    docker.load = None
    loads_nothing(docker, tmp_path / "image.tar", "is not the pinned image", expected_id=config_id("new"))


def test_a_wrong_compressed_archive_is_taken_back(tmp_path):
    save(tmp_path / "image.tar", {"wrong": [NAME]})
    packed = tmp_path / "image.tar.gz"
    packed.write_bytes(gzip.compress((tmp_path / "image.tar").read_bytes()))

    class Unpacking(Docker):
        def load(self, content):
            return super().load(gzip.decompress(content))

    loads_nothing(Unpacking([inspected("old", [NAME])]), packed, "not the pinned", expected_id=config_id("new"))
    loads_nothing(Unpacking(), packed, "not the pinned", expected_id=config_id("new"))
    assert load(Unpacking(), packed, expected_id=config_id("wrong"))[0]["id"] == config_id("wrong")


def test_an_archive_of_something_else_says_what_it_holds(tmp_path):
    save(tmp_path / "image.tar", {"old": ["vllm/vllm-openai:v0.31.0"]})
    error = loads_nothing(Docker(), tmp_path / "image.tar", r"holds vllm/vllm-openai:v0\.31\.0, not .*:v0\.32\.0")
    assert error.next_step == "where the image is: docker save --output FILE vllm/vllm-openai:v0.32.0"


def test_what_is_no_archive_or_only_part_of_one_is_named(tmp_path):
    path = tmp_path / "image.tar"
    loads_nothing(Docker(), path, "cannot be read: No such file")
    path.write_text("no tar")
    loads_nothing(Docker(), path, "no archive of docker save")
    save(path, {"new": [NAME]}, manifest=False)
    loads_nothing(Docker(), path, r"no manifest\.json")
    save(path, {"new": [NAME]})
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    loads_nothing(Docker(), path, "part of")
    path.write_bytes(whole.rstrip(b"\0")[: len(whole.rstrip(b"\0")) // 512 * 512])
    loads_nothing(Docker(), path, "part of")


def test_an_image_store_that_numbers_by_manifests_is_judged_by_the_archives_config(tmp_path):
    save(tmp_path / "image.tar", {"new": [NAME]})

    class Containerd(Docker):
        def load(self, content):
            yield from super().load(content)
            image = self.images.pop(config_id("new"))
            self.images[DIGEST] = {**image, "Id": DIGEST}

    result, _told = load(Containerd(), tmp_path / "image.tar", expected_id=config_id("new"))
    assert result == {"id": DIGEST, "proven": [config_id("new")]}


def test_room_for_an_archive():
    assert space.bytes_to_load(GIB, False, False) == 2 * GIB
    assert space.bytes_to_load(GIB, False, True) == pytest.approx(3.38 * GIB, rel=0.01)
    assert space.bytes_to_load(GIB, True, False) == pytest.approx(4.77 * GIB, rel=0.01)


@pytest.mark.parametrize(
    ("registry", "insecure"),
    [
        ("docker.io", False),
        ("registry.example:5000", True),
        ("other.example:5000", False),
        ("127.0.0.1:5000", True),
        ("[fd00::1]:5000", False),
        ("10.1.2.3", False),
        ("localhost:5000", True),
    ],
)
def test_registries_with_which_the_engine_speaks_http(registry, insecure):
    known = {"docker.io": {"Secure": True}, "registry.example:5000": {"Secure": False}}
    info = {"RegistryConfig": {"IndexConfigs": known, "InsecureRegistryCIDRs": ["127.0.0.0/8"]}}
    assert getting._is_insecure(info, registry) is insecure

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Downloads with the real libraries from a hub on loopback. GPUFLEET_HUB_PYTHON names a Python that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_examples import write_checkpoint
from fake_hub import FakeHub

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_host as checkpoints
from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_hub as hubs
from ansible_collections.gpufleet.vllm.plugins.module_utils import _hub_script as script
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_checkpoint
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint_manifest import make_manifest
from ansible_collections.gpufleet.vllm.plugins.module_utils._job import JobError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PYTHON = os.environ.get("GPUFLEET_HUB_PYTHON", sys.executable)
LIBRARIES = {"huggingface": "huggingface_hub", "modelscope": "modelscope"}


def nobody(progress):
    pass


def has(hub):
    return subprocess.run([PYTHON, "-c", f"import {LIBRARIES[hub]}"], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=["huggingface", "modelscope"])
def kind(request):
    if not has(request.param):
        pytest.skip(f"{PYTHON} has no {LIBRARIES[request.param]}; GPUFLEET_HUB_PYTHON names one that has")
    return request.param


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a hub with a small checkpoint in it."""
    folder = write_checkpoint(tmp_path / "repository")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights once more")
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(b"and once more")
    monkeypatch.setenv("HOME", str(tmp_path))
    started = []

    def begin(token=""):
        hub = FakeHub(folder, "org/name", COMMIT, token)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
        started.append(hub)
        return hub

    yield begin
    for hub in started:
        hub.shutdown()


@pytest.fixture
def source(tmp_path):
    return {"repository": "org/name", "revision": COMMIT, "directory": str(tmp_path / "downloads")}


def test_a_download_has_the_files_that_an_engine_loads(kind, start, source):
    hub = start()
    download = hubs.Download({**source, "hub": kind}, PYTHON)
    record = download.have(nobody)
    names = {entry["path"] for entry in record["files"]}
    assert {"config.json", "tokenizer.json", "model-00002-of-00002.safetensors"} <= names
    assert not [name for name in names if name.startswith("original")]
    assert ("pytorch_model.bin" in names) == (kind == "modelscope")  # which names no files before they are asked for
    assert record["source"] == {"hub": kind, "repository": "org/name", "revision": COMMIT}
    assert describe_checkpoint(download.directory)["complete"]
    asked = len(hub.asked)
    assert download.have(nobody)["digest"] == record["digest"]
    assert len(hub.asked) == asked


def test_a_branch_is_refused_with_what_to_write(kind, start, source):
    start()
    with pytest.raises(JobError, match="The revision main of org/name is a branch or a tag") as error:
        hubs.Download({**source, "hub": kind, "revision": "main"}, PYTHON).have(nobody)
    assert (
        f"revision: {COMMIT}" if kind == "huggingface" else "modelscope.cn/models/org/name"
    ) in error.value.next_step


def test_an_outline_is_enough_to_describe_it(start, source):
    if not has("huggingface"):
        pytest.skip(f"{PYTHON} has no huggingface_hub; GPUFLEET_HUB_PYTHON names one that has")
    hub = start()
    outline = hubs.Download(source, PYTHON).outline(nobody)
    told, real = describe_checkpoint(outline), describe_checkpoint(str(hub.folder))
    for name in ("architecture", "layers", "weights", "tokenizer", "complete", "python_files"):
        assert told[name] == real[name], name
    ranges = [asked for asked in hub.asked if asked[1].endswith(".safetensors")]
    assert ranges and all(asked[2] for asked in ranges)


def test_an_outline_without_headers_lacks_nothing(start, source):
    if not has("modelscope"):
        pytest.skip(f"{PYTHON} has no modelscope; GPUFLEET_HUB_PYTHON names one that has")
    start()
    outline = hubs.Download({**source, "hub": "modelscope"}, PYTHON).outline(nobody)
    told = checkpoints.describe(outline)
    assert (told["complete"], told["weights"]["source"]) == (True, "config")
    assert "counted from config.json" in told["warnings"][-1]


def test_a_gated_repository_needs_the_token_which_no_command_line_has(start, source, monkeypatch):
    if not has("huggingface"):
        pytest.skip(f"{PYTHON} has no huggingface_hub; GPUFLEET_HUB_PYTHON names one that has")
    start("hf_secret")
    with pytest.raises(JobError, match="GatedRepoError") as error:
        hubs.Download(source, PYTHON).have(nobody)
    assert "Accept its terms" in error.value.next_step
    commands = []
    real = subprocess.Popen
    monkeypatch.setattr(hubs.subprocess, "Popen", lambda command, **kw: commands.append(command) or real(command, **kw))
    assert hubs.Download(source, PYTHON, "hf_secret").have(nobody)["digest"]
    assert commands == [[PYTHON, "-"]]


def test_a_python_without_the_library_is_told(source, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(JobError, match="This Python has no huggingface_hub") as error:
        hubs.Download(source, str(bare)).have(nobody)
    assert "vllm_model_hub_python" in error.value.next_step
    assert not os.path.exists(hubs.Download(source).directory)


def test_a_python_that_is_not_there_is_told(source):
    with pytest.raises(JobError, match="/no/such/python cannot be run"):
        hubs.Download(source, "/no/such/python").have(nobody)


def test_a_download_that_was_killed_is_told(source, tmp_path):
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    with pytest.raises(JobError, match="broke off: the process was killed") as error:
        hubs.Download(source, str(killed)).have(nobody)
    assert "goes on where it stopped" in error.value.next_step


def test_commits_of_one_repository_have_directories_of_their_own(source):
    other = hubs.Download({**source, "revision": "f" * 40})
    assert other.directory != hubs.Download(source).directory
    assert os.path.basename(other.directory) == "org--name@ffffffffffff"


def test_a_half_download_is_not_taken_for_a_whole_one(source):
    download = hubs.Download(source)
    write_checkpoint(Path(download.directory))
    assert not download.is_complete()
    make_manifest(download.directory, nobody, download.origin)
    assert download.is_complete()


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.safetensors", "pytorch_model.bin", "original/x.pth"], ["model.safetensors"]),
        (["pytorch_model.bin", "model.gguf"], ["pytorch_model.bin"]),
        (["consolidated.safetensors", "model.safetensors"], ["model.safetensors"]),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
        (["pool/config.json", "onnx/model.onnx", "model.safetensors"], ["pool/config.json", "model.safetensors"]),
    ],
)
def test_the_same_weights_in_other_formats_are_left_out(names, kept):
    patterns = script.not_wanted(names)
    assert [name for name in names if not script.matches(name, patterns)] == kept


def test_a_disk_without_room_is_refused_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(script.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1 << 30}))
    with pytest.raises(script.HubError, match=r"2.00 GiB are to be downloaded, 1.00 GiB are free"):
        script._refuse_full_disk({"directory": str(tmp_path), "repository": "org/name"}, 2 << 30)

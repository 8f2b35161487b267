# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Talks to a model hub. Private to the collection gpufleet.vllm.

A script of its own, run by `_checkpoint_hub` with the Python that has huggingface_hub or modelscope: that may be
another one than Ansible's. It reads a request as JSON from GPUFLEET_HUB_REQUEST, and the token, if any, from HF_TOKEN
or MODELSCOPE_API_TOKEN, as the libraries do. It prints JSON, an object a line: ``{"total_bytes"}`` when it knows what
it will download, at the end ``{"done": directory}`` or ``{"error", "next"}``.

The request: ``{"hub": "huggingface|modelscope", "repository", "revision", "directory", "mode": "download|outline"}``.
An outline is a checkpoint without its weights: all small files, and safetensors files with their headers alone, as
long as the real ones but empty (sparse), which is what a description of the checkpoint needs.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shutil
import struct
import sys

COMMIT = re.compile(r"^[0-9a-f]{40}$")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".h5", ".msgpack", ".tflite", ".ot")
NEVER = ("*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.tflite", "*.ot", "*.mlmodel", "original/*", ".git*")
"""Formats that vLLM does not load from a directory."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
LARGEST_SMALL_FILE = 64 * 1024 * 1024


class HubError(Exception):
    """What is wrong, and the next thing to try."""

    def __init__(self, message, next_step):
        super().__init__(message)
        self.next_step = next_step


def say(**told):
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def not_wanted(names):
    """Patterns of files in a repository that an engine does not load: the same weights in other formats."""
    safetensors = [name for name in names if name.endswith(".safetensors") and "/" not in name]
    if not safetensors:
        return list(NEVER)
    mistral = any(not name.startswith("consolidated") for name in safetensors)
    return list(NEVER + PICKLES + (("consolidated*",) if mistral else ()))


def matches(name, patterns):
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) for pattern in patterns)


# --- Hugging Face


def huggingface(request):
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise HubError(
            "This Python has no huggingface_hub.",
            "Install it there (pip install huggingface_hub), or name a Python that has it: vllm_model_hub_python",
        ) from None
    try:
        return _huggingface(hub, request)
    except Exception as error:
        raise _huggingface_error(error, request) from None


def _huggingface(hub, request):
    repository, revision = request["repository"], request["revision"]
    if not COMMIT.match(revision):
        raise _not_a_commit(repository, revision, f"revision: {_commit_of(hub, repository, revision)}")
    info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    skipped = not_wanted(list(sizes))
    wanted = {name: size for name, size in sizes.items() if not matches(name, skipped)}
    options = {"revision": revision, "local_dir": request["directory"]}
    if request["mode"] == "download":
        say(total_bytes=sum(wanted.values()))
        _refuse_full_disk(request, sum(wanted.values()))
        hub.snapshot_download(repository, ignore_patterns=skipped, **options)
        return
    small = [name for name, size in wanted.items() if size <= LARGEST_SMALL_FILE and not name.endswith(WEIGHTS)]
    hub.snapshot_download(repository, allow_patterns=small, **options)
    for name, size in wanted.items():
        if name.endswith(".safetensors"):
            header = hub.HfApi().parse_safetensors_file_metadata(repository, name, revision=revision)
            _write_shell(os.path.join(request["directory"], name), header.tensors, size)
        elif name.endswith(WEIGHTS):
            _write_sparse(os.path.join(request["directory"], name), b"\0", size)


def _commit_of(hub, repository, revision):
    try:
        return hub.HfApi().model_info(repository, revision=revision).sha
    except Exception:
        return f"one from https://huggingface.co/{repository}/commits/main"


def _not_a_commit(repository, revision, pin):
    return HubError(
        f"The revision {revision} of {repository} is a branch or a tag, which can change.",
        f"Pin the commit that it is now: {pin}",
    )


def _refuse_full_disk(request, total):
    """Refuses a download that cannot end well. Raises: HubError."""
    present = sum(
        os.lstat(os.path.join(folder, name)).st_blocks * 512
        for folder, _folders, names in os.walk(request["directory"])
        for name in names
    )
    free = shutil.disk_usage(request["directory"]).free
    if total - present > free:
        raise HubError(
            "The disk of {} has no room for {}: {:.2f} GiB are to be downloaded, {:.2f} GiB are free.".format(
                request["directory"], request["repository"], (total - present) / 1024.0**3, free / 1024.0**3
            ),
            "df -h {}; or name another folder: directory in checkpoint_source".format(request["directory"]),
        )


def _write_shell(path, tensors, size):
    """A safetensors file with a header and holes; the header says what the real one does, in a size that fits."""
    header = {
        name: {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": list(tensor.data_offsets)}
        for name, tensor in tensors.items()
    }
    data = max([entry["data_offsets"][1] for entry in header.values()] or [0])
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    # The header that was read may have had more blanks or metadata.
    text += b" " * max(size - data - 8 - len(text), 0)
    _write_sparse(path, struct.pack("<Q", len(text)) + text, 8 + len(text) + data)


def _write_sparse(path, start, size):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as handle:
        handle.write(start)
        handle.truncate(max(size, len(start)))


def _huggingface_error(error, request):
    if isinstance(error, HubError):
        return error
    name, repository = type(error).__name__, request["repository"]
    place = f"https://huggingface.co/{repository}"
    known = {
        "GatedRepoError": f"Accept its terms at {place}, and give a token of that account: vllm_model_hub_token",
        "RepositoryNotFoundError": f"Look at {place}: a private repository needs a token (vllm_model_hub_token)",
        "RevisionNotFoundError": f"Take a commit from {place}/commits/main",
        "LocalEntryNotFoundError": "This place cannot reach the hub; HF_ENDPOINT names a mirror, HTTPS_PROXY a proxy",
    }
    return HubError(
        "{} at {} cannot be had from Hugging Face: {}: {}".format(
            repository, request["revision"], name, " ".join(str(error).split())[:400]
        ),
        known.get(name, f"curl -sSI {place}; the download goes on where it stopped"),
    )


# --- ModelScope


def modelscope(request):
    try:
        snapshot_download = importlib.import_module("modelscope.hub.snapshot_download").snapshot_download
    except ImportError:
        raise HubError(
            "This Python has no modelscope.",
            "Install it there (pip install modelscope), or name a Python that has it: vllm_model_hub_python",
        ) from None
    repository, revision = request["repository"], request["revision"]
    place = f"https://modelscope.cn/models/{repository}"
    if not COMMIT.match(revision):
        raise _not_a_commit(repository, revision, f"40 hexadecimal digits, from {place}/files")
    skipped = list(NEVER)
    if request["mode"] == "outline":
        skipped += ["*" + suffix for suffix in WEIGHTS]
    options = {"revision": revision, "local_dir": request["directory"], "ignore_patterns": skipped}
    # Releases that have no such option have no other way to a token than their own login.
    if "token" in inspect.signature(snapshot_download).parameters:
        options["token"] = os.environ.get("MODELSCOPE_API_TOKEN")
    try:
        snapshot_download(repository, **options)
    except Exception as error:
        raise HubError(
            "{} at {} cannot be had from ModelScope: {}: {}".format(
                repository, revision, type(error).__name__, " ".join(str(error).split())[:400]
            ),
            f"Look at {place}; the download goes on where it stopped",
        ) from None


def main():
    request = json.loads(os.environ["GPUFLEET_HUB_REQUEST"])
    try:
        {"huggingface": huggingface, "modelscope": modelscope}[request["hub"]](request)
    except HubError as error:
        say(error=str(error), next=error.next_step)
    else:
        say(done=request["directory"])


if __name__ == "__main__":
    main()

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Is every file of a checkpoint there and whole? Private to the collection gpufleet.vllm.

Only headers are read: a safetensors file begins with the length of a JSON header (8 bytes, little endian), which names
every tensor with dtype, shape and place, so the size that the file must have follows from it.
"""

from __future__ import annotations

import json
import os
import struct

LARGEST_HEADER = 100 * 1000 * 1000
"""The safetensors library refuses longer ones, too."""

GIT_LFS_POINTER = b"version https://git-lfs.github.com/spec/"

WEIGHT_INDEXES = ("model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json")
PICKLE_SUFFIXES = (".bin", ".pth", ".pt", ".ckpt")
NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "scheduler.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
"""What training leaves beside a checkpoint."""

TOKENIZERS = (
    ("tokenizer.json",),
    ("tokenizer.model",),
    ("tekken.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("tokenization_chatglm.py", "tokenizer.model"),
    ("qwen.tiktoken",),
    ("tiktoken.model",),
)
"""Sets of files of which one must be whole for a tokenizer to load."""


def finding(kind, title, evidence, next_step, severity="error"):
    """A finding; severity ``error`` where the model would not load or would be wrong, ``warning`` otherwise."""
    return {"class": kind, "title": title, "evidence": evidence, "next": next_step, "severity": severity}


class Shard:
    """A safetensors file: ``tensors`` {name: (dtype, shape)}, ``size``, and ``problem``, a finding or None."""

    def __init__(self, name, tensors, size, problem=None):
        self.name = name
        self.tensors = tensors
        self.size = size
        self.problem = problem


def read_shard(directory, name):
    """Reads the header of a safetensors file and holds the file's size against it."""
    path = os.path.join(directory, name)
    problem = file_problem(path, name)
    if problem:
        return Shard(name, {}, 0, problem)
    size = os.path.getsize(path)
    try:
        with open(path, "rb") as handle:
            header, begin = _read_header(handle)
    except OSError as error:
        return Shard(name, {}, size, unreadable(name, error))
    except ValueError as error:
        return Shard(name, {}, size, damaged(name, str(error)))
    tensors = {key: entry for key, entry in header.items() if key != "__metadata__"}
    expected = begin + max([entry["data_offsets"][1] for entry in tensors.values()] or [0])
    described = {key: (entry["dtype"], tuple(entry["shape"])) for key, entry in tensors.items()}
    return Shard(name, described, size, _size_problem(name, size, expected))


def _read_header(handle):
    start = handle.read(8)
    if len(start) < 8:
        raise ValueError("it ends inside the first 8 bytes")
    length = struct.unpack("<Q", start)[0]
    if length > LARGEST_HEADER:
        raise ValueError(f"its header would be {length} bytes long: it is not a safetensors file")
    text = handle.read(length)
    if len(text) < length:
        raise ValueError("it ends inside its header")
    try:
        header = json.loads(text.decode("utf-8"))
        for entry in header.values():
            if "data_offsets" in entry and len(entry["data_offsets"]) != 2:
                raise ValueError("a tensor has no place")
    except (ValueError, AttributeError, TypeError):
        raise ValueError("its header is not the JSON that safetensors has") from None
    return header, 8 + length


def _size_problem(name, size, expected):
    if size < expected:
        return damaged(name, f"it has {size} bytes, its header says {expected}: {expected - size} are missing")
    if size > expected:
        return damaged(name, f"it has {size} bytes, {size - expected} more than its header says")
    return None


def damaged(name, evidence):
    return finding(
        "corrupted_weights",
        f"{name} is damaged",
        f"{name}: {evidence}.",
        f"Copy or download {name} again, then check it: sha256sum {name}",
    )


def unreadable(name, error):
    return finding(
        "mount_permissions",
        f"{name} cannot be read",
        str(error),
        "Give the user that runs Docker read access: chmod -R a+rX on the checkpoint's directory",
    )


def file_problem(path, name):
    """What is wrong with a file before its contents count: absent, dangling, unreadable, empty, a Git LFS pointer."""
    if os.path.islink(path) and not os.path.exists(path):
        target = os.readlink(path)
        return finding(
            "corrupted_weights",
            f"{name} is a link to nothing",
            f"{path} -> {target}",
            "Copy the checkpoint with its targets (rsync -L), or download it again",
        )
    if not os.path.exists(path):
        return finding(
            "corrupted_weights",
            f"{name} is missing",
            f"{path} does not exist.",
            f"Copy or download {name} again",
        )
    try:
        with open(path, "rb") as handle:
            start = handle.read(len(GIT_LFS_POINTER))
    except OSError as error:
        return unreadable(name, error)
    if not start:
        return finding(
            "corrupted_weights",
            f"{name} is empty",
            f"{path} has 0 bytes.",
            f"Copy or download {name} again",
        )
    if start == GIT_LFS_POINTER:
        return finding(
            "corrupted_weights",
            f"{name} is a Git LFS pointer, not the file",
            f"{path} begins with 'version https://git-lfs'.",
            "Fetch the files themselves in the clone: git lfs pull",
        )
    return None


def read_json(directory, name):
    """(parsed JSON or None, finding or None) of a file; (None, None) where there is no such file."""
    path = os.path.join(directory, name)
    if not os.path.lexists(path):
        return None, None
    problem = file_problem(path, name)
    if problem:
        return None, problem
    try:
        with open(path, encoding="utf-8") as handle:
            return json.load(handle), None
    except OSError as error:
        return None, unreadable(name, error)
    except ValueError as error:
        return None, finding(
            "corrupted_weights",
            f"{name} is not JSON",
            f"{path}: {error}",
            f"Copy or download {name} again",
        )


class Weights:
    """The weight files of a checkpoint: ``shards``, ``findings`` and ``pickles`` (names)."""

    def __init__(self, shards, findings, pickles):
        self.shards = shards
        self.findings = findings
        self.pickles = pickles


def read_weights(directory):
    """Reads the headers of all safetensors files that the index names or, without one, that are there."""
    names = sorted(os.listdir(directory))
    index, problem = _read_index(directory)
    findings = [problem] if problem else []
    wanted = sorted(set(index.values())) if index else _without_index(names)
    shards = [read_shard(directory, name) for name in wanted]
    findings += [shard.problem for shard in shards if shard.problem]
    findings += _index_findings(index, shards)
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES) and name not in NO_WEIGHTS]
    return Weights(shards, findings, pickles)


def _read_index(directory):
    for name in WEIGHT_INDEXES:
        content, problem = read_json(directory, name)
        if problem:
            return {}, problem
        if isinstance(content, dict) and isinstance(content.get("weight_map"), dict):
            return content["weight_map"], None
    return {}, None


def _without_index(names):
    """Mistral's own format (consolidated*) beside the Hugging Face files holds the same weights a second time."""
    found = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    plain = [name for name in found if not name.startswith("consolidated")]
    return plain or found


def _index_findings(index, shards):
    """Tensors that the index places in a file which does not have them."""
    present = {shard.name: shard for shard in shards if not shard.problem}
    absent = [name for name, shard in sorted(index.items()) if shard in present and name not in present[shard].tensors]
    if not absent:
        return []
    return [
        finding(
            "corrupted_weights",
            f"{len(absent)} tensors are not where the index says",
            f"first: {absent[0]} is not in {index[absent[0]]}",
            "The index and the files are of different versions: download the checkpoint again into an empty directory",
        )
    ]


def tokenizer_files(directory):
    """Names of the tokenizer files that are there and whole; empty where no set is complete."""
    for names in TOKENIZERS:
        if all(file_problem(os.path.join(directory, name), name) is None for name in names):
            return list(names)
    return []


def has_chat_template(directory):
    """Whether a chat template comes with the tokenizer (its configuration, or a file of its own)."""
    for name in ("chat_template.jinja", "chat_template.json", "tekken.json"):
        if os.path.exists(os.path.join(directory, name)):
            return True
    content, _problem = read_json(directory, "tokenizer_config.json")
    return isinstance(content, dict) and bool(content.get("chat_template"))


def total_size(directory):
    """(number of files, bytes of all of them), following links; what cannot be read counts 0 bytes."""
    count = size = 0
    for folder, _folders, names in os.walk(directory):
        for name in names:
            count += 1
            try:
                size += os.path.getsize(os.path.join(folder, name))
            except OSError:
                continue
    return count, size

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""describe_checkpoint: what is there, what is missing, what is damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct

import pytest
from checkpoint_examples import TINY, TINY_TENSORS, write_checkpoint, write_safetensors

from ansible_collections.gpufleet.vllm.plugins.module_utils import _checkpoint_files
from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_checkpoint

SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(name="checkpoint")
def make_checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "model")


def errors(path, **arguments):
    return [entry for entry in describe_checkpoint(str(path), **arguments)["findings"] if entry["severity"] == "error"]


def only_error(path, **arguments):
    found = errors(path, **arguments)
    assert len(found) == 1, found
    assert set(found[0]) == {"class", "title", "evidence", "next", "severity"}
    return found[0]


def test_a_whole_checkpoint_is_complete_and_starts_offline(checkpoint):
    model = describe_checkpoint(str(checkpoint))
    assert model["findings"] == []
    assert (model["complete"], model["would_start_offline"], model["kind"]) == (True, True, "model")
    assert (model["layout"], model["path"]) == ("directory", str(checkpoint))
    assert model["tokenizer"] == {"files": ["tokenizer.json"], "chat_template": True}


def test_weights_are_read_from_the_headers(checkpoint):
    weights = describe_checkpoint(str(checkpoint))["weights"]
    assert weights["source"] == "safetensors"
    assert weights["total_parameters"] == 864
    assert weights["total_bytes"] == 1728
    assert {name: group["parameters"] for name, group in weights["groups"].items()} == {
        "embedding": 256,
        "norm": 32,
        "attention": 192,
        "mlp": 384,
    }
    assert weights["counted"] == {name: group["bytes"] for name, group in weights["groups"].items()}


def test_tensors_of_multi_token_prediction_are_apart(checkpoint):
    write_safetensors(
        checkpoint / "extra.safetensors", {"model.layers.1.mlp.up_proj.weight": (16, 8), "mtp.fc.weight": (8, 8)}
    )
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index["weight_map"].update(
        {"model.layers.1.mlp.up_proj.weight": "extra.safetensors", "mtp.fc.weight": "extra.safetensors"}
    )
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert describe_checkpoint(str(checkpoint))["weights"]["groups"]["drafter"]["parameters"] == 192


def test_a_checkpoint_without_weights_is_described_and_not_complete(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "tokenizer.json").write_text("{}")
    model = describe_checkpoint(str(tmp_path))
    assert model["weights"]["source"] == "config"
    assert model["complete"] is False
    assert "no weights" in only_error(tmp_path)["title"]


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def grow(path):
    path.write_bytes(path.read_bytes() + b"123")


def empty(path):
    path.write_bytes(b"")


def pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def dangle(path):
    path.unlink()
    path.symlink_to("../../blobs/0000")


def cut_header(path):
    path.write_bytes(path.read_bytes()[:20])


def break_header(path):
    path.write_bytes(struct.pack("<Q", 4) + b"nope")


def no_safetensors(path):
    path.write_bytes(b"PK\x03\x04" + b"\xff" * 100)


@pytest.mark.parametrize(
    ("damage", "evidence"),
    [
        (cut, "10 are missing"),
        (grow, "3 more than its header says"),
        (empty, "has 0 bytes"),
        (pointer, "git-lfs"),
        (dangle, "../../blobs/0000"),
        (cut_header, "ends inside its header"),
        (break_header, "not the JSON"),
        (no_safetensors, "not a safetensors file"),
        (os.unlink, "does not exist"),
    ],
    ids=["truncated", "grown", "empty", "lfs", "dangling", "half-header", "bad-header", "zip", "absent"],
)
def test_a_damaged_shard_is_found(checkpoint, damage, evidence):
    damage(checkpoint / SHARD)
    found = only_error(checkpoint)
    assert found["class"] == "corrupted_weights"
    assert SHARD in found["title"]
    assert evidence in found["evidence"]
    model = describe_checkpoint(str(checkpoint))
    assert model["would_start_offline"] is False
    assert model["weights"]["source"] == "config"


def test_a_shard_that_may_not_be_read_is_found(checkpoint, monkeypatch):
    real = open

    def guarded(path, *arguments, **keywords):
        if str(path).endswith(SHARD):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(_checkpoint_files, "open", guarded, raising=False)
    found = only_error(checkpoint)
    assert found["class"] == "mount_permissions"
    assert "Permission denied" in found["evidence"]


def test_an_index_of_another_version_is_found(checkpoint):
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.0.self_attn.extra.weight"] = SHARD
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model.layers.0.self_attn.extra.weight" in only_error(checkpoint)["evidence"]


def test_weights_in_mistrals_format_beside_the_others_do_not_count_twice(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for name in ("model.safetensors", "consolidated.safetensors"):
        write_safetensors(tmp_path / name, TINY_TENSORS)
    assert describe_checkpoint(str(tmp_path))["weights"]["total_parameters"] == 864


def test_pickled_weights_are_a_warning(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("x")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    model = describe_checkpoint(str(tmp_path))
    assert [(entry["severity"], entry["evidence"]) for entry in model["findings"]] == [("warning", "pytorch_model.bin")]
    assert model["complete"] is True


def test_a_missing_tokenizer_stops_an_offline_start(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    found = only_error(checkpoint)
    assert found["class"] == "model_not_found_offline"
    assert "tokenizer.json" in found["evidence"]


def test_a_missing_chat_template_is_a_warning(checkpoint):
    (checkpoint / "tokenizer_config.json").unlink()
    model = describe_checkpoint(str(checkpoint))
    assert [(entry["class"], entry["severity"]) for entry in model["findings"]] == [
        ("chat_template_missing", "warning")
    ]
    assert model["complete"] is True


def test_code_in_another_repository_would_be_fetched(checkpoint):
    config = dict(TINY, auto_map={"AutoModel": "someone/code--modeling_x.X"})
    (checkpoint / "config.json").write_text(json.dumps(config))
    model = describe_checkpoint(str(checkpoint))
    assert (model["complete"], model["would_start_offline"]) == (True, False)
    assert "someone/code" in model["findings"][0]["evidence"]


def test_an_unfinished_download_is_found(checkpoint):
    folder = checkpoint / ".cache" / "huggingface" / "download"
    folder.mkdir(parents=True)
    (folder / "abc.incomplete").write_bytes(b"x")
    assert "abc.incomplete" in only_error(checkpoint)["evidence"]


def huggingface_cache(checkpoint, root):
    """The checkpoint as ``hf download`` stores it: blobs named by hash, snapshots of links."""
    folder = root / "models--org--model"
    snapshot = folder / "snapshots" / "abc123"
    (folder / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc123")
    for path in checkpoint.iterdir():
        blob = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, folder / "blobs" / blob)
        (snapshot / path.name).symlink_to(os.path.join("..", "..", "blobs", blob))
    return folder


def test_a_hugging_face_cache_is_followed_and_proves_itself(checkpoint, tmp_path):
    folder = huggingface_cache(checkpoint, tmp_path / "hub")
    model = describe_checkpoint(str(folder), with_hash=True)
    assert (model["layout"], model["revision"], model["complete"]) == ("huggingface_cache", "abc123", True)
    assert model["files"]["hashed"] == len(list(checkpoint.iterdir()))
    blob = (folder / "snapshots" / "abc123" / "tokenizer.json").resolve()
    blob.write_text('{"changed": 1}')
    assert "tokenizer.json" in only_error(folder, with_hash=True)["title"]


def test_a_hugging_face_cache_without_a_snapshot_is_refused(tmp_path):
    (tmp_path / "models--org--model" / "snapshots").mkdir(parents=True)
    with pytest.raises(ValueError, match="hf download org/model"):
        describe_checkpoint(str(tmp_path / "models--org--model"))


def test_a_modelscope_folder_is_recognised(checkpoint):
    (checkpoint / ".msc").write_bytes(b"x")
    assert describe_checkpoint(str(checkpoint))["layout"] == "modelscope"


def manifest_of(checkpoint):
    return [
        {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(checkpoint.iterdir())
    ]


def test_a_manifest_proves_a_copy(checkpoint, tmp_path):
    manifest, lines = tmp_path / "manifest.json", []
    manifest.write_text(json.dumps({"files": manifest_of(checkpoint)}))
    model = describe_checkpoint(str(checkpoint), str(manifest), with_hash=True, report=lines.append)
    assert (model["complete"], model["files"]["hashed"]) == (True, 6)
    total = sum(path.stat().st_size for path in checkpoint.iterdir())
    assert lines[-1] == {"phase": "hashing", "done_bytes": total, "total_bytes": total}


def test_a_manifest_of_sha256sum_is_read(checkpoint, tmp_path):
    manifest = tmp_path / "sums"
    manifest.write_text("".join(f"{entry['sha256']}  ./{entry['path']}\n" for entry in manifest_of(checkpoint)))
    assert describe_checkpoint(str(checkpoint), str(manifest), with_hash=True)["files"]["hashed"] == 6


def test_a_file_with_equal_size_and_other_contents_is_found_by_hash_only(checkpoint, tmp_path):
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(manifest_of(checkpoint)))
    (checkpoint / "tokenizer.json").write_text("[]")
    assert errors(checkpoint, manifest=str(manifest)) == []
    assert "tokenizer.json" in only_error(checkpoint, manifest=str(manifest), with_hash=True)["title"]


@pytest.mark.parametrize(
    ("entry", "evidence"),
    [
        ({"path": "absent.json", "size": 1}, "not there"),
        ({"path": "tokenizer.json", "size": 99}, "the manifest says 99"),
    ],
)
def test_what_differs_from_the_manifest_is_found(checkpoint, tmp_path, entry, evidence):
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps([entry]))
    assert evidence in only_error(checkpoint, manifest=str(manifest))["evidence"]


@pytest.mark.parametrize("text", ["[1]", '{"files": 1}', "no manifest at all"])
def test_what_is_no_manifest_is_refused(checkpoint, tmp_path, text):
    (tmp_path / "manifest").write_text(text)
    with pytest.raises(ValueError, match="manifest"):
        describe_checkpoint(str(checkpoint), str(tmp_path / "manifest"))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "not a directory"),
        (lambda folder: folder.mkdir(), "find .* -name config.json"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{")), "not JSON"),
        (lambda folder: (folder.mkdir(), pointer(folder / "config.json")), "git lfs pull"),
    ],
    ids=["absent", "no-config", "no-json", "lfs"],
)
def test_what_is_no_checkpoint_is_refused_with_the_next_step(tmp_path, prepare, message):
    prepare(tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        describe_checkpoint(str(tmp_path / "model"))


def test_an_adapter_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", "r": 16}))
    model = describe_checkpoint(str(tmp_path))
    assert (model["kind"], model["adapter"]["rank"], model["complete"]) == ("adapter", 16, False)
    assert "enable_lora" in model["findings"][0]["next"]


def test_adapters_below_a_checkpoint_are_listed(checkpoint):
    (checkpoint / "lora").mkdir()
    (checkpoint / "lora" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "b", "r": 8}))
    assert describe_checkpoint(str(checkpoint))["adapters"]["lora"]["rank"] == 8


def test_a_drafter_needs_no_tokenizer(checkpoint):
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "config.json").write_text(json.dumps(dict(TINY, architectures=["Eagle3LlamaForCausalLM"])))
    model = describe_checkpoint(str(checkpoint))
    assert (model["kind"], model["complete"]) == ("drafter", True)


def test_sentence_transformers_files_make_an_embedding_model(checkpoint):
    modules = [
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    (checkpoint / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64}))
    model = describe_checkpoint(str(checkpoint))
    assert (model["task"], model["max_model_len"]) == ("embed", 64)
    assert model["sentence_transformers"] == {"pooling": ["lasttoken"], "normalizes": True, "max_seq_length": 64}


def test_parameters_of_mistrals_own_format_are_understood(tmp_path):
    parameters = {
        "dim": 8,
        "n_layers": 1,
        "head_dim": 4,
        "hidden_dim": 16,
        "n_heads": 2,
        "n_kv_heads": 1,
        "vocab_size": 32,
    }
    (tmp_path / "params.json").write_text(json.dumps(parameters))
    model = describe_checkpoint(str(tmp_path))
    assert (model["architecture"], model["num_key_value_heads"], model["vocab_size"]) == ("MistralForCausalLM", 1, 32)


def test_quantisation_of_modelopt_is_read_from_its_own_file(checkpoint):
    companion = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps(companion))
    quantization = describe_checkpoint(str(checkpoint))["quantization"]
    assert (quantization["method"], quantization["weight_bits"], quantization["kv_cache_dtype"]) == (
        "modelopt_fp4",
        4,
        "fp8",
    )


def test_a_large_checkpoint_takes_no_longer_than_its_headers(tmp_path):
    """A sparse file of 64 GiB: only its header is read."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    path = tmp_path / "model.safetensors"
    size = 64 * 2**30
    entry = {"model.embed_tokens.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(entry).encode()
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(header)) + header)
        handle.truncate(8 + len(header) + size)
    assert describe_checkpoint(str(tmp_path))["weights"]["total_bytes"] == size

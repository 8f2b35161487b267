# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a checkpoint's directory tells beyond its config.json. Private to the collection gpufleet.vllm.

Reads files and headers only; nothing is imported, nothing executed.
"""

from __future__ import annotations

import os

from ._checkpoint_files import file_problem, finding, has_chat_template, read_json, tokenizer_files
from ._checkpoint_hash import sha256_of
from ._shape_config import read_int

MISTRAL_PARAMETERS = "params.json"
"""Mistral's own format has this instead of config.json (vLLM's ``--config-format mistral``)."""


def read_configuration(directory):
    """(config.json as a dict, findings).

    Raises: ValueError where there is none, or it cannot be read.
    """
    config, problem = read_json(directory, "config.json")
    if config is None and problem is None:
        config, problem = _mistral_configuration(directory)
    if problem:
        raise ValueError("{}: {} {}".format(problem["title"], problem["evidence"], problem["next"]))
    if not isinstance(config, dict):
        raise ValueError(
            f"{directory} has no config.json, so it is not a checkpoint. Give the directory that holds config.json; "
            f"find it with: find {directory} -name config.json"
        )
    return config


def _mistral_configuration(directory):
    parameters, problem = read_json(directory, MISTRAL_PARAMETERS)
    if not isinstance(parameters, dict):
        return None, problem
    experts = parameters.get("moe") or {}
    config = dict(parameters, model_type="mixtral" if experts else "mistral")
    config["architectures"] = ["MixtralForCausalLM" if experts else "MistralForCausalLM"]
    config["num_local_experts"] = experts.get("num_experts")
    config["num_experts_per_tok"] = experts.get("num_experts_per_tok")
    config.setdefault("max_position_embeddings", read_int(parameters, "max_position_embeddings") or 128000)
    config.setdefault("tie_word_embeddings", bool(parameters.get("tied_embeddings")))
    return config, None


def is_adapter(directory):
    """Whether the directory holds a LoRA adapter and no model."""
    paths = [os.path.join(directory, name) for name in ("adapter_config.json", "config.json", MISTRAL_PARAMETERS)]
    return os.path.exists(paths[0]) and not any(os.path.exists(path) for path in paths[1:])


def describe_adapter(directory):
    """What a LoRA adapter says of itself: base model, rank, modules."""
    content, _problem = read_json(directory, "adapter_config.json")
    content = content if isinstance(content, dict) else {}
    return {
        "base_model": content.get("base_model_name_or_path"),
        "rank": content.get("r"),
        "target_modules": content.get("target_modules"),
    }


def adapters(directory):
    """Adapters in the folders directly below a checkpoint, by folder name."""
    found = {}
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if os.path.isdir(path) and os.path.exists(os.path.join(path, "adapter_config.json")):
            found[name] = describe_adapter(path)
    return found


def sentence_transformers(directory):
    """What sentence-transformers files say of an embedding model; None where there are none."""
    modules, _problem = read_json(directory, "modules.json")
    if not isinstance(modules, list):
        return None
    pooling = next((entry.get("path") for entry in modules if str(entry.get("type")).endswith("Pooling")), None)
    modes = read_json(os.path.join(directory, pooling), "config.json")[0] if pooling else None
    settings = read_json(directory, "sentence_bert_config.json")[0]
    return {
        "pooling": sorted(
            key[len("pooling_mode_") :]
            for key, value in (modes or {}).items()
            if key.startswith("pooling_mode_") and value is True
        ),
        "normalizes": any(str(entry.get("type")).endswith("Normalize") for entry in modules),
        "max_seq_length": (settings or {}).get("max_seq_length"),
    }


def tokenizer(directory):
    """Which tokenizer files are there and whether a chat template is among them."""
    return {"files": tokenizer_files(directory), "chat_template": has_chat_template(directory)}


def directory_findings(directory, config, task, tokenizer_found, unfinished):
    """Findings about everything but the weights."""
    findings = [_unfinished(unfinished)] if unfinished else []
    if not tokenizer_found["files"]:
        findings.append(_no_tokenizer(directory))
    elif task == "generate" and not tokenizer_found["chat_template"]:
        findings.append(_no_chat_template(directory))
    return findings + _remote_code_findings(directory, config)


def _unfinished(names):
    return finding(
        "corrupted_weights",
        "A download of the checkpoint did not end",
        "unfinished: {}".format(", ".join(names[:3])),
        "Start the download again; it goes on where it stopped. Then remove the unfinished files",
    )


def _no_tokenizer(directory):
    return finding(
        "model_not_found_offline",
        "The tokenizer is missing",
        f"{directory} has no complete tokenizer (tokenizer.json, tokenizer.model, tekken.json or the like).",
        "Copy the tokenizer's files beside the weights; without them vLLM asks the hub and fails offline",
    )


def _no_chat_template(directory):
    return finding(
        "chat_template_missing",
        "No chat template comes with the checkpoint",
        f"neither chat_template.jinja nor tokenizer_config.json in {directory} has one.",
        "/v1/chat/completions will refuse requests: add chat_template.jinja, or set chat_template in engine_args. "
        "A base model that only completes text needs none",
        severity="warning",
    )


def remote_code(config):
    """(Python files of the checkpoint that would run, repositories elsewhere whose files would be fetched and run)."""
    files, elsewhere = set(), set()
    for reference in (config.get("auto_map") or {}).values():
        for item in reference if isinstance(reference, (list, tuple)) else (reference,):
            if not isinstance(item, str) or "." not in item:
                continue
            repository, _separator, name = item.rpartition("--")
            files.add(name.rsplit(".", 1)[0] + ".py")
            if repository:
                elsewhere.add(repository)
    return sorted(files), sorted(elsewhere)


def python_files(directory):
    """[{"path", "sha256"}] of every Python file of a checkpoint: with trust_remote_code, each of them could run.

    What ``auto_map`` names is run; what that imports from beside it is run too, and which that is only running tells.
    """
    found = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.isfile(path):
                found.append({"path": os.path.relpath(path, directory), "sha256": sha256_of(path)})
    return sorted(found, key=lambda entry: entry["path"])


def _remote_code_findings(directory, config):
    files, elsewhere = remote_code(config)
    if elsewhere:
        return [
            finding(
                "trust_remote_code",
                "The checkpoint runs code of another repository",
                "auto_map refers to {}".format(", ".join(elsewhere)),
                "vLLM would fetch it from the hub: copy its files here and remove the part before -- in auto_map",
                severity="warning",
            )
        ]
    problems = [file_problem(os.path.join(directory, name), name) for name in files]
    return [dict(problem, **{"class": "trust_remote_code", "severity": "warning"}) for problem in problems if problem]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Knows a model from its config.json and, where there are files, from its checkpoint directory.

Private to the collection gpufleet.vllm. Runs on hosts: Python 3.8, standard library only. The names and the docstring
of `describe_config` and `describe_checkpoint` are the contract that the planner builds on.

The normal form
===============

Both functions return one dict of plain JSON values. All sizes are bytes, all lengths tokens.

``architecture`` (str), ``architectures`` (list), ``model_type`` (str)
    As in config.json, outermost; ``text_model_type`` that of the language model inside a multimodal one.
``known`` (bool)
    False where the family is unknown here: then the shape is Llama's with the larger assumption, and a warning says so.
``task`` (str)
    ``generate``, ``embed``, ``classify``, ``score``, ``transcribe``.
``dtype`` (str), ``stored_dtype`` (str or None)
    What vLLM computes in with ``--dtype auto`` (a float32 checkpoint runs in 16 bit); what config.json states.
``max_model_len`` (int)
    What vLLM takes where ``--max-model-len`` is not given: positions, times the factor of rope scaling where it counts.
``vocab_size``, ``hidden_size``, ``num_hidden_layers``, ``num_attention_heads``, ``num_key_value_heads``, ``head_dim``,
``intermediate_size``, ``num_experts``, ``num_experts_per_tok`` (int), ``tie_word_embeddings`` (bool)
    Of the language model; the largest where layers differ; ``num_experts`` 0 for dense models.
``layers`` (list)
    In order, runs of equal layers merged: ``{"count", "attention", "mlp", "tensors"}``.

    ``attention`` ``kind`` is one of

    * ``full``, ``sliding``, ``chunked``: ``num_heads``, ``num_kv_heads``, ``head_dim``, ``head_dim_v`` and ``window``
      (tokens; None for full). ``shares_kv`` True where the layer reads another layer's cache, ``encoder_only`` True in
      encoders: both keep none. ``beside``: the ``attention`` of a mixer that the layer has as well.
    * ``mla``: ``num_heads``, ``kv_lora_rank``, ``q_lora_rank`` (or None), ``qk_nope_head_dim``, ``qk_rope_head_dim``,
      ``v_head_dim``, ``window``, and ``indexer`` ``{"head_dim", "num_heads", "topk"}`` where attention is sparse.
    * ``linear``, ``mamba``: a state of fixed size: ``state`` names its type and carries its dimensions.
    * ``none``: the layer keeps nothing.

    ``mlp`` ``kind`` is ``dense`` (``intermediate_size``), ``moe`` (``intermediate_size`` of one expert,
    ``num_experts``, ``num_experts_per_tok``, ``shared_intermediate_size``) or ``none``.

    ``tensors`` is a list of ``{"name", "group", "out", "in", "copies", "split"}`` and where they apply ``bias`` (True),
    ``heads`` (of a ``kv_heads`` split), ``scheme`` (a key of ``quantization["schemes"]``), ``dtype`` (where it is not
    the model's), ``plain`` (True: never quantised at load).
    ``group``: embedding, head, norm, attention, mlp, router, experts, shared_experts, state, vision, audio, drafter.
    ``split``, what tensor parallelism does: ``column`` (outputs divided), ``row`` (inputs divided), ``kv_heads``
    (divided, and repeated beyond one head a GPU), ``vocabulary`` (padded to 64, then divided), ``expert_column`` and
    ``expert_row`` (divided; with expert parallelism the copies are), ``replicated``.
``outside`` (list)
    Tensors outside of the layers, with ``stage``: ``first``, ``last``, ``first_and_last`` (once if there is one stage)
    or ``all`` pipeline stages.
``rotary`` (list)
    Rotary tables that vLLM keeps: ``{"positions", "dim", "dtype"}``, one each.
``quantization`` (dict or None)
    ``method``, ``weight_bits`` (the least), ``group_size``, ``ignored`` (module names and patterns as stated),
    ``kv_cache_dtype`` (or None), ``schemes``.
``vision``, ``audio`` (dict or None)
    The towers of multimodal models: ``hidden_size``, ``num_hidden_layers``, ``model_type``.
``mtp_layers`` (int)
    Layers for multi-token prediction in the checkpoint; vLLM loads them only for speculative decoding.
``weights`` (dict)
    ``source`` (``config``: counted from the shape; ``safetensors``: read from the headers), ``total_bytes``,
    ``total_parameters``, ``groups`` ``{group: {"bytes", "parameters"}}``.
    ``counted`` ``{group: bytes}``: with ``safetensors``, what the shape alone gives.
``requires_trust_remote_code`` (bool), ``remote_code`` (list of Python files that would run)
``findings`` (list of ``{"class", "title", "evidence", "next", "severity"}``), ``warnings`` (list of str)
    severity ``error``: the model would not load, or would be wrong; ``warning``: it loads, something is missing.

`describe_checkpoint` adds

``kind`` (``model``, ``adapter`` or ``drafter``), ``path``, ``layout``, ``revision`` (see ``_checkpoint_location``)
``complete`` (bool: no finding of severity error), ``would_start_offline`` (bool: nor does anything have to be fetched)
``files`` ``{"count", "total_bytes", "hashed"}``, ``tokenizer`` ``{"files", "chat_template"}``
``python_files`` [{"path", "sha256"}]: every Python file; with trust_remote_code, each of them could run
``generation_config`` (dict or None), ``sentence_transformers`` (dict or None), ``adapters`` ``{folder: {...}}``
"""

from __future__ import annotations

from . import (
    _checkpoint_directory,
    _shape_attention,
    _shape_mlp,
    _shape_quantization,
    _shape_rotary,
    _shape_tensors,
    _shape_towers,
)
from ._checkpoint_directory import remote_code
from ._checkpoint_files import finding, read_json, read_weights, total_size
from ._checkpoint_hash import manifest_of_cache, read_manifest, verify
from ._checkpoint_location import locate
from ._checkpoint_tensors import sum_tensors
from ._shape_config import DTYPE_BYTES, max_model_len, read_int, stored_dtype, text_config
from ._shape_families import is_known
from ._shape_size import count_weights

TASKS = (
    ("ForSequenceClassification", "classify"),
    ("ForTokenClassification", "classify"),
    ("ForRewardModel", "reward"),
    ("ForProcessRewardModel", "reward"),
    ("RewardModel", "reward"),
    ("EmbeddingModel", "embed"),
    ("ForTextEncoding", "embed"),
    ("WhisperForConditionalGeneration", "transcribe"),
    ("Model", "embed"),
)
"""The task of an architecture by the end of its name; everything else generates."""

GENERATING_MODELS = ("Qwen2_5OmniModel", "Qwen2_5OmniThinkerModel")
"""Architectures that end like encoders and generate all the same."""

DRAFTER_MARKS = ("Eagle", "Medusa", "MLPSpeculator", "MTPModel", "DFlash")


def describe_config(config, quantization_config=None):
    """The normal form of a model from its config.json alone.

    Args:
        config: the parsed config.json (a dict).
        quantization_config: the parsed hf_quant_config.json of older ModelOpt checkpoints, where there is one.
    Returns: the normal form (see the module).
    Raises: ValueError where the dict cannot be a model's configuration.
    """
    if not isinstance(config, dict):
        raise ValueError(f"A model configuration is a JSON object, got {type(config).__name__}.")
    text = text_config(config)
    _require(text, "hidden_size", "num_hidden_layers", "vocab_size")
    model = _identity(config, text)
    quantization, rules = _shape_quantization.describe_quantization(text, quantization_config)
    vision, audio, towers, warnings = _shape_towers.describe_towers(config, text)
    model["layers"] = _layers(text, rules)
    model["outside"] = [
        _with_scheme(tensor, tensor["name"], rules) for tensor in _shape_tensors.outside_tensors(text) + towers
    ]
    model["rotary"] = _shape_rotary.rotary_tables(text, model["layers"])
    model.update(quantization=quantization, vision=vision, audio=audio, mtp_layers=read_int(text, "mtp_layers"))
    model["weights"] = count_weights(model)
    model["warnings"] = _warnings(model, text) + warnings
    model.update(
        requires_trust_remote_code=bool(config.get("auto_map")), remote_code=remote_code(config)[0], findings=[]
    )
    return model


def _require(text, *names):
    absent = [name for name in names if not read_int(text, name)]
    if absent:
        raise ValueError(
            "The configuration (model_type {!r}) states no {}: it is not a language model's config.json.".format(
                text.get("model_type"), " and no ".join(absent)
            )
        )


def _warnings(model, text):
    if not model["known"]:
        return [
            "The family {!r} ({}) is not described here: its layers are taken as Llama's, with full attention in every "
            "layer. Compare the plan with the first boot.".format(text.get("model_type"), model["architecture"])
        ]
    if any("compress_ratio" in run["attention"] for run in model["layers"]):
        return [
            "The KV cache of this family is compressed; it is counted as if it were not, which is more than it takes."
        ]
    return []


def _identity(config, text):
    architectures = list(config.get("architectures") or text.get("architectures") or [])
    hidden, heads = read_int(text, "hidden_size"), read_int(text, "num_attention_heads", 1)
    return {
        "architecture": architectures[0] if architectures else "unknown",
        "architectures": architectures,
        "model_type": config.get("model_type") or "unknown",
        "text_model_type": text.get("model_type") or "unknown",
        "known": is_known(text),
        "task": task_of(architectures),
        "dtype": _compute_dtype(text),
        "stored_dtype": stored_dtype(text),
        "max_model_len": max_model_len(text),
        "vocab_size": read_int(text, "vocab_size"),
        "hidden_size": hidden,
        "num_hidden_layers": read_int(text, "num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": read_int(text, "num_key_value_heads", heads),
        "head_dim": read_int(text, "head_dim") or hidden // max(heads, 1),
        "intermediate_size": read_int(text, "intermediate_size"),
        "num_experts": read_int(text, "num_experts"),
        "num_experts_per_tok": read_int(text, "num_experts_per_tok"),
        "tie_word_embeddings": _shape_tensors.is_tied(text),
    }


def _compute_dtype(text):
    stored = stored_dtype(text)
    return "float16" if stored == "float16" else "bfloat16"


def _layers(text, rules):
    runs = []
    for index in range(read_int(text, "num_hidden_layers")):
        attention = _shape_attention.attention_of_layer(text, index)
        mlp = _shape_mlp.mlp_of_layer(text, index)
        prefix = f"layers.{index}."
        tensors = [
            _with_scheme(tensor, prefix + tensor["name"], rules)
            for tensor in _shape_tensors.layer_tensors(text, attention, mlp)
        ]
        layer = {"attention": attention, "mlp": mlp, "tensors": tensors}
        if runs and all(runs[-1][key] == layer[key] for key in layer):
            runs[-1]["count"] += 1
        else:
            runs.append(dict(layer, count=1))
    return runs


def _with_scheme(tensor, name, rules):
    """The tensor with its quantisation scheme; experts are looked up as the module that holds their matrices."""
    if tensor.get("plain"):
        return tensor
    kind = "experts" if tensor["group"] == "experts" else ("head" if tensor.get("head") else "linear")
    module = name.rsplit(".", 1)[0] if kind == "experts" else name
    key = rules.scheme_of(module, kind)
    return dict(tensor, scheme=key) if key else tensor


def task_of(architectures):
    """What an architecture is for, as the normal form's ``task``."""
    name = architectures[0] if architectures else ""
    if name in GENERATING_MODELS:
        return "generate"
    return next((task for end, task in TASKS if name.endswith(end)), "generate")


def describe_checkpoint(path, manifest=None, with_hash=False, report=None):
    """The normal form of a checkpoint directory; ``weights`` from the headers of its safetensors files.

    Args:
        path: the directory with config.json, or a Hugging Face cache folder (``models--org--name``).
        manifest: path of a manifest that the files have to agree with (see ``_checkpoint_hash``), or None.
        with_hash: also hash what the manifest names, or what a Hugging Face cache names by its hash.
        report: called with progress ({"phase", "done_bytes", "total_bytes"}) as hashing advances.
    Returns: the normal form (see the module).
    Raises: ValueError where there is no checkpoint, its config.json cannot be read, or the manifest cannot.
    """
    location = locate(str(path))
    if _checkpoint_directory.is_adapter(location.path):
        return _describe_adapter(location)
    config = _checkpoint_directory.read_configuration(location.path)
    model = describe_config(config, read_json(location.path, "hf_quant_config.json")[0])
    weights = read_weights(location.path)
    if weights.shards and not weights.findings:
        # What a damaged or missing shard holds is known only from the shape.
        model["weights"] = _weights_of_files(model, weights)
    model["findings"] = weights.findings + _weight_findings(location.path, weights)
    _add_directory(model, location, config)
    hashed = _add_manifest(model, location, manifest, with_hash, report)
    _conclude(model, location, hashed)
    return model


def _describe_adapter(location):
    return {
        "kind": "adapter",
        "path": location.path,
        "layout": location.layout,
        "revision": location.revision,
        "adapter": _checkpoint_directory.describe_adapter(location.path),
        "complete": False,
        "warnings": [],
        "findings": [
            finding(
                "other",
                "This is a LoRA adapter, not a model",
                f"{location.path} has adapter_config.json and no config.json",
                "Serve its base model and load the adapter with enable_lora and lora_modules",
            )
        ],
    }


def _weights_of_files(model, weights):
    groups = sum_tensors(weights.shards, model["num_hidden_layers"], DTYPE_BYTES[model["dtype"]])
    return {
        "source": "safetensors",
        "total_bytes": sum(group["bytes"] for group in groups.values()),
        "total_parameters": sum(group["parameters"] for group in groups.values()),
        "groups": groups,
        "counted": {name: group["bytes"] for name, group in model["weights"]["groups"].items()},
    }


def _weight_findings(directory, weights):
    if weights.shards or weights.findings:
        return []
    if weights.pickles:
        return [
            finding(
                "other",
                "The weights are pickle files",
                ", ".join(weights.pickles[:3]),
                "vLLM loads them, slowly; a pickle can run code. Prefer the safetensors files of the same model",
                severity="warning",
            )
        ]
    return [
        finding(
            "corrupted_weights",
            "There are no weights",
            f"{directory} has no *.safetensors file.",
            "Copy or download the model's safetensors files into it",
        )
    ]


def _add_directory(model, location, config):
    model["tokenizer"] = _checkpoint_directory.tokenizer(location.path)
    model["generation_config"] = read_json(location.path, "generation_config.json")[0]
    model["sentence_transformers"] = _checkpoint_directory.sentence_transformers(location.path)
    model["adapters"] = _checkpoint_directory.adapters(location.path)
    model["python_files"] = _checkpoint_directory.python_files(location.path)
    model["kind"] = "drafter" if _is_drafter(model, config) else "model"
    if model["sentence_transformers"]:
        model["task"] = "embed" if model["task"] == "generate" else model["task"]
        stated = model["sentence_transformers"]["max_seq_length"]
        model["max_model_len"] = min(model["max_model_len"], stated or model["max_model_len"])
    if model["kind"] == "model":
        model["findings"] += _checkpoint_directory.directory_findings(
            location.path, config, model["task"], model["tokenizer"], location.unfinished
        )


def _is_drafter(model, config):
    return bool(config.get("speculators_config")) or any(mark in model["architecture"] for mark in DRAFTER_MARKS)


def _add_manifest(model, location, manifest, with_hash, report):
    entries = read_manifest(manifest) if manifest else []
    if with_hash and not entries:
        entries = manifest_of_cache(location.path)
        if not entries:
            model["warnings"].append("Nothing was hashed: give a manifest, there is none in this layout.")
    findings, hashed = verify(location.path, entries, with_hash, report)
    known = [entry["title"] for entry in model["findings"]]
    model["findings"] += [entry for entry in findings if entry["title"] not in known]
    return hashed


def _conclude(model, location, hashed):
    count, size = total_size(location.path)
    model["files"] = {"count": count, "total_bytes": size, "hashed": hashed}
    model.update(path=location.path, layout=location.layout, revision=location.revision)
    model["complete"] = not any(entry["severity"] == "error" for entry in model["findings"])
    fetches = any(entry["class"] == "trust_remote_code" for entry in model["findings"])
    model["would_start_offline"] = model["complete"] and not fetches

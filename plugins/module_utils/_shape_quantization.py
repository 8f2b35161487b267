# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a checkpoint's weights are quantised, module by module. Private to the collection gpufleet.vllm.

A scheme says how many bytes a matrix takes::

    {"name": "fp8_block", "weight_bits": 8, "granularity": "tensor|channel|block|group",
     "block": [rows, columns] or None, "group_size": int or None, "scale_bytes": int, "zero_points": bool,
     "act_order": bool, "input_scale": bool}

``granularity`` says what one scale covers: the matrix, one output row, a block, or a group of inputs of one row.
Sources: the ``create_weights`` methods in ``vllm/model_executor/layers/quantization``.
"""

from __future__ import annotations

import fnmatch
import re

PREFIXES = (
    "",
    "model.",
    "language_model.",
    "model.language_model.",
    "language_model.model.",
    "text_model.",
    "backbone.",
    "transformer.",
    "model.text_model.",
    "llm.",
)
"""What checkpoints put in front of ``layers.N``: rules name modules with one of these."""

EXPERT_CHILDREN = ("0.gate_proj", "0.up_proj", "0.down_proj", "0.w1", "0.w2", "0.w3", "gate_up_proj", "gate_proj")
"""Rules may name one matrix of one expert where they mean them all."""


def scheme(name, weight_bits, granularity, **extra):
    """A scheme with the defaults of what is not said."""
    result = {
        "name": name,
        "weight_bits": weight_bits,
        "granularity": granularity,
        "block": None,
        "group_size": None,
        "scale_bytes": 4,
        "zero_points": False,
        "act_order": False,
        "input_scale": False,
    }
    result.update(extra)
    return result


FP8_TENSOR = scheme("fp8", 8, "tensor", input_scale=True)
NVFP4 = scheme("nvfp4", 4, "group", group_size=16, scale_bytes=1, input_scale=True)
MXFP4 = scheme("mxfp4", 4, "group", group_size=32, scale_bytes=1)
MXFP8 = scheme("mxfp8", 8, "group", group_size=32, scale_bytes=1)

MODELOPT_ALGORITHMS = {
    "FP8": FP8_TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": scheme("fp8_channel", 8, "channel"),
    "FP8_PB_WO": scheme("fp8_block", 8, "block", block=[128, 128]),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "NVFP4_SVDQUANT": NVFP4,
    "MXFP8": MXFP8,
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "W4A16_AWQ": scheme("int4_g128", 4, "group", group_size=128, scale_bytes=2),
    "W8A8_SQ_PER_CHANNEL": scheme("int8_channel", 8, "channel"),
}


def describe_quantization(config, companion=None):
    """The normal form's ``quantization``, and the rules to apply it.

    Args:
        config: the language model's part of config.json.
        companion: the parsed hf_quant_config.json of ModelOpt checkpoints, where there is one.
    Returns: (the normal form's dict or None, Rules).
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, dict):
        stated = _from_companion(companion)
    if not isinstance(stated, dict):
        return None, Rules({}, [], lambda name, kind: None)
    rules = _rules(stated)
    used = rules.schemes.values()
    return {
        "method": method_of(stated),
        "weight_bits": min((entry["weight_bits"] for entry in used), default=16),
        "group_size": next((entry["group_size"] for entry in used if entry["group_size"]), None),
        "ignored": rules.ignored,
        "kv_cache_dtype": kv_cache_dtype(stated),
        "schemes": rules.schemes,
    }, rules


def _from_companion(companion):
    inner = (companion or {}).get("quantization")
    return dict(inner, quant_method="modelopt") if isinstance(inner, dict) else None


def method_of(stated):
    """vLLM's name of the method, as ``--quantization`` has it."""
    method = str(stated.get("quant_method") or "").lower()
    algorithm = str(_modelopt(stated).get("quant_algo") or "").upper()
    if method.startswith("modelopt") or (not method and algorithm):
        if algorithm == "MIXED_PRECISION":
            return "modelopt_mixed"
        return "modelopt_fp4" if "NVFP4" in algorithm else "modelopt"
    return method or "unknown"


def kv_cache_dtype(stated):
    """``fp8`` where the checkpoint was made for an 8-bit KV cache, else None."""
    entry = stated.get("kv_cache_scheme") or {}
    algorithm = str(_modelopt(stated).get("kv_cache_quant_algo") or stated.get("kv_cache_quant_algo") or "").upper()
    if isinstance(entry, dict) and entry.get("num_bits") == 8:
        return "fp8"
    return "fp8" if algorithm == "FP8" else ("nvfp4" if algorithm == "NVFP4" else None)


def _modelopt(stated):
    inner = stated.get("quantization")
    return inner if isinstance(inner, dict) else stated


class Rules:
    """Which scheme each module has: ``scheme_of`` looks a module up by its name in the checkpoint."""

    def __init__(self, schemes, ignored, choose):
        self.schemes = schemes
        self.ignored = [str(item) for item in ignored]
        self._ignored = PatternSet(self.ignored)
        self._choose = choose

    def scheme_of(self, name, kind):
        """The key of the scheme of a module, None where it is not quantised.

        Args: name: without the prefix, as ``layers.3.mlp.experts``; kind: linear, experts, head, embedding.
        """
        if not self.schemes or self._ignored.matches(name):
            return None
        return self._choose(name, kind)


class PatternSet:
    """Names, ``re:`` expressions, wildcards and parts of names, as quantisation configurations use them."""

    def __init__(self, patterns):
        self._expressions, self._names = [], set()
        for pattern in patterns:
            self._add(pattern)

    def _add(self, pattern):
        if pattern.startswith("re:"):
            self._expressions.append(re.compile(pattern[3:]))
        elif "*" in pattern or "?" in pattern:
            self._expressions.append(re.compile(fnmatch.translate(pattern)))
            if pattern.endswith("*") and "*" not in pattern[:-1]:
                self._names.add(canonical(pattern[:-1].rstrip(".")))
        else:
            self._names.add(canonical(pattern))

    def matches(self, name):
        return any(self._matches(candidate) for candidate in candidates(name))

    def _matches(self, name):
        parts = name.split(".")
        for start in range(len(parts)):
            for end in range(len(parts), start, -1):
                if ".".join(parts[start:end]) in self._names:
                    return True
        return any(expression.match(prefix + name) for expression in self._expressions for prefix in PREFIXES)


def canonical(name):
    """A module's name from ``layers`` on; names outside of the layers without ``model.``."""
    position = name.find("layers.")
    if position > 0 and not re.search(r"(vision|visual|audio|mtp)", name[:position]):
        return name[position:]
    return re.sub(r"^(model\.)?(language_model\.)?(model\.)?", "", name) or name


TOWER_NAMES = ("vision_tower", "vision_model", "visual", "vision_encoder", "embed_vision", "vpm")
"""What families call their vision tower."""
PROJECTOR_NAMES = ("multi_modal_projector", "mm_projector", "embed_vision", "mlp1", "visual.merger", "vision_embed")


def candidates(name):
    """The names under which rules may mean a module."""
    for own, names in (("vision_tower", TOWER_NAMES), ("multi_modal_projector", PROJECTOR_NAMES)):
        if name.startswith(own + "."):
            return [other + name[len(own) :] for other in names]
    if name.endswith(".experts"):
        return [name] + [name + "." + child for child in EXPERT_CHILDREN]
    return [name]


def _rules(stated):
    method = method_of(stated)
    if method.startswith("modelopt"):
        return _modelopt_rules(stated)
    if method == "compressed-tensors":
        return _compressed_tensors_rules(stated)
    ignored = list(_ignored_modules(stated))
    if method == "fbgemm_fp8" and any("self_attn" in item for item in ignored):
        # Meta's recipe converts feed-forward parts only; a list that names attention at all means all of it.
        ignored.append("self_attn")
    if method in EXPERTS_ONLY:
        return _uniform(MXFP4, ignored, ("experts",))
    chosen = _simple_scheme(method, stated)
    kinds = ("linear", "experts", "head") if stated.get("lm_head") else ("linear", "experts")
    return _uniform(chosen, ignored, kinds) if chosen else Rules({}, ignored, lambda name, kind: None)


EXPERTS_ONLY = ("mxfp4", "gpt_oss_mxfp4")
"""Methods that vLLM applies to experts and to nothing else (``Mxfp4Config.get_quant_method``)."""


def _ignored_modules(stated):
    for key in (
        "modules_to_not_convert",
        "ignored_layers",
        "ignore",
        "llm_int8_skip_modules",
        "exclude_modules",
        "exclude",
    ):
        yield from stated.get(key) or ()


def _uniform(chosen, ignored, kinds):
    return Rules({chosen["name"]: chosen}, ignored, lambda name, kind: chosen["name"] if kind in kinds else None)


def _simple_scheme(method, stated):
    bits = int(stated.get("bits") or stated.get("w_bit") or 4)
    group = int(stated.get("group_size") or stated.get("q_group_size") or 0)
    if method == "fp8":
        return _fp8_scheme(stated)
    if method in ("fbgemm_fp8", "ptpc_fp8"):
        return scheme("fp8_channel", 8, "channel")
    if method in ("awq", "awq_marlin", "auto_awq"):
        return _integer_scheme(bits, group or 128, zero_points=bool(stated.get("zero_point", True)))
    if method in ("gptq", "gptq_marlin", "auto-round", "auto_round", "inc", "auto_gptq"):
        return _integer_scheme(
            bits, group, zero_points=not stated.get("sym", True), act_order=bool(stated.get("desc_act"))
        )
    if method == "bitsandbytes":
        return _bitsandbytes_scheme(stated)
    return {"mxfp8": MXFP8, "nvfp4": NVFP4}.get(method) or _other_scheme(method, bits, group)


def _other_scheme(method, bits, group):
    if method in ("quark", "torchao", "hqq", "experts_int8", "unknown", "gguf"):
        return scheme(f"{method}_8bit", 8, "channel")
    return _integer_scheme(bits, group)


def _fp8_scheme(stated):
    block = stated.get("weight_block_size")
    if block:
        return scheme("fp8_block", 8, "block", block=[int(size) for size in block])
    return dict(FP8_TENSOR, input_scale=stated.get("activation_scheme") == "static")


def _integer_scheme(bits, group, zero_points=False, act_order=False):
    if not group or group < 0:
        return scheme(f"int{bits}_channel", bits, "channel", scale_bytes=2, zero_points=zero_points)
    return scheme(
        f"int{bits}_g{group}",
        bits,
        "group",
        group_size=group,
        scale_bytes=2,
        zero_points=zero_points,
        act_order=act_order,
    )


def _bitsandbytes_scheme(stated):
    if stated.get("load_in_8bit"):
        return scheme("int8_channel", 8, "channel")
    return scheme(str(stated.get("bnb_4bit_quant_type") or "nf4"), 4, "group", group_size=64, scale_bytes=4)


def _compressed_tensors_rules(stated):
    schemes, targets = {}, []
    for group in (stated.get("config_groups") or {}).values():
        chosen = _compressed_scheme(group)
        if chosen:
            schemes[chosen["name"]] = chosen
            targets.append((group.get("targets") or ["Linear"], chosen["name"]))
    choose = _TargetChoice(targets)
    return Rules(schemes, stated.get("ignore") or [], choose)


class _TargetChoice:
    """The scheme of the first group of compressed-tensors whose targets mean the module."""

    CLASSES = {"Linear": ("linear", "experts", "head"), "FusedMoE": ("experts",), "Embedding": ("embedding",)}

    def __init__(self, targets):
        self._targets = [(self._kinds(names), PatternSet(self._modules(names)), key) for names, key in targets]

    def _kinds(self, names):
        return {kind for name in names for kind in self.CLASSES.get(name, ())}

    def _modules(self, names):
        return [str(name) for name in names if name not in self.CLASSES]

    def __call__(self, name, kind):
        for _kinds, modules, key in self._targets:
            if modules.matches(name):
                return key
        for kinds, _modules, key in self._targets:
            if kind in kinds:
                return key
        return None


def _compressed_scheme(group):
    weights = group.get("weights")
    if not isinstance(weights, dict):
        return None
    bits, strategy = int(weights.get("num_bits") or 16), weights.get("strategy")
    size, floating = weights.get("group_size"), weights.get("type") == "float"
    if floating and bits == 4:
        return dict(MXFP4 if size == 32 else NVFP4, input_scale=bool(group.get("input_activations")))
    if floating and strategy == "group" and size == 32:
        return MXFP8
    if strategy == "block":
        return scheme(
            "fp8_block", bits, "block", block=[int(edge) for edge in weights.get("block_structure") or (128, 128)]
        )
    if strategy in ("group", "tensor_group"):
        ordered = weights.get("actorder") in ("group", True)
        return _integer_scheme(
            bits, int(size or 128), zero_points=not weights.get("symmetric", True), act_order=ordered
        )
    kind = "fp8" if floating else f"int{bits}"
    static = (group.get("input_activations") or {}).get("dynamic") is False
    if strategy == "channel":
        wide = 4 if group.get("input_activations") else 2
        return scheme(kind + "_channel", bits, "channel", scale_bytes=wide, input_scale=static)
    return scheme(kind, bits, "tensor", input_scale=static)


def _modelopt_rules(stated):
    inner = _modelopt(stated)
    algorithm = str(inner.get("quant_algo") or "").upper()
    ignored = list(_ignored_modules(inner)) + list(_ignored_modules(stated) if inner is not stated else ())
    if algorithm == "MIXED_PRECISION":
        return _modelopt_mixed_rules(inner, ignored)
    chosen = MODELOPT_ALGORITHMS.get(algorithm) or (NVFP4 if "FP4" in algorithm else FP8_TENSOR)
    return _uniform(chosen, ignored, ("linear", "experts", "head"))


def _modelopt_mixed_rules(inner, ignored):
    schemes, by_name = {}, {}
    for name, layer in (inner.get("quantized_layers") or {}).items():
        chosen = MODELOPT_ALGORITHMS.get(str(layer.get("quant_algo")).upper())
        if chosen:
            schemes[chosen["name"]] = chosen
            by_name[canonical(name)] = chosen["name"]
    return Rules(schemes, ignored, lambda name, kind: _lookup(by_name, name))


def _lookup(by_name, name):
    for candidate in candidates(name):
        if candidate in by_name:
            return by_name[candidate]
    return None

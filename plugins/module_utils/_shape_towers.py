# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Vision and audio towers of multimodal models, and their projectors. Private to the collection gpufleet.vllm.

A tower is a transformer encoder: per layer four attention matrices and two or three of the feed-forward part. The
traits say what vLLM's class of it does; read from ``vllm/model_executor/models`` (siglip, clip, pixtral, qwen2_vl,
qwen2_5_vl, qwen3_vl, intern_vit, kimi_vl, mllama4, gemma4_mm, whisper).
"""

from __future__ import annotations

from ._shape_config import read_int
from ._shape_tensors import linear, vector

TOWER_KEYS = ("vision_config", "vision_tower_config", "visual_config", "vit_config", "vision_encoder_config")
AUDIO_KEYS = ("audio_config", "speech_config", "audio_encoder_config")

GLM_VISION = {"gated": True, "bias": False, "norm_bias": False, "intermediate": "out_hidden_size"}

TOWERS = {
    "siglip_vision_model": {},
    "siglip2_vision_model": {},
    "clip_vision_model": {"class_token": 1},
    "pixtral": {"gated": True, "bias": False, "norm_bias": False, "positions": False},
    "qwen2_vl": {"positions": False},
    "qwen2_5_vl": {"gated": True, "positions": False, "norm_bias": False},
    "qwen2_5_omni_vision_encoder": {"gated": True, "positions": False, "norm_bias": False},
    "qwen3_vl": {},
    "qwen3_vl_moe": {},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "qwen3_omni_moe_vision_encoder": {},
    "llama4_vision_model": {"class_token": 1, "norms": 2},
    "gemma4_vision": {"gated": True, "bias": False, "norm_bias": False, "norms": 4, "split": False, "positions": False},
    "moonvit": {"split_from": "0.14", "positions": False},
    "kimi_k25_vision": {"split_from": "0.14", "positions": False},
    "glm4v_vision": GLM_VISION,
    "glm4v_moe_vision": GLM_VISION,
    "intern_vit_6b": {"class_token": 1},
    "internvl_vision": {"class_token": 1},
}
"""Per vision model_type: ``gated`` (three feed-forward matrices), ``bias`` on all matrices, ``norms`` per layer and
whether they have a bias, learned ``positions``, a ``class_token``, ``split`` False where tensor parallelism leaves the
tower whole on every GPU, ``split_from``, the first release that divides it, and ``intermediate``, the entry that says
how wide the feed-forward part is."""


def describe_towers(config, text):
    """Towers of a multimodal model.

    Args: config: config.json; text: the language model's part of it.
    Returns: (``vision`` of the normal form or None, ``audio`` or None, tensors, warnings).
    """
    outer = config.get("thinker_config") or config
    vision, audio = _first(outer, TOWER_KEYS), _first(outer, AUDIO_KEYS)
    tensors, warnings = [], []
    if vision:
        vision = _repaired(_named(vision, outer), warnings)
        tensors += _vision_tensors(outer, vision, read_int(text, "hidden_size"))
    if audio:
        tensors += _audio_tensors(audio, read_int(text, "hidden_size"))
    return _summary(vision), _summary(audio), tensors, warnings


def _first(config, names):
    for name in names:
        if isinstance(config.get(name), dict) and config[name]:
            return config[name]
    return None


def _summary(tower):
    if not tower:
        return None
    return {
        "model_type": tower.get("model_type") or "unknown",
        "hidden_size": _hidden(tower),
        "num_hidden_layers": _layers(tower),
    }


def _named(vision, outer):
    """Qwen2-VL and Qwen2.5-VL name the family only once, at the top of config.json."""
    family = outer.get("model_type")
    return dict(vision, model_type=family) if family in TOWERS and not vision.get("model_type") else vision


def _repaired(vision, warnings):
    """Qwen2.5-Omni's config.json may carry the default of its configuration class instead of the tower's width."""
    heads = read_int(vision, "num_attention_heads")
    if vision.get("model_type") == "qwen2_5_omni_vision_encoder" and heads and _hidden(vision) // heads > 128:
        warnings.append(
            f"vision_config.hidden_size {_hidden(vision)} is the default of the configuration class, "
            f"not the tower's width; taken as {heads} heads of 80."
        )
        return dict(vision, hidden_size=80 * heads)
    return vision


def _hidden(tower):
    return int(tower.get("vt_hidden_size") or tower.get("embed_dim") or read_int(tower, "hidden_size") or 0)


def _layers(tower):
    return int(
        tower.get("vt_num_hidden_layers")
        or tower.get("depth")
        or tower.get("encoder_layers")
        or read_int(tower, "num_hidden_layers")
        or 0
    )


def _intermediate(tower, hidden):
    if _traits(tower).get("intermediate"):
        return int(tower[_traits(tower)["intermediate"]])
    stated = tower.get("vt_intermediate_size") or tower.get("encoder_ffn_dim") or read_int(tower, "intermediate_size")
    return int(stated or float(tower.get("mlp_ratio") or 4) * hidden)


def _traits(vision):
    return TOWERS.get(vision.get("model_type"), {})


def _vision_tensors(config, vision, text_hidden):
    traits = _traits(vision)
    hidden, layers = _hidden(vision), _used_layers(config, vision)
    split = traits.get("split", True)
    tensors = encoder_layers(
        "vision", "vision_tower.blocks", hidden, _intermediate(vision, hidden), layers, traits, vision
    )
    tensors += _patch_tensors(vision, traits, hidden)
    return tensors + _projector(config, vision, hidden, text_hidden, split)


LLAVA = ("llava", "llava_next", "llava_next_video", "vipllava", "llava_onevision")
"""Families whose configuration class takes the last but one layer where config.json does not say."""


def _used_layers(config, vision):
    """Layers up to the one whose output is used; the rest is not built (``vision_feature_layer`` -2: one less)."""
    layers = _layers(vision)
    used = config.get("vision_feature_layer", -2 if config.get("model_type") in LLAVA else None)
    if isinstance(used, (list, tuple)):
        used = max((index if index >= 0 else layers + 1 + index) for index in used)
        return min(layers, used)
    if isinstance(used, int) and used < -1:
        return layers + used + 1
    return layers


def encoder_layers(group, name, hidden, intermediate, layers, traits, tower):
    """The tensors of an encoder's layers, each with all layers as copies."""
    bias = traits.get("bias", True)
    across, along = ("column", "row") if traits.get("split", True) else ("replicated", "replicated")
    since = traits.get("split_from")
    inner = int(tower.get("qkv_hidden_size") or hidden)
    gates = 2 if traits.get("gated") else 1
    norms = traits.get("norms", 2) * (2 if traits.get("norm_bias", True) else 1)
    return [
        _tower_linear(name + ".attn.qkv", group, 3 * inner, hidden, across, layers, bias, since),
        _tower_linear(name + ".attn.proj", group, hidden, inner, along, layers, bias, since),
        _tower_linear(name + ".mlp.fc1", group, gates * intermediate, hidden, across, layers, bias, since),
        _tower_linear(name + ".mlp.fc2", group, hidden, intermediate, along, layers, bias, since),
        vector(name + ".norm", group, hidden, copies=norms * layers, stage="all"),
    ]


def _tower_linear(name, group, rows, columns, split, layers, bias, since):
    return linear(
        name, group, rows, columns, split, copies=layers, bias=bias, stage="all", apart=True, split_from=since
    )


def _patch_tensors(vision, traits, hidden):
    patch = read_int(vision, "patch_size") or int(vision.get("spatial_patch_size") or 14)
    frames = int(vision.get("temporal_patch_size") or 1)
    channels = int(vision.get("in_channels") or vision.get("num_channels") or 3)
    tensors = [
        linear(
            "vision_tower.patch_embed",
            "vision",
            hidden,
            channels * frames * patch * patch,
            "replicated",
            plain=True,
            stage="all",
        )
    ]
    positions = _positions(vision, traits, patch)
    if positions:
        tensors.append(
            linear("vision_tower.pos_embed", "vision", positions, hidden, "replicated", plain=True, stage="all")
        )
    return tensors


def _positions(vision, traits, patch):
    if vision.get("position_embedding_size"):
        return 2 * int(vision["position_embedding_size"])
    if vision.get("num_position_embeddings"):
        return int(vision["num_position_embeddings"])
    if vision.get("init_pos_emb_height"):
        return int(vision["init_pos_emb_height"]) * int(vision.get("init_pos_emb_width") or 64)
    if not traits.get("positions", True):
        return 0
    size = vision.get("image_size")
    size = size[0] if isinstance(size, (list, tuple)) else int(size or 224)
    return (size // patch) ** 2 + traits.get("class_token", 0)


def _projector(config, vision, hidden, text_hidden, split):
    """What turns image features into token embeddings, by the outer model."""
    family = config.get("model_type")
    builder = PROJECTORS.get(family, _two_layer_projector)
    return [dict(tensor, stage="all") for tensor in builder(config, vision, hidden, text_hidden, split)]


def _matrix(name, rows, columns, split="replicated", copies=1):
    return linear("multi_modal_projector." + name, "vision", rows, columns, split, bias=True, copies=copies, apart=True)


def _two_layer_projector(config, vision, hidden, text_hidden, split):
    """LLaVA's: hidden to text width, then square."""
    layers = config.get("vision_feature_layer")
    width = hidden * (len(layers) if isinstance(layers, (list, tuple)) else 1)
    across, along = ("column", "row") if split else ("replicated", "replicated")
    return [_matrix("linear_1", text_hidden, width, across), _matrix("linear_2", text_hidden, text_hidden, along)]


def _single_projector(config, vision, hidden, text_hidden, split):
    """Gemma's: one matrix."""
    return [_matrix("projection", text_hidden, hidden)]


def _patch_merger(config, vision, hidden, text_hidden, split):
    """Qwen-VL's: a square of patches becomes one token; Qwen3-VL repeats it for its deepstack layers."""
    width = hidden * int(vision.get("spatial_merge_size") or 2) ** 2
    out = int(vision.get("out_hidden_size") or text_hidden)
    copies = 1 + len(vision.get("deepstack_visual_indexes") or ())
    return [_matrix("fc1", width, width, "column", copies), _matrix("fc2", out, width, "row", copies)]


def _glm_projector(config, vision, hidden, text_hidden, split):
    """GLM-V's: a convolution over a square of patches, a projection and a gated feed-forward part."""
    out, inner = int(vision.get("out_hidden_size") or text_hidden), int(vision.get("intermediate_size") or 4 * hidden)
    return [
        _matrix("downsample", out, hidden * int(vision.get("spatial_merge_size") or 2) ** 2),
        _matrix("proj", out, out),
        _matrix("gate_up_proj", 2 * inner, out, "column"),
        _matrix("down_proj", out, inner, "row"),
    ]


def _mistral_projector(config, vision, hidden, text_hidden, split):
    merged = hidden * int(config.get("spatial_merge_size") or 1) ** 2
    return [_matrix("merging_layer", hidden, merged)] + _two_layer_projector(config, vision, hidden, text_hidden, split)


def _llama4_projector(config, vision, hidden, text_hidden, split):
    out = int(vision.get("projector_output_dim") or 4096)
    return [
        _matrix(
            "fc1",
            int(vision.get("projector_input_dim") or 4096),
            int(vision.get("intermediate_size") or 4 * hidden),
            "column",
        ),
        _matrix("fc2", out, out, "row"),
        _matrix("linear_1", text_hidden, int(vision.get("vision_output_dim") or out), "column"),
    ]


def _kimi_projector(config, vision, hidden, text_hidden, split):
    merge = vision.get("merge_kernel_size") or (2, 2)
    width = hidden * int(merge[0]) * int(merge[1])
    return [_matrix("linear_1", width, width), _matrix("linear_2", text_hidden, width)]


PROJECTORS = {
    "gemma3": _single_projector,
    "gemma4": _single_projector,
    "paligemma": _single_projector,
    "qwen2_vl": _patch_merger,
    "qwen2_5_vl": _patch_merger,
    "qwen2_5_omni_thinker": _patch_merger,
    "qwen3_vl": _patch_merger,
    "qwen3_vl_moe": _patch_merger,
    "qwen3_5": _patch_merger,
    "qwen3_5_moe": _patch_merger,
    "qwen3_omni_moe_thinker": _patch_merger,
    "glm4v": _glm_projector,
    "glm4v_moe": _glm_projector,
    "mistral3": _mistral_projector,
    "llama4": _llama4_projector,
    "kimi_vl": _kimi_projector,
    "kimi_k25": _kimi_projector,
    "kimi_k3": _kimi_projector,
}


def _audio_tensors(audio, text_hidden):
    """A Whisper-like encoder: two convolutions, layers with biases, a projection to the text width."""
    hidden = int(audio.get("d_model") or _hidden(audio))
    if not hidden or not _layers(audio):
        return []
    bins, out = int(audio.get("num_mel_bins") or 80), int(audio.get("output_dim") or text_hidden)
    name, traits = "audio_tower", {"split": True}
    return encoder_layers(
        "audio", name + ".layers", hidden, _intermediate(audio, hidden), _layers(audio), traits, audio
    ) + [
        linear(name + ".conv1", "audio", hidden, 3 * bins, "replicated", plain=True, stage="all"),
        linear(name + ".conv2", "audio", hidden, 3 * hidden, "replicated", plain=True, stage="all"),
        linear(
            name + ".positions",
            "audio",
            int(audio.get("max_source_positions") or 1500),
            hidden,
            "replicated",
            plain=True,
            stage="all",
        ),
        linear(name + ".proj", "audio", out, hidden, "replicated", bias=True, stage="all"),
    ]

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rotary tables that vLLM keeps on the GPU. Private to the collection gpufleet.vllm.

``get_rope`` in ``vllm/model_executor/layers/rotary_embedding`` makes one table of cosines and sines for each distinct
set of parameters and shares it between the layers: positions x rotary dimensions.
"""

from __future__ import annotations

from ._shape_config import read_int
from ._shape_families import traits_of

STRETCHED = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Scalings whose table is ``original_max_position_embeddings`` x ``factor`` long."""

MULTIPLIED = ("linear", "dynamic", "ntk")
"""Scalings whose table is ``max_position_embeddings`` x ``factor`` long."""


def rotary_tables(config, layers):
    """The tables of a model, as the normal form's ``rotary``.

    Args: config: the language model's part of config.json; layers: the normal form's layers.
    """
    tables = []
    if traits_of(config).get("no_rotary") or config.get("position_embedding_type") == "nope":
        return []
    for dimensions, windowed in _distinct_heads(layers):
        parameters = _parameters_for(config, windowed)
        table = _table(config, parameters, dimensions)
        entry = (parameters.get("rope_theta"), table)
        if table and entry not in tables:
            tables.append(entry)
    if config.get("compress_rope_theta"):
        # DeepSeek-V4 rotates its compressed history with a base of its own.
        tables += [(config["compress_rope_theta"], table) for _base, table in tables]
    return [table for _base, table in tables]


def _distinct_heads(layers):
    seen = []
    for run in layers:
        attention = run["attention"]
        dimensions = attention.get("qk_rope_head_dim") or attention.get("head_dim")
        if attention["kind"] in ("none", "linear", "mamba") or not dimensions or attention.get("no_rope"):
            continue
        entry = (dimensions, bool(attention.get("window")))
        if entry not in seen:
            seen.append(entry)
    return seen


def rope_parameters(config):
    """The rotary parameters: ``rope_parameters`` of new checkpoints, ``rope_scaling`` and others of old ones."""
    parameters = dict(config.get("rope_scaling") or {})
    parameters.update(config.get("rope_parameters") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta"))
    if config.get("partial_rotary_factor") is not None:
        parameters.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    return parameters


def _parameters_for(config, windowed):
    parameters = rope_parameters(config)
    by_type = parameters.get("sliding_attention" if windowed else "full_attention")
    if isinstance(by_type, dict):
        return by_type
    base = config.get("rope_local_base_freq") or config.get("swa_rope_theta") or traits_of(config).get("local_base")
    if windowed and base:
        return {"rope_theta": base, "partial_rotary_factor": parameters.get("partial_rotary_factor")}
    return parameters


def _table(config, parameters, dimensions):
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    rotary = _rotary_dimensions(config, parameters, dimensions, kind)
    table = {
        "positions": _positions(config, parameters, kind),
        "dim": rotary,
        "dtype": traits_of(config).get("rotary_dtype"),
        "multimodal": "mrope_section" in parameters or bool(traits_of(config).get("multimodal_rotary")),
    }
    return table if table["positions"] and rotary else None


def _rotary_dimensions(config, parameters, dimensions, kind):
    if kind == "proportional":
        return dimensions
    if config.get("rotary_dim"):
        return int(config["rotary_dim"])
    factor = parameters.get("partial_rotary_factor")
    factor = factor if factor is not None else config.get("rotary_pct") or 1.0
    return int(dimensions * factor)


def _positions(config, parameters, kind):
    positions = read_int(config, "max_position_embeddings")
    factor = parameters.get("factor") or 1.0
    original = parameters.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    if kind in STRETCHED:
        return int((original or positions) * factor)
    if kind in ("longrope", "su"):
        return positions + int(original or 0)
    if kind in MULTIPLIED and "alpha" not in parameters:
        return int(positions * factor)
    return positions

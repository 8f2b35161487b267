# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a checkpoint's weights are quantised, module by module. Private to the collection gpufleet.vllm."""

from __future__ import annotations


def describe_quantization(config):
    """The normal form's ``quantization``, None for an unquantised checkpoint."""
    quantization = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(quantization, dict):
        return None
    method = str(quantization.get("quant_method") or "").lower() or "unknown"
    return {
        "method": method,
        "weight_bits": int(quantization.get("bits") or 8),
        "group_size": quantization.get("group_size"),
        "block": quantization.get("weight_block_size"),
        "ignored": list(quantization.get("ignore") or quantization.get("modules_to_not_convert") or []),
    }

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytes of weight tensors in each storage format. Private to the collection gpufleet.vllm."""

from __future__ import annotations

from ._shape_config import DTYPE_BYTES


def matrix_bytes(rows, columns, scheme, value_bytes):
    """Bytes of one matrix of rows outputs by columns inputs.

    Args: scheme: an entry of ``quantization["schemes"]``, or None; value_bytes: of one unquantised value.
    """
    if scheme is None:
        return rows * columns * value_bytes
    size = -(-rows * columns * scheme["weight_bits"] // 8)
    scales = _scales(rows, columns, scheme)
    size += scales * scheme["scale_bytes"]
    if scheme["zero_points"]:
        size += -(-scales * scheme["weight_bits"] // 8)
    if scheme["act_order"]:
        size += 8 * columns
    return size + (4 if scheme["input_scale"] else 0)


def _scales(rows, columns, scheme):
    if scheme["granularity"] == "group":
        return rows * -(-columns // scheme["group_size"])
    if scheme["granularity"] == "block":
        return -(-rows // scheme["block"][0]) * -(-columns // scheme["block"][1])
    return rows if scheme["granularity"] == "channel" else 1


def tensor_bytes(tensor, rows, columns, copies, schemes, value_bytes):
    """Bytes of a tensor with the given local shape: weights, scales and bias of all its copies."""
    if tensor.get("dtype"):
        value_bytes = DTYPE_BYTES[tensor["dtype"]]
    size = matrix_bytes(rows, columns, schemes.get(tensor.get("scheme")), value_bytes)
    if tensor.get("bias"):
        size += rows * value_bytes
    return copies * size


def count_weights(model):
    """The normal form's ``weights`` as its shape has them, whole (not per GPU)."""
    groups, schemes = {}, (model["quantization"] or {}).get("schemes") or {}
    for count, tensor in all_tensors(model):
        rows, columns, copies = tensor["out"], tensor["in"], tensor["copies"] * count
        group = groups.setdefault(tensor["group"], {"bytes": 0, "parameters": 0})
        group["parameters"] += rows * (columns + (1 if tensor.get("bias") else 0)) * copies
        group["bytes"] += tensor_bytes(tensor, rows, columns, copies, schemes, DTYPE_BYTES[model["dtype"]])
    return {
        "source": "config",
        "total_bytes": sum(group["bytes"] for group in groups.values()),
        "total_parameters": sum(group["parameters"] for group in groups.values()),
        "groups": groups,
    }


def all_tensors(model):
    """(how often, tensor) of every tensor of the normal form."""
    for run in model["layers"]:
        for tensor in run["tensors"]:
            yield run["count"], tensor
    for tensor in model["outside"]:
        yield 1, tensor

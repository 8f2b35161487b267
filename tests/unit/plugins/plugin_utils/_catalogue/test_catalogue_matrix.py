# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which image, host and checkpoint fit together."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import matrix, release


def host(driver: str | None, *cards: tuple[str, str | None]) -> dict[str, Any]:
    return {
        "driver_version": driver,
        "gpus": [{"name": name, "compute_capability": capability} for name, capability in cards],
    }


H100 = ("NVIDIA H100 80GB HBM3", "9.0")
A100 = ("NVIDIA A100-SXM4-80GB", "8.0")
L4 = ("NVIDIA L4", "8.9")
T4 = ("Tesla T4", "7.5")
V100 = ("Tesla V100-SXM2-16GB", "7.0")
RTX3090 = ("NVIDIA GeForce RTX 3090", "8.6")
B200 = ("NVIDIA B200", "10.0")
B300 = ("NVIDIA B300", "10.3")
GB10 = ("NVIDIA GB10", "12.1")
THOR = ("NVIDIA Thor", "11.0")
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "dtype": "bfloat16", "quantization": None}


def row(subject: str, *given: Any) -> tuple[str, str]:
    found = [item for item in matrix(*given) if item["subject"] == subject]
    assert len(found) == 1
    return found[0]["status"], found[0]["reason"]


@pytest.mark.parametrize(
    ("image", "given", "status", "told"),
    [
        ("v0.32.0", host("580.95.05", H100), "supported", "580.65.06 or newer"),
        ("v0.9.0", host("570.26", H100), "supported", "CUDA 12.8"),
        ("v0.32.0", host("570.86.10", A100), "degraded", "VLLM_ENABLE_CUDA_COMPATIBILITY to 1"),
        ("v0.9.0", host("535.183.01", A100), "degraded", "loads by itself"),
        ("v0.32.0", host("570.86.10", RTX3090), "unsupported", "install 580.65.06 or newer"),
        ("v0.32.0", host("576.57", RTX3090), "unsupported", "use the tag v0.32.0-cu129 (CUDA 12.9)"),
        ("v0.27.1-cu129", host("550.120", RTX3090), "degraded", "NVIDIA_DISABLE_REQUIRE"),
        ("v0.12.0", host("550.120", RTX3090), "degraded", "error 804"),
        ("v0.12.0", host("470.82", RTX3090), "unsupported", "driver 470.82 is older than 575.51.03"),
        (
            "v0.32.0",
            host("570.172", H100, RTX3090),
            "unsupported",
            "newest release that this driver supports is v0.11.2",
        ),
        ("v0.15.0", host("580.95.05", H100), "degraded", "error 803"),
        ("v0.15.0", host("575.57.08", H100), "supported", ""),
        ("v0.32.0", host(None, H100), "unverified", "not known"),
    ],
)
def test_the_driver_against_the_image(image: str, given: dict[str, Any], status: str, told: str) -> None:
    found, reason = row("driver", release(image), given)
    assert found == status
    assert told in reason


@pytest.mark.parametrize(
    ("image", "card", "status", "told"),
    [
        ("v0.32.0", H100, "supported", "kernels for 9.0"),
        ("v0.32.0", GB10, "supported", "kernels for 12.0"),
        ("v0.32.0", B300, "supported", "kernels for 10.0"),
        ("v0.32.0", THOR, "supported", "kernels for 11.0"),
        ("v0.19.1", THOR, "unsupported", "newest release that has is v0.33.0"),
        ("v0.32.0", V100, "unsupported", "no kernels for 7.0"),
        ("v0.32.0", ("NVIDIA H200", None), "unverified", "not known"),
    ],
)
def test_the_card_against_the_kernels(image: str, card: Any, status: str, told: str) -> None:
    found, reason = row("compute_capability", release(image), host("580.95.05", card))
    assert found == status
    assert told in reason


def test_the_processor_decides_which_kernels_there_are() -> None:
    turing = host("580.95.05", ("NVIDIA T4G", "7.5"))
    assert row("compute_capability", release("v0.27.1"), turing)[0] == "unsupported"
    assert row("compute_capability", release("v0.27.1"), {**turing, "machine": "x86_64"})[0] == "supported"


def test_different_cards_are_judged_by_the_least() -> None:
    assert row("compute_capability", release("v0.32.0"), host("580.95.05", H100, V100))[0] == "unsupported"


@pytest.mark.parametrize(
    ("version", "architecture", "status", "told"),
    [
        ("v0.9.0", "Qwen2ForCausalLM", "supported", "generate"),
        ("v0.9.0", "GlmMoeDsaForCausalLM", "unsupported", "known to v0.16.0 and newer"),
        ("v0.27.1", "GlmMoeDsaForCausalLM", "supported", "generate"),
        ("v0.33.0", "MotifForCausalLM", "unsupported", "known to v0."),
        ("v0.32.0", "BrandNewForCausalLM", "unverified", "no release of the catalogue"),
        ("v0.32.0", "Qwen3MoForCausalLM", "unverified", "it registers Qwen3MoeForCausalLM"),
    ],
)
def test_the_architecture_against_the_registry(version: str, architecture: str, status: str, told: str) -> None:
    found, reason = row(
        "architecture", release(version), host("580.95.05", H100), {**QWEN, "architectures": [architecture]}
    )
    assert found == status
    assert told in reason


@pytest.mark.parametrize(
    ("card", "checkpoint", "pins", "status"),
    [
        (A100, {}, {}, "supported"),
        (T4, {}, {}, "degraded"),
        (T4, {}, {"dtype": "bfloat16"}, "unsupported"),
        (T4, {}, {"dtype": "half"}, "supported"),
        (T4, {"model_type": "gemma3"}, {}, "degraded"),
        (H100, {"model_type": "gemma2"}, {"dtype": "float16"}, "unsupported"),
        (H100, {"model_type": "gemma2"}, {"dtype": "float32"}, "supported"),
        (H100, {"dtype": None}, {}, "unverified"),
        (("NVIDIA H200", None), {}, {}, "unverified"),
    ],
)
def test_the_dtype_against_the_card(card: Any, checkpoint: dict[str, Any], pins: dict[str, Any], status: str) -> None:
    assert row("dtype", release("v0.32.0"), host("580.95.05", card), {**QWEN, **checkpoint}, pins)[0] == status


NVFP4 = {"method": "modelopt", "quant_algo": "NVFP4"}


@pytest.mark.parametrize(
    ("version", "card", "quantization", "status"),
    [
        ("v0.32.0", H100, {"method": "fp8"}, "supported"),
        ("v0.32.0", L4, {"method": "fp8"}, "supported"),
        ("v0.32.0", A100, {"method": "fp8"}, "degraded"),
        ("v0.32.0", T4, {"method": "fp8"}, "degraded"),
        ("v0.9.0", T4, {"method": "fp8"}, "unsupported"),
        ("v0.32.0", B200, NVFP4, "supported"),
        ("v0.32.0", H100, NVFP4, "degraded"),
        ("v0.32.0", A100, {"method": "awq"}, "supported"),
        ("v0.32.0", T4, {"method": "awq"}, "degraded"),
        ("v0.32.0", A100, {"method": "gptq"}, "supported"),
        ("v0.21.0", A100, {"method": "bitsandbytes"}, "supported"),
        ("v0.33.0", A100, {"method": "bitsandbytes"}, "unsupported"),
        ("v0.32.0", A100, {"method": "mxfp4"}, "degraded"),
        ("v0.9.0", A100, {"method": "mxfp4"}, "unsupported"),
        ("v0.32.0", A100, {"method": "compressed-tensors", "format": "float-quantized"}, "degraded"),
        ("v0.32.0", A100, {"method": "compressed-tensors", "format": "int-quantized"}, "supported"),
        ("v0.32.0", ("NVIDIA H200", None), {"method": "fp8"}, "unverified"),
    ],
)
def test_the_quantisation_against_the_card(version: str, card: Any, quantization: dict[str, Any], status: str) -> None:
    checkpoint = {**QWEN, "quantization": quantization}
    assert row("quantization", release(version), host("580.95.05", card), checkpoint)[0] == status


def test_a_checkpoint_that_is_not_quantised_has_no_such_row() -> None:
    subjects = [item["subject"] for item in matrix(release("v0.32.0"), host("580.95.05", H100), QWEN)]
    assert subjects == ["driver", "compute_capability", "architecture", "dtype", "kv_cache_dtype"]


@pytest.mark.parametrize(
    ("version", "card", "dtype", "status"),
    [
        ("v0.32.0", H100, "auto", "supported"),
        ("v0.32.0", H100, "fp8", "supported"),
        ("v0.32.0", A100, "fp8", "unverified"),
        ("v0.32.0", H100, "nvfp4", "unsupported"),
        ("v0.32.0", B200, "nvfp4", "supported"),
        ("v0.9.0", B200, "nvfp4", "unsupported"),
        ("v0.33.0", H100, "fp9", "unsupported"),
    ],
)
def test_the_kv_cache_dtype(version: str, card: Any, dtype: str, status: str) -> None:
    found = row("kv_cache_dtype", release(version), host("580.95.05", card), QWEN, {"kv_cache_dtype": dtype})
    assert found[0] == status

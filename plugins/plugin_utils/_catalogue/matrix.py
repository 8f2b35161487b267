# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Image, host and checkpoint: what fits together, and why (private to the collection)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .releases import Release, _data, format_releases, known_releases, releases_with_architecture
from .releases import release as find_release

BFLOAT16_CAPABILITY = 8.0  # vllm/platforms/cuda.py: supported_dtypes
FP8_CAPABILITY = 8.9  # Ada Lovelace; vllm/platforms/cuda.py: supports_fp8

Row = dict[str, str]


def matrix(
    release: Release,
    host: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | None = None,
    engine_args: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Checks an image against one host and, where given, a checkpoint.

    ``host`` is what ``gpu_info`` returns (``driver_version``, ``gpus`` with ``compute_capability`` and ``name``),
    ``checkpoint`` the normal form of ``describe_config``, ``engine_args`` the instance's pins (``dtype``,
    ``kv_cache_dtype``, ``quantization``).

    Returns ``[{"subject", "status", "reason"}, ...]`` with one row for each of the subjects ``driver`` and
    ``compute_capability`` and, with a checkpoint, ``architecture``, ``dtype``, ``quantization`` (quantised ones only)
    and ``kv_cache_dtype``. ``status`` is ``supported``, ``degraded`` (works, but slower or on a condition that the
    reason names), ``unsupported`` or ``unverified`` (not known; the reason says why). Different cards in one host are
    judged by the least of them.
    """
    pins = dict(engine_args or {})
    capability = least_capability(host)
    rows = [driver_row(release, host), capability_row(release, host)]
    if checkpoint is not None:
        rows.append(architecture_row(release, checkpoint))
        rows.append(dtype_row(release, checkpoint, pins, capability))
        rows.extend(quantization_rows(release, checkpoint, pins, capability))
        rows.append(kv_cache_dtype_row(release, checkpoint, pins, capability))
    return rows


def _row(subject: str, status: str, reason: str) -> Row:
    return {"subject": subject, "status": status, "reason": reason}


def least_capability(host: Mapping[str, Any]) -> float | None:
    """The lowest compute capability of the host's cards; None where one is not known."""
    values = [gpu.get("compute_capability") for gpu in host.get("gpus") or []]
    return min(float(value) for value in values) if values and all(values) else None


# -- image and host ---------------------------------------------------------------------------------------------------
def driver_row(release: Release, host: Mapping[str, Any]) -> Row:
    """The image's CUDA against the driver: by itself, by forward compatibility, by minor-version compatibility."""
    cuda = f"CUDA {release.cuda} of {release}"
    driver = str(host.get("driver_version") or "")
    if not re.match(r"\d+(\.\d+)*$", driver):
        return _row("driver", "unverified", f"the driver's version is not known; {cuda} needs {release.min_driver}")
    if not older(driver, release.min_driver):
        return _new_enough_row(release, driver, cuda)
    too_old = f"driver {driver} is older than {release.min_driver}, which {cuda} needs"
    forward = _forward_compatibility(release, host, driver)
    if forward:
        return _row("driver", "degraded", f"{too_old}; {forward}")
    if not older(driver, release.min_driver_minor_version):
        return _row(
            "driver", "degraded", f"{too_old}; {_minor_version_condition(release)}{other_images(release, driver)}"
        )
    return _row(
        "driver", "unsupported", f"{too_old}: install {release.min_driver} or newer{other_images(release, driver)}"
    )


def _new_enough_row(release: Release, driver: str, cuda: str) -> Row:
    fault = release.image_fact("broken_driver_setup")
    if fault and not older(driver, fault["driver"]):
        return _row(
            "driver",
            "degraded",
            f"{release} puts CUDA's compatibility libraries before those of the driver, which fails with error 803 "
            f"for drivers from {fault['driver']} on; set the instance's environment {fault['workaround']}",
        )
    return _row("driver", "supported", f"driver {driver} supports {cuda} ({release.min_driver} or newer)")


def _forward_compatibility(release: Release, host: Mapping[str, Any], driver: str) -> str | None:
    """What NVIDIA's compatibility libraries in the image do on this host; None where they do nothing."""
    facts = _data("drivers")["forward"]
    names = [str(gpu.get("name", "")) for gpu in host.get("gpus") or []]
    data_centre = bool(names) and all(re.search(facts["cards"], name) for name in names)
    if not data_centre or driver.split(".")[0] not in facts["branches"].get(release.cuda, []):
        return None
    if release.knows_environment("VLLM_ENABLE_CUDA_COMPATIBILITY"):
        return (
            "data-centre cards of this driver branch run it with the compatibility libraries of the image: "
            "set the instance's environment VLLM_ENABLE_CUDA_COMPATIBILITY to 1"
        )
    return (
        "data-centre cards of this driver branch run it with the compatibility libraries that the image loads by itself"
    )


def _minor_version_condition(release: Release) -> str:
    major = release.cuda.split(".")[0]
    text = (
        f"CUDA {major}'s minor-version compatibility covers built kernels, not those compiled at run time, and the "
        f"NVIDIA runtime refuses the container (unsatisfied condition: cuda>={release.cuda}) unless the instance's "
        f"environment sets NVIDIA_DISABLE_REQUIRE to 1"
    )
    if release.knows_environment("VLLM_ENABLE_CUDA_COMPATIBILITY"):
        return text
    return text + (
        "; this image loads CUDA's compatibility libraries by itself, which fails on such cards (error 804) "
        "unless LD_LIBRARY_PATH names the driver's first"
    )


def other_images(release: Release, driver: str) -> str:
    """Names the tag of the same release, or else the newest release, whose CUDA the driver supports."""
    for suffix in release.tag_suffixes:
        other = Release(release.version, suffix)
        if not older(driver, other.min_driver):
            return f", or use the tag {other} (CUDA {other.cuda})"
    for version in reversed(known_releases()):
        candidate = find_release(version)
        if not older(driver, candidate.min_driver):
            return f"; the newest release that this driver supports is v{version} (CUDA {candidate.cuda})"
    return ""


def older(version: str, than: str) -> bool:
    """Whether one driver version is older than another."""
    return [int(part) for part in version.split(".")] < [int(part) for part in than.split(".")]


def machine(host: Mapping[str, Any]) -> str:
    """``x86_64`` or ``aarch64``: what the host says, or what its cards are only sold with."""
    stated = host.get("machine") or host.get("architecture")
    if stated:
        return "aarch64" if str(stated) in ("aarch64", "arm64") else "x86_64"
    names = " ".join(str(gpu.get("name", "")) for gpu in host.get("gpus") or [])
    return "aarch64" if re.search(_data("drivers")["cards_of_aarch64"], names) else "x86_64"


def capability_row(release: Release, host: Mapping[str, Any]) -> Row:
    """The cards' compute capability against the kernels that the image contains."""
    capability, processor = least_capability(host), machine(host)
    subject = "compute_capability"
    built = release.compute_capabilities_for(processor)
    listed = f"{', '.join(built)} ({processor})"
    if capability is None:
        return _row(
            subject,
            "unverified",
            f"a card's compute capability is not known; the kernels of {release} are for {listed}",
        )
    kernel = _kernel(built, capability)
    if kernel is not None:
        return _row(subject, "supported", f"{capability} runs the kernels for {kernel} of {release}")
    other = next(
        (
            version
            for version in reversed(known_releases())
            if _kernel(find_release(version).compute_capabilities_for(processor), capability) is not None
        ),
        None,
    )
    hint = f"; the newest release that has is v{other}" if other else ""
    return _row(subject, "unsupported", f"{release} has no kernels for {capability}, only for {listed}{hint}")


def _kernel(built: list[str], capability: float) -> float | None:
    """The built capability whose kernels a card runs: the same major version, and not newer than the card."""
    return max(
        (float(item) for item in built if int(float(item)) == int(capability) and float(item) <= capability),
        default=None,
    )


# -- image and checkpoint ---------------------------------------------------------------------------------------------
def architecture_row(release: Release, checkpoint: Mapping[str, Any]) -> Row:
    """The checkpoint's architecture against the release's model registry."""
    names = [str(name) for name in checkpoint.get("architectures") or [checkpoint.get("architecture")] if name]
    if not names:
        return _row("architecture", "unverified", "the checkpoint's config.json names no architecture")
    found = [name for name in names if release.supports_architecture(name)]
    if found:
        task = release.architecture_task(found[0])
        by_transformers = task == "transformers"
        status = "degraded" if by_transformers else "supported"
        how = (
            "runs through Transformers' own code, slower than a model of vLLM"
            if by_transformers
            else f"is registered ({task})"
        )
        return _row("architecture", status, f"{found[0]} {how} in {release}")
    knowing = releases_with_architecture(names[0])
    if knowing:
        return _row(
            "architecture", "unsupported", f"{release} does not know {names[0]}; known to {format_releases(knowing)}"
        )
    near = difflib.get_close_matches(names[0], release.architectures, n=1)
    hint = f" (it registers {near[0]})" if near else ""
    return _row(
        "architecture",
        "unverified",
        f"no release of the catalogue registers {names[0]}{hint}; {release} runs it through the image's Transformers "
        f"({release.requirement('transformers')}) or the checkpoint's own code if these can do it, else it refuses it",
    )


def dtype_row(
    release: Release, checkpoint: Mapping[str, Any], pins: Mapping[str, Any], capability: float | None
) -> Row:
    """The data type of the computation against the card."""
    pinned = {"half": "float16", "float": "float32"}.get(str(pins.get("dtype")), pins.get("dtype"))
    dtype = checkpoint.get("dtype") if pinned in (None, "auto") else pinned
    if dtype is None:
        return _row("dtype", "unverified", "neither the pins nor the checkpoint name a dtype")
    model_type = str(checkpoint.get("model_type"))
    if dtype == "float16" and model_type in release.float16_refused:
        reason = f"{release} refuses float16 for {model_type} (numerical instability); use bfloat16 or float32"
        return _row("dtype", "unsupported", reason)
    if dtype != "bfloat16":
        return _row("dtype", "supported", f"{dtype} runs on every card that vLLM runs on")
    return _row("dtype", *_bfloat16(capability, pinned == "bfloat16", model_type in release.float16_refused))


def _bfloat16(capability: float | None, pinned: bool, float16_refused: bool) -> tuple[str, str]:
    """Status and reason of a computation in bfloat16."""
    needs = f"bfloat16 needs compute capability {BFLOAT16_CAPABILITY}"
    if capability is None:
        return "unverified", f"{needs}; the card's is not known"
    if capability >= BFLOAT16_CAPABILITY:
        return "supported", f"compute capability {capability} computes in bfloat16"
    if pinned:
        return "unsupported", f"{needs}, the card has {capability}; set dtype to float16 (half)"
    if float16_refused:
        return "degraded", f"{needs}, the card has {capability}, and float16 is refused: float32 takes twice the memory"
    return "degraded", f"{needs}, the card has {capability}: dtype auto computes in float16, whose range is smaller"


# -- quantisation -----------------------------------------------------------------------------------------------------
def quantization_rows(
    release: Release, checkpoint: Mapping[str, Any], pins: Mapping[str, Any], capability: float | None
) -> Iterator[Row]:
    """The quantisation method against the release and the card; nothing for a checkpoint that is not quantised."""
    stated = checkpoint.get("quantization") or {}
    method = pins.get("quantization") or stated.get("method")
    if not method:
        return
    method = str(method)
    if method not in release.quantization_methods:
        yield _row("quantization", "unsupported", _unknown_method(release, method))
        return
    for kind in sorted(quantization_kinds(method, stated)):
        yield _quantization_row(release, method, kind, capability)


def quantization_kinds(method: str, stated: Mapping[str, Any]) -> set[str]:
    """What the weights are: the method itself, or the number formats inside compressed-tensors and ModelOpt."""
    formats = " ".join(
        str(part)
        for part in (
            stated.get("format"),
            stated.get("quant_algo"),
            *(stated.get("schemes") or {}),
            stated.get("schemes"),
        )
    ).lower()
    if method in ("modelopt", "compressed-tensors"):
        found = {kind for kind, word in (("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("mxfp8", "mxfp8")) if word in formats}
        if not found and re.search(r"fp8|float-quantized|float8", formats):
            found = {"fp8"}
        return found or {method}
    return {method}


def _unknown_method(release: Release, method: str) -> str:
    knowing = [version for version in known_releases() if method in find_release(version).quantization_methods]
    where = f"known to {format_releases(knowing)}" if knowing else f"it knows {', '.join(release.quantization_methods)}"
    return f"{release} does not know the quantisation {method}; {where}"


def _quantization_row(release: Release, method: str, kind: str, capability: float | None) -> Row:
    name = method if kind == method else f"{method} ({kind})"
    least = release.quantization_capability(method)
    card = _data("quantization_cards").get(kind, {})
    if kind == "fp8" and method in ("modelopt", "compressed-tensors"):
        least = release.quantization_capability("fp8")
    if capability is None:
        return _row("quantization", "unverified", f"{name} needs compute capability {least}; the card's is not known")
    if least is not None and capability < least:
        return _row(
            "quantization",
            "unsupported",
            f"{name} needs compute capability {least} in {release}, the card has {capability}",
        )
    if card and capability < card["native"]:
        return _row(
            "quantization",
            "degraded",
            f"{name} on compute capability {capability} (full speed from {card['native']}): {card['below']}",
        )
    return _row("quantization", "supported", f"{name} runs on compute capability {capability} in {release}")


def kv_cache_dtype_row(
    release: Release, checkpoint: Mapping[str, Any], pins: Mapping[str, Any], capability: float | None
) -> Row:
    """The KV cache's data type against the release and the card."""
    subject = "kv_cache_dtype"
    dtype = str(pins.get("kv_cache_dtype") or "auto")
    argument = release.argument(subject)
    if argument is not None and argument.values and dtype not in argument.values:
        return _row(
            subject,
            "unsupported",
            f"{release} does not know kv_cache_dtype {dtype}; it knows {', '.join(argument.values)}",
        )
    if not dtype.startswith(("fp8", "nvfp4")):
        return _row(subject, "supported", f"{dtype} needs no more than the model's own dtype")
    if capability is None:
        return _row(subject, "unverified", f"{dtype} depends on the card, whose compute capability is not known")
    if dtype.startswith("nvfp4"):
        status = "supported" if capability >= 10 else "unsupported"
        return _row(subject, status, f"{dtype} needs compute capability 10.0, the card has {capability}")
    if capability >= FP8_CAPABILITY:
        return _row(
            subject,
            "supported",
            f"compute capability {capability} has FP8; see that the attention backend chosen at start takes {dtype}",
        )
    return _row(
        subject,
        "unverified",
        f"compute capability {capability} has no FP8 (8.9): whether {dtype} runs depends on the attention "
        f"backend; it saves memory at most, not time",
    )

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measured starts as inputs of the planner.

Most records are beside the repository, not in it (see README there); public_starts.json has starts of our own finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import overhead
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.dimensions import Dimensions, dimensions

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"

PUBLIC_STARTS = Path(__file__).with_name("public_starts.json")
BLIND_STARTS = Path(__file__).resolve().parents[2] / "tests" / "bench" / "data" / "blind_starts.json"
"""Public starts that no coefficient is fitted to and no formula was tuned by: they only score."""

OLDEST = (0, 9, 0)
"""The oldest release of the catalogue; older starts cannot be planned."""

CAPABILITIES = {
    "B200": "10.0",
    "H100": "9.0",
    "H200": "9.0",
    "A100": "8.0",
    "A30": "8.0",
    "A10": "8.6",
    "A40": "8.6",
    "RTX A": "8.6",
    "RTX 30": "8.6",
    "RTX 40": "8.9",
    "L4": "8.9",
    "RTX 50": "12.0",
    "RTX PRO": "12.0",
    "GB10": "12.1",
    "T4": "7.5",
    "TITAN RTX": "7.5",
    "V100": "7.0",
}
"""By a part of the card's name; the first that fits counts."""

RUNTIME_METHODS = {"fp8": "fp8", "fp8 (online, vLLM)": "fp8", "bitsandbytes": "bitsandbytes"}

FIGURES = (
    "weights_gib",
    "activation_gib",
    "non_torch_gib",
    "cudagraph_est_gib",
    "kv_pool_gib",
    "kv_tokens",
    "max_concurrency",
)

DEFAULTS: dict[str, Any] = {
    "gpu": None,
    "tp": 1,
    "pp": 1,
    "dp": 1,
    "ep": False,
    "dtype": None,
    "quantization": None,
    "kv_cache_dtype": None,
    "enforce_eager": False,
    "unified_memory": False,
    "note": "",
}


@dataclass(frozen=True)
class Case:
    """One measured start with the arguments that plan() takes for it."""

    record: dict[str, Any]
    instance: dict[str, Any]
    hosts: list[dict[str, Any]]

    @property
    def measured(self) -> dict[str, Any]:
        return dict(self.record["measured"])

    def scorable(self, figure: str) -> bool:
        return bool(self.record["scorable"].get(figure))

    @property
    def pool_is_measured(self) -> bool:
        return self.scorable("kv_pool") and bool(self.measured["kv_pool_gib"])

    @property
    def terms_are_measured(self) -> bool:
        """Whether weights, activation, non-torch and pool are all in the log."""
        terms = ("weights_gib", "activation_gib", "non_torch_gib", "kv_pool_gib")
        return all(self.measured[term] is not None for term in terms)

    @property
    def card(self) -> str:
        """What tells cards apart: the compute capability, or the size where the log names no card."""
        capability = self.start.compute_capability
        return capability or f"{round(self.record['gpu_total_gib'] or 0)} GiB"

    @property
    def layout(self) -> tuple[int, int]:
        """Tensor and pipeline parallel size."""
        return self.record["tp"], self.record["pp"]

    @property
    def model(self) -> tuple[int, ...]:
        """What tells models apart; a model's quantised copies are the same model."""
        shape = self.shape
        return shape.hidden_size, shape.num_layers, shape.vocab_size, shape.intermediate_size

    @cached_property
    def shape(self) -> Dimensions:
        return dimensions(self.instance["checkpoint"])

    @cached_property
    def start(self) -> overhead.Start:
        record, pins = self.record, self.instance["engine_args"]
        return overhead.Start(
            version=overhead.parse_version(self.instance["release"]),
            tensor_parallel_size=record["tp"],
            pipeline_parallel_size=record["pp"],
            data_parallel_size=record["dp"] or 1,
            max_num_seqs=record["max_num_seqs"] or 256,
            max_num_batched_tokens=record["max_num_batched_tokens"] or 2048,
            dtype=record["dtype"] or self.shape.dtype,
            quantization=pins.get("quantization"),
            enforce_eager=bool(record["enforce_eager"]),
            generates=True,
            max_model_len=record["max_model_len"] or 0,
            enable_expert_parallel=bool(record["ep"]),
            compute_capability=self.hosts[0]["gpus"][0]["compute_capability"],
        )


def load_cases() -> Iterator[Case]:
    """The cases whose release is known, with our own; nothing where the data beside the repository is absent."""
    source = DATA / "accuracy_cases.jsonl"
    if not source.exists():
        return
    for line in source.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        version = _version(record)
        if version:
            config = json.loads((DATA / record["config"]).read_text(encoding="utf-8"))
            yield Case(record, _instance(record, config, version), [_host(record)])
    yield from load_starts(PUBLIC_STARTS)


def load_starts(path: Path) -> Iterator[Case]:
    """The starts of a file of our own: models by name with their config.json, starts with what differs from a default.

    The set of its cases is the file's name without _starts.
    """
    if not path.exists():
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    for number, start in enumerate(data["starts"], 1):
        name = path.stem.removesuffix("_starts")
        measured = {**dict.fromkeys(FIGURES), **start["measured"]}
        record = {**DEFAULTS, "set": f"{name} starts", "id": f"{name}-{number}", **start, "measured": measured}
        record["scorable"] = {
            "weights": measured["weights_gib"] is not None,
            "kv_pool": measured["kv_pool_gib"] is not None,
            "kv_per_token": measured["kv_tokens"] is not None,
        }
        config = data["models"][start["model"]]
        yield Case(record, _instance(record, config, start["vllm_version"]), [_host(record)])


def _version(record: dict[str, Any]) -> str | None:
    """The catalogue's release of a record: nightlies and vendors' builds count as the release they are built on."""
    text = str(record["vllm_version"] or "").split(" ", maxsplit=1)[0].rstrip("+?")
    numbers = []
    for part in text.split("."):
        digits = part if part.isdigit() else part.split("rc", maxsplit=1)[0]
        if not digits.isdigit():
            break
        numbers.append(int(digits))
    if not numbers or tuple(numbers) < OLDEST[: len(numbers)]:
        return None
    version = ".".join(map(str, (numbers + [0, 0])[:3]))
    return {"0.19.2": "0.19.1"}.get(version, version)


def _instance(record: dict[str, Any], config: dict[str, Any], version: str) -> dict[str, Any]:
    checkpoint = describe_config(config)
    pins = {
        "tensor_parallel_size": record["tp"],
        "pipeline_parallel_size": record["pp"],
        "gpu_memory_utilization": record["gpu_memory_utilization"],
        "max_model_len": record["max_model_len"],
        "max_num_seqs": record["max_num_seqs"],
        "max_num_batched_tokens": record["max_num_batched_tokens"],
        "dtype": record["dtype"],
        "kv_cache_dtype": record["kv_cache_dtype"],
        "enforce_eager": record["enforce_eager"] or None,
        "enable_expert_parallel": record["ep"] or None,
        "quantization": None if checkpoint["quantization"] else RUNTIME_METHODS.get(record["quantization"] or ""),
        **record.get("engine_args", {}),
    }
    return {
        "name": record["id"],
        "release": version,
        "checkpoint": checkpoint,
        "engine_args": {name: value for name, value in pins.items() if value is not None},
    }


def _host(record: dict[str, Any]) -> dict[str, Any]:
    name = record["gpu"] or "unknown"
    total = round((record["gpu_total_gib"] or 80.0) * 1024)
    capability = next((value for key, value in CAPABILITIES.items() if key in name.replace("-", " ")), None)
    gpu: dict[str, Any] = {
        "name": name,
        "compute_capability": capability,
        "memory_total_mib": total,
        "memory_free_mib": total,
        "memory_used_by_others_mib": 0,
        "processes": [],
        "numa_node": 0,
    }
    count = record["tp"] * record["pp"]
    return {
        "gpus": [{**gpu, "index": number, "uuid": f"GPU-{number}"} for number in range(count)],
        "links": [],
        "errors": [],
    }

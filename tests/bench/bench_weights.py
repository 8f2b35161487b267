# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far weights counted from config.json are from measured lines ``Model loading took``.

    PYTHONPATH=.collections python tests/bench/bench_weights.py [CASES.jsonl]

The cases (default ../shared/data/accuracy_cases.jsonl) are records of real starts, one JSON object a line. Prints the
errors of each set apart and the worst records; ends with 1 if a set's mean error is above 1 % or its worst above 5 %.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.vllm.plugins.module_utils._checkpoint import describe_config
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.weights import weights_per_gpu

REPOSITORY = Path(__file__).resolve().parents[2]
CASES = REPOSITORY.parent / "shared" / "data" / "accuracy_cases.jsonl"
GIB = 2**30
MEAN_LIMIT, WORST_LIMIT = 0.01, 0.05
UNKNOWN_RELEASE = "0.19.0"
CAPABILITIES = {
    "H100": "9.0",
    "H200": "9.0",
    "A100": "8.0",
    "L4": "8.9",
    "T4": "7.5",
    "RTX PRO 6000": "12.0",
    "B200": "10.0",
}


def release_of(case: dict[str, Any]) -> str:
    found = re.search(r"\d+\.\d+(\.\d+)?", str(case["vllm_version"] or ""))
    return found.group(0) if found else UNKNOWN_RELEASE


def capability_of(case: dict[str, Any]) -> str | None:
    return next((value for name, value in CAPABILITIES.items() if name in str(case["gpu"])), None)


def counted_gib(case: dict[str, Any], folder: Path) -> float:
    """Weights on the fullest GPU of a case, in GiB."""
    checkpoint = describe_config(json.loads((folder / case["config"]).read_text()))
    at_load = "fp8" if str(case["quantization"] or "").startswith("fp8") else None
    stages = weights_per_gpu(
        checkpoint,
        release_of(case),
        case["tp"],
        case["pp"],
        data_parallel_size=case["dp"] or 1,
        enable_expert_parallel=bool(case["ep"]),
        quantization=at_load,
        dtype=case["dtype"],
        compute_capability=capability_of(case),
    )
    return max(stage.value for stage in stages) / GIB


def errors_by_set(path: Path) -> dict[str, list[tuple[float, dict[str, Any], float]]]:
    """{set: [(relative error, case, counted GiB)]} of the cases whose weights may be scored."""
    sets: dict[str, list[tuple[float, dict[str, Any], float]]] = {}
    for line in path.read_text().splitlines():
        case = json.loads(line)
        measured = case["measured"]["weights_gib"]
        if measured and case["scorable"].get("weights"):
            counted = counted_gib(case, path.parent)
            sets.setdefault(case["set"], []).append((counted / measured - 1, case, counted))
    return sets


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else CASES
    if not path.exists():
        print(f"skipped: {path} is not there")
        return 0
    failed = False
    for name, errors in errors_by_set(path).items():
        absolute = [abs(error) for error, _case, _counted in errors]
        mean, worst = sum(absolute) / len(absolute), max(absolute)
        failed |= mean > MEAN_LIMIT or worst > WORST_LIMIT
        print(f"{name}: {len(errors)} records, mean error {mean:.3%}, worst {worst:.3%}")
        for error, case, counted in sorted(errors, key=lambda entry: -abs(entry[0]))[:5]:
            measured, split = case["measured"]["weights_gib"], f"tp{case['tp']} pp{case['pp']}"
            print(f"  {error:+.2%}  {counted:.2f} GiB counted, {measured} measured  {case['model']} {split}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

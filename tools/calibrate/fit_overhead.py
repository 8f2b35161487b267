# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fits the planner's overhead coefficients to measured starts and writes plugin_utils/_planning/data/overhead.json.

    python tools/calibrate/fit_overhead.py            # fit and write
    python tools/calibrate/fit_overhead.py --check    # fit and print only

Each coefficient is moved by itself until the sum of absolute errors no longer falls (a pattern search: the formulas
have a maximum in them, so that no closed solution exists). What the cases do not determine stays as it is. The
deviation comes from cases whose model was left out of the fit: it is what a model that was never seen may expect.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".collections"), str(ROOT / "tools" / "calibrate")]

from accuracy_cases import Case, load_cases  # noqa: E402

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import overhead, plan  # noqa: E402
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.case import cache_of  # noqa: E402
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.estimate import GIB  # noqa: E402

TARGET = ROOT / "plugins" / "plugin_utils" / "_planning" / "data" / "overhead.json"

Path_ = tuple[str | int, ...]

ACTIVATION_COEFFICIENTS: tuple[Path_, ...] = (
    ("sampler", 1, "logit_buffers"),
    ("sampler", 2, "logit_buffers"),
    ("sampler", 3, "logit_buffers"),
    ("activation", "constant_gib"),
    ("activation", "hidden_outputs"),
    ("activation", "forward_hidden"),
    ("activation", "pipeline_hidden"),
)

GRAPH_COEFFICIENTS: tuple[Path_, ...] = (
    ("cuda_graphs", "base_gib"),
    ("cuda_graphs", "layer_gib"),
    ("cuda_graphs", "moe_gib"),
)

PRIORS: dict[Path_, float] = {
    ("sampler", 1, "logit_buffers"): 9.5,
    ("sampler", 2, "logit_buffers"): 3.6,
    ("sampler", 3, "logit_buffers"): 1.5,
    ("activation", "constant_gib"): 0.1,
    ("activation", "hidden_outputs"): 1.0,
    ("activation", "forward_hidden"): 3.0,
    ("activation", "pipeline_hidden"): 2.0,
    ("cuda_graphs", "base_gib"): 0.3,
    ("cuda_graphs", "layer_gib"): 0.015,
    ("cuda_graphs", "moe_gib"): 0.3,
    ("cuda_graphs", "estimate_factor"): 0.6,
    ("non_torch", 0, "value_gib"): 0.05,
    ("non_torch", 1, "value_gib"): 0.13,
    ("non_torch", 2, "value_gib"): 0.27,
    ("non_torch", 0, "extrapolated_gib"): 0.1,
    ("non_torch", 1, "extrapolated_gib"): 0.2,
    ("non_torch", 2, "extrapolated_gib"): 0.35,
    ("non_torch_parallel", "fusion_gib", "2"): 1.8,
    ("non_torch_parallel", "fusion_gib", "4"): 1.9,
    ("non_torch_parallel", "fusion_gib", "8"): 2.0,
}
"""Where every fit begins: the buffers that vLLM's source makes, and round numbers. What the cases do not determine
stays so; a fold that leaves cases out must not begin with what was fitted to them."""

LEAST_CALIBRATED = 10
"""A card is calibrated with so many starts that print every term."""

SAFE_SIDE_GIB = 0.05
"""What is promised less where the terms were not measured one by one: too large a pool is the unsafe side."""

STEPS = (0.1, 0.03, 0.01, 0.003)
"""Shares of a coefficient by which it is moved, one round after the other."""

LEAST_CASES = 3
"""A median of fewer cases says nothing."""

COVERED = 0.97
"""Share of the left-out cases that the deviation of a term must cover (the pool's interval is to hold 95 %)."""


def fit(cases: Sequence[Case], start: dict[str, Any]) -> dict[str, Any]:
    """The coefficients that fit the cases best, beginning with start."""
    fitted = copy.deepcopy(start)
    for path, value in PRIORS.items():
        _set(fitted, path, value)
    _find_calibrated(fitted, cases)
    activation = [case for case in cases if case.measured["activation_gib"] is not None]
    graphs = [case for case in cases if case.measured["cudagraph_est_gib"] is not None]
    _search(fitted, ACTIVATION_COEFFICIENTS, lambda: _error(fitted, activation, _activation, "activation_gib"))
    factor = fitted["cuda_graphs"]["estimate_factor"]
    fitted["cuda_graphs"]["estimate_factor"] = 1.0
    profiled = [case for case in graphs if case.start.version < (0, 20)]
    _search(fitted, GRAPH_COEFFICIENTS, lambda: _error(fitted, profiled, _graphs, "cudagraph_est_gib"))
    fitted["cuda_graphs"]["estimate_factor"] = factor
    later = [case for case in graphs if case.start.version >= (0, 20)]
    if later:
        path = ("cuda_graphs", "estimate_factor")
        _search(fitted, (path,), lambda: _error(fitted, later, _graphs, "cudagraph_est_gib"))
    _fit_non_torch(fitted, cases)
    return fitted


def _find_calibrated(fitted: dict[str, Any], cases: Sequence[Case]) -> None:
    """The cards and releases of which enough starts print every term; all else is extrapolated."""
    use(fitted)
    band = fitted["calibrated"]
    complete = [
        case for case in cases if case.terms_are_measured and not overhead.uses_v2_runner(case.shape, case.start)
    ]
    counts = Counter(case.start.compute_capability for case in complete)
    band["compute_capabilities"] = sorted(card for card, count in counts.items() if card and count >= LEAST_CALIBRATED)
    inside = [case for case in complete if case.start.compute_capability in band["compute_capabilities"]]
    band["n"] = len(inside)
    versions = [case.start.version[:2] for case in inside]
    if versions:
        band["from"] = ".".join(map(str, (*min(versions), 0)))
        band["before"] = ".".join(map(str, (max(versions)[0], max(versions)[1] + 1, 0)))


def use(coefficients: dict[str, Any]) -> None:
    """Let the planner work with these coefficients in this process."""
    overhead.coefficients = lambda: coefficients  # type: ignore[assignment]
    # The planner keeps the terms that it computed of a checkpoint.
    cache_of.cache_clear()


def _activation(case: Case) -> float:
    return overhead.activation(case.shape, case.start, 0).value / GIB


def _graphs(case: Case) -> float:
    return overhead.cuda_graphs(case.shape, case.start).value / GIB


def _error(coefficients: dict[str, Any], cases: Iterable[Case], predict: Callable[[Case], float], figure: str) -> float:
    use(coefficients)
    return sum(abs(predict(case) - case.measured[figure]) for case in cases)


def _get(tree: Any, path: Path_) -> float:
    for key in path:
        tree = tree[key]
    return float(tree)


def _set(tree: Any, path: Path_, value: float) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def _search(tree: dict[str, Any], paths: Sequence[Path_], error: Callable[[], float]) -> None:
    best = error()
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for path in paths:
                for sign in (1, -1):
                    before = _get(tree, path)
                    _set(tree, path, round(before * (1 + sign * step), 5))
                    now = error()
                    if now < best - 1e-6:
                        best, improved = now, True
                    else:
                        _set(tree, path, before)


def _fit_non_torch(fitted: dict[str, Any], cases: Sequence[Case]) -> None:
    """Medians: what one GPU takes, by band; what FlashInfer's all-reduce adds, by tensor parallel size."""
    for band in fitted["non_torch"]:
        alone = [
            case.measured["non_torch_gib"]
            for case in cases
            if case.measured["non_torch_gib"] is not None
            and case.layout == (1, 1)
            and overhead.in_band(band, case.start.version)
            and overhead.source_of(case.shape, case.start) == "calibrated"
        ]
        if alone:
            band["value_gib"], band["n"] = round(statistics.median(alone), 3), len(alone)
    use(fitted)
    _fit_extrapolation(fitted, cases)
    _fit_tensor_parallel(fitted, cases)
    parallel = fitted["non_torch_parallel"]
    for size in list(parallel["fusion_gib"]):
        over = [
            case.measured["non_torch_gib"] - overhead.band_of(fitted["non_torch"], case.start.version)["value_gib"]
            for case in cases
            if case.measured["non_torch_gib"] is not None
            and case.layout == (int(size), 1)
            and overhead.fuses_all_reduce(case.start)
        ]
        if over:
            parallel["fusion_gib"][size] = round(statistics.median(over), 3)


def _fit_extrapolation(fitted: dict[str, Any], cases: Sequence[Case]) -> None:
    """Where the terms were not measured one by one: the median of all that the pool lacks, beside the other terms."""
    for band in fitted["non_torch"]:
        band["extrapolated_gib"] = max(band["extrapolated_gib"], band["value_gib"])
        own = [
            case
            for case in cases
            if case.pool_is_measured
            and case.layout == (1, 1)
            and overhead.in_band(band, case.start.version)
            and overhead.source_of(case.shape, case.start) == "extrapolated"
        ]
        compiled = [_unexplained(case) for case in own if not case.start.enforce_eager]
        eager = [_unexplained(case) for case in own if case.start.enforce_eager]
        if len(compiled) >= LEAST_CASES:
            found = statistics.median(compiled) + SAFE_SIDE_GIB
            band["extrapolated_gib"], band["extrapolated_n"] = round(max(found, band["value_gib"]), 3), len(compiled)
        band["extrapolated_eager_gib"] = band["extrapolated_gib"]
        if len(eager) >= LEAST_CASES:
            found = statistics.median(eager) + SAFE_SIDE_GIB
            band["extrapolated_eager_gib"] = round(min(max(found, 0.0), band["extrapolated_gib"]), 3)
            band["extrapolated_eager_n"] = len(eager)


def _fit_tensor_parallel(fitted: dict[str, Any], cases: Sequence[Case]) -> None:
    """What tensor parallelism takes without FlashInfer's all-reduce: few cases, so the guess counts as one of them."""
    for band in fitted["non_torch_parallel"]["tensor"]:
        counts = {}
        for size, prior in band["prior_gib"].items():
            found = [
                _of_parallel(fitted, case)
                for case in cases
                if case.layout == (int(size), 1)
                and overhead.in_band(band, case.start.version)
                and _tells_non_torch(case)
                and not overhead.fuses_all_reduce(case.start)
            ]
            band["gib"][size] = round(max(0.0, statistics.mean([prior, *found])), 3)
            counts[size] = len(found)
        band["n"] = counts


SAMPLER_IS_KNOWN_FROM = (0, 12)
"""Before, the sampler's peak depends on FlashInfer, which a log rarely tells of: what is left over means nothing."""


COMPILATION_SHOWS_FROM = (0, 20)
"""From here on a first start and a later one differ by what torch.compile takes, which has an interval of its own."""


def _tells_non_torch(case: Case) -> bool:
    measured = case.measured["non_torch_gib"] is not None
    return measured or (case.pool_is_measured and case.start.version >= SAMPLER_IS_KNOWN_FROM)


def _of_parallel(fitted: dict[str, Any], case: Case) -> float:
    """What the case takes beyond what one GPU takes in its release."""
    band = overhead.band_of(fitted["non_torch"], case.start.version)
    measured = case.measured["non_torch_gib"]
    if measured is not None:
        return float(measured - band["value_gib"])
    return _unexplained(case) - float(
        band["extrapolated_eager_gib" if case.start.enforce_eager else "extrapolated_gib"]
    )


def _unexplained(case: Case) -> float:
    """Requested memory without weights, activation, graphs and the measured pool, in GiB."""
    budget = plan(case.instance, case.hosts)["budget"][0]
    weights = case.measured["weights_gib"] or budget["weights_gib"]["value"]
    estimate = case.measured["cudagraph_est_gib"]
    graphs = (estimate or budget["cuda_graph_gib"]["value"]) if budget["cuda_graphs_in_request"] else 0.0
    taken = weights + budget["activation_gib"]["value"] + graphs + case.measured["kv_pool_gib"]
    return float(budget["requested_gib"]["value"] - taken)


FOLDS: dict[str, Callable[[Case], Any]] = {
    "model": lambda case: case.model,
    "release": lambda case: case.start.version[:2],
    "card": lambda case: case.card,
    "set": lambda case: case.record["set"],
}
"""What may be left out of a fit at once, to learn how the planner does on what it never saw."""


def left_out(
    cases: Sequence[Case], start: dict[str, Any], fold: str = "model"
) -> Iterable[tuple[list[Case], dict[str, Any]]]:
    """The cases of each model (release, card, set) with the coefficients that were fitted without them."""
    kind = FOLDS[fold]
    for value in dict.fromkeys(map(kind, cases)):
        own = [case for case in cases if kind(case) == value]
        yield own, fit([case for case in cases if kind(case) != value], start)


def calibrate(cases: Sequence[Case], start: dict[str, Any]) -> dict[str, Any]:
    """The coefficients of all cases, with deviations from the cases that were left out."""
    fitted = fit(cases, start)
    errors = []
    for own, coefficients in left_out(cases, start):
        use(coefficients)
        errors += [
            abs(_activation(case) - case.measured["activation_gib"])
            for case in own
            if case.measured["activation_gib"] is not None
            and SAMPLER_IS_KNOWN_FROM <= case.start.version < COMPILATION_SHOWS_FROM
        ]
    errors.sort()
    if errors:
        fitted["activation"]["deviation_gib"] = round(max(errors[int(COVERED * (len(errors) - 1))], 0.03), 3)
        fitted["activation"]["n"] = len(errors)
    use(fitted)
    return fitted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print the result, write nothing")
    options = parser.parse_args()
    cases = list(load_cases())
    if not cases:
        print("no measured starts beside the repository (../shared/data): nothing to fit")
        return 1
    fitted = calibrate(cases, overhead.coefficients())
    text = json.dumps(fitted, indent=2) + "\n"
    if options.check:
        print(text)
    else:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

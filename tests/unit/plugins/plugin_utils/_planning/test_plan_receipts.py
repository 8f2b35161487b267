# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from planning_examples import hosts, instance

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning import plan

PINS = {"gpu_memory_utilization": 0.9, "max_model_len": 8192}


def receipt(planned, pool_gib, weights_gib=None, **changed):
    budget = planned["budget"][0]
    figures = {"weights_gib": budget["weights_gib"]["value"], "kv_pool_gib": budget["kv_pool_gib"]["value"]}
    return {
        "release": planned["release"]["version"],
        "card": budget["name"],
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "planned": figures,
        "measured": {"weights_gib": weights_gib or figures["weights_gib"], "kv_pool_gib": pool_gib},
        **changed,
    }


def pool(planned):
    return planned["budget"][0]["kv_pool_gib"]


def test_a_receipt_of_the_same_start_replaces_the_prediction():
    predicted = plan(instance(engine_args=PINS), hosts())
    measured = pool(predicted)["value"] - 0.8
    corrected = pool(plan(instance(engine_args=PINS, receipt=receipt(predicted, measured)), hosts()))
    assert corrected["value"] == pytest.approx(measured, abs=0.01)
    assert corrected["high"] - corrected["low"] < pool(predicted)["high"] - pool(predicted)["low"]


def test_a_neighbours_receipt_moves_what_is_not_weights():
    neighbour = plan(instance("Llama-3.1-8B", engine_args=PINS), hosts())
    kept = receipt(neighbour, pool(neighbour)["value"] - 0.3)
    plain = plan(instance(engine_args=PINS), hosts())
    moved = plan(instance(engine_args=PINS, receipt=kept), hosts())
    assert pool(moved)["value"] == pytest.approx(pool(plain)["value"] - 0.3, abs=0.01)
    assert moved["budget"][0]["weights_gib"] == plain["budget"][0]["weights_gib"]


@pytest.mark.parametrize(("key", "value"), [("release", "0.19.0"), ("card", "NVIDIA L4")])
def test_a_receipt_of_something_else_is_refused(key, value):
    plain = plan(instance(engine_args=PINS), hosts())
    given = receipt(plain, 1.0, **{key: value})
    refused = plan(instance(engine_args=PINS, receipt=given), hosts())
    assert pool(refused) == pool(plain)
    assert any("not used" in warning for warning in refused["warnings"])


def test_a_receipt_of_another_division_changes_nothing():
    plain = plan(instance(engine_args=PINS), hosts())
    given = receipt(plain, 1.0, tensor_parallel_size=2)
    assert pool(plan(instance(engine_args=PINS, receipt=given), hosts())) == pool(plain)


@pytest.mark.parametrize(
    "graphs", [{"cuda_graph_estimate_gib": -0.17}, {"cuda_graph_estimate_gib": 6.24, "cuda_graph_gib": 0.8}]
)
def test_figures_of_vllm_that_cannot_be_raise_a_warning(graphs):
    plain = plan(instance(engine_args=PINS), hosts())
    given = receipt(plain, 1.0)
    given["measured"].update(graphs)
    warned = plan(instance(engine_args=PINS, receipt=given), hosts())
    assert pool(warned) == pool(plain)
    assert any("vLLM estimated" in warning for warning in warned["warnings"])


# -- one receipt after the other ----------------------------------------
def arguments(planned):
    return {item["name"]: item["value"] for item in planned["arguments"]}


def test_a_correction_is_kept_when_the_corrected_start_is_measured_again():
    predicted = plan(instance(engine_args=PINS), hosts())
    measured = pool(predicted)["value"] - 0.8
    first = receipt(predicted, measured, arguments=arguments(predicted))
    corrected = plan(instance(engine_args=PINS, receipt=first), hosts())
    second = receipt(corrected, measured, arguments=arguments(corrected))
    again = plan(instance(engine_args=PINS, receipt=second), hosts())
    assert pool(again)["value"] == pytest.approx(measured, abs=0.02)
    assert again["budget"][0]["non_torch_gib"]["source"] == "receipt"


def test_a_correction_holds_for_other_arguments_of_the_same_start():
    predicted = plan(instance(engine_args=PINS), hosts())
    kept = receipt(predicted, pool(predicted)["value"] - 0.8, arguments=arguments(predicted))
    wider = {**PINS, "gpu_memory_utilization": 0.8}
    plain, corrected = (plan(instance(engine_args=wider, receipt=given), hosts()) for given in (None, kept))
    assert pool(corrected)["value"] == pytest.approx(pool(plain)["value"] - 0.8, abs=0.02)


def test_a_start_with_a_pool_in_bytes_measures_no_pool_and_that_is_no_fault():
    pins = {"kv_cache_memory_bytes": 2**33, "max_model_len": 8192}
    predicted = plan(instance(engine_args=pins), hosts())
    kept = receipt(predicted, None, 15.4, arguments=arguments(predicted))
    planned = plan(instance(engine_args=pins, receipt=kept), hosts())
    assert planned["warnings"] == predicted["warnings"]
    assert planned["budget"][0]["weights_gib"] == {"value": 15.4, "low": 15.35, "high": 15.45, "source": "receipt"}
    assert planned["budget"][0]["non_torch_gib"] == predicted["budget"][0]["non_torch_gib"]


def test_a_start_that_logged_no_weights_teaches_nothing_and_nothing_is_said():
    predicted = plan(instance(engine_args=PINS), hosts())
    kept = receipt(predicted, 40.0)
    kept["measured"]["weights_gib"] = None
    assert plan(instance(engine_args=PINS, receipt=kept), hosts()) == predicted


def test_a_neighbours_receipt_narrows():
    neighbour = plan(instance("Llama-3.1-8B", engine_args=PINS), hosts())
    kept = receipt(neighbour, pool(neighbour)["value"], arguments=arguments(neighbour))
    plain, narrowed = (plan(instance(engine_args=PINS, receipt=given), hosts()) for given in (None, kept))
    width = [pool(planned)["high"] - pool(planned)["low"] for planned in (plain, narrowed)]
    assert width[1] < width[0]

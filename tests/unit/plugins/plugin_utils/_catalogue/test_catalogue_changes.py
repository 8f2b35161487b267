# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What changes between releases, and what of it matters to an instance."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import (
    changes,
    known_releases,
    release,
    upgrade_report,
)

L40S = {"name": "NVIDIA L40S", "compute_capability": "8.9", "memory_total_mib": 46068}
B200 = {"name": "NVIDIA B200", "compute_capability": "10.0", "memory_total_mib": 183359}


def host(driver: str, gpu: dict[str, Any], name: str = "gpu1") -> dict[str, Any]:
    return {"name": name, "driver_version": driver, "gpus": [gpu]}


def instance(image: str, **given: Any) -> dict[str, Any]:
    return {"name": "chat", "image": f"vllm/vllm-openai:{image}", **given}


def messages(report: dict[str, Any], severity: str) -> dict[str, str]:
    return {finding["subject"]: finding["message"] for finding in report["findings"] if finding["severity"] == severity}


def test_nothing_changes_within_a_release() -> None:
    for version in known_releases():
        found = changes(release(version), release(version))
        assert [entries for part in found.values() for entries in part.values() if entries] == []
        assert found["image"] == {}


def test_arguments_that_came_went_and_changed() -> None:
    found = changes(release("0.17.1"), release("0.20.0"))["arguments"]
    assert "swap_space" in found["removed"]
    assert found["default_changed"]["gpu_memory_utilization"] == [0.9, 0.92]
    assert set(found["added"]).isdisjoint(found["removed"])


def test_a_renamed_argument_is_one_change() -> None:
    found = changes(release("0.30.0"), release("0.31.0"))["arguments"]
    old, new = "enable_mamba_fine_grained_prefix_cache", "enable_mamba_shared_prefix_checkpoint"
    assert found["renamed"] == {old: new}
    assert old not in found["removed"]
    assert new not in found["added"]


def test_the_image_changes() -> None:
    image = changes(release("0.19.1"), release("0.20.0"))["image"]
    assert image["cuda"] == ["12.9", "13.0"]
    assert image["min_driver"] == ["575.51.03", "580.65.06"]


def test_an_argument_that_vanishes_blocks() -> None:
    report = upgrade_report(
        instance("v0.9.0", engine_args={"task": "embed"}, extra_args=["--swap-space", "4"]), "v0.32.0"
    )
    assert (report["verdict"], report["from"], report["to"]) == ("blocked", "v0.9.0", "v0.32.0")
    blockers = messages(report, "blocker")
    assert "use --runner pooling --convert embed" in blockers["engine_args: --task"]
    assert "--swap-space" in blockers["extra_args: --swap-space"]


def test_what_is_refused_already_today_is_no_matter_of_the_upgrade() -> None:
    report = upgrade_report(instance("v0.31.0", engine_args={"task": "embed"}), "v0.32.0")
    assert "engine_args: --task" not in messages(report, "blocker")


def test_a_default_that_changes_under_an_instance() -> None:
    report = upgrade_report(instance("v0.19.1"), "v0.20.0")
    assert report["verdict"] == "attention"
    assert "from 0.9 to 0.92" in messages(report, "change")["default: --gpu-memory-utilization"]
    pinned = upgrade_report(instance("v0.19.1", engine_args={"gpu_memory_utilization": 0.9}), "v0.20.0")
    assert "default: --gpu-memory-utilization" not in messages(pinned, "change")


def test_batch_defaults_of_the_cards_in_use() -> None:
    report = upgrade_report(instance("v0.27.1"), "v0.32.0", [host("580.95.05", B200)])
    assert "from 8192 to 16384" in messages(report, "change")["default: --max-num-batched-tokens"]
    assert "from 2048" not in str(upgrade_report(instance("v0.27.1"), "v0.32.0", [host("580.95.05", L40S)])["findings"])


def test_a_host_that_cannot_run_the_target_blocks() -> None:
    card = {"name": "NVIDIA GeForce RTX 4090", "compute_capability": "8.9", "memory_total_mib": 24564}
    report = upgrade_report(instance("v0.19.1"), "v0.33.0", [host("575.57.08", card, "tower")])
    assert "install 580.65.06" in messages(report, "blocker")["tower: driver"]
    assert "575.51.03 to 580.65.06" in messages(report, "notice")["driver"]


def test_an_architecture_that_is_lost_blocks() -> None:
    checkpoint = {"architectures": ["QWenLMHeadModel"], "dtype": "float16", "quantization": None}
    report = upgrade_report(instance("v0.22.0", checkpoint=checkpoint), "v0.33.0", [host("580.95.05", L40S)])
    assert "does not know QWenLMHeadModel" in messages(report, "blocker")["gpu1: architecture"]
    assert "QWenLMHeadModel" in messages(report, "notice")["architectures lost"]


def test_a_route_that_opens_is_a_change() -> None:
    report = upgrade_report(instance("v0.9.0"), "v0.32.0")
    assert "close it in the gateway" in messages(report, "change")["route: /scale_elastic_ep"]
    assert "/v2/rerank" in messages(report, "notice")["routes"]


def test_ray_goes_with_the_image() -> None:
    spans = instance("v0.17.1", engine_args={"distributed_executor_backend": "ray"})
    assert "ray" in messages(upgrade_report(spans, "v0.18.0"), "blocker")
    assert "ray" in messages(upgrade_report(instance("v0.17.1"), "v0.18.0"), "notice")


def test_an_environment_variable_that_nobody_reads_any_more() -> None:
    report = upgrade_report(instance("v0.9.0", environment={"VLLM_USE_V1": "1"}), "v0.33.0")
    assert "environment: VLLM_USE_V1" in messages(report, "change")


def test_an_upgrade_to_the_same_release_is_ready() -> None:
    report = upgrade_report(
        instance("v0.32.0", engine_args={"max_model_len": 8192}), "v0.32.0", [host("580.95.05", L40S)]
    )
    assert (report["verdict"], report["findings"]) == ("ready", [])

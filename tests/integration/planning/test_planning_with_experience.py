# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan_vllm.yml with the experience of another fleet: what a smaller model of the same architecture taught."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_planning_playbooks import ROOT, run

from ansible_collections.gpufleet.vllm.plugins.filter.experience import experience


def receipt(pool: float) -> dict[str, object]:
    """One of Qwen3-4B on the same card, whose pool was planned with 62 GiB."""
    planned = {"weights_gib": 7.55, "kv_pool_gib": 62.0}
    return {
        "release": "0.32.0",
        "card": "NVIDIA H100 80GB HBM3",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "arguments": {},
        "planned": planned,
        "measured": {"weights_gib": 7.55, "kv_pool_gib": pool, "kv_tokens": 400000},
    }


def plan(folder: Path, *options: str) -> str:
    result = run("plan_vllm.yml", "-i", f"{ROOT}/inventories/example", "-l", "gpu01", *options, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tokens(output: str) -> int:
    """Of the KV cache, as the plan tells them."""
    return int(re.search(r"KV cache: ([\d,]+) tokens", output)[1].replace(",", ""))  # type: ignore[index]


@pytest.mark.parametrize("pool", [59.0, 62.0])
def test_a_neighbour_corrects_the_plan(tmp_path: Path, pool: float) -> None:
    checkpoint = {"architecture": "Qwen3ForCausalLM", "weights": {"total_bytes": 8 << 30}, "layers": []}
    text = experience("", [receipt(pool)], "/models/Qwen3-4B", checkpoint, "2026-11-30T12:00:00Z")
    (tmp_path / "experience.json").write_text(text, encoding="utf-8")
    without, with_it = plan(tmp_path), plan(tmp_path, "-e", "vllm_experience=experience.json")
    assert (tokens(with_it) < tokens(without)) is (pool < 62.0)


def test_a_file_that_is_not_there_teaches_nothing(tmp_path: Path) -> None:
    assert tokens(plan(tmp_path, "-e", "vllm_experience=none.json")) == tokens(plan(tmp_path))


def test_another_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(json.dumps({"hosts": []}), encoding="utf-8")
    options = ["-i", f"{ROOT}/inventories/example", "-l", "gpu01", "-e", "vllm_experience=fleet.json"]
    result = run("plan_vllm.yml", *options, cwd=tmp_path)
    assert result.returncode != 0
    assert "names no experience file" in " ".join((result.stdout + result.stderr).split())

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ansible_collections.gpufleet.vllm.plugins.plugin_utils._planning.shape import (
    dtype_bytes,
    layer_sequence,
    round_up,
    stage_sizes,
    stage_slices,
    version_of,
)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("v0.32.0", (0, 32, 0)),
        ("0.20.0-cu129", (0, 20, 0)),
        ("0.19.2rc1.dev100+gf946659ff", (0, 19, 2)),
        ("0.21", (0, 21, 0)),
        (SimpleNamespace(version="0.10.2"), (0, 10, 2)),
    ],
)
def test_version(release, expected):
    assert version_of(release) == expected


@pytest.mark.parametrize("release", ["latest", "", None])
def test_what_is_no_release_is_refused(release):
    with pytest.raises(ValueError, match=r"looks like v0\.32\.0"):
        version_of(release)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(32, 1, [32]), (32, 4, [8, 8, 8, 8]), (61, 2, [31, 30]), (62, 4, [15, 16, 16, 15]), (5, 3, [2, 2, 1])],
)
def test_layers_left_over_go_to_the_middle_stages_first(layers, stages, expected):
    assert stage_sizes(layers, stages) == expected
    assert [len(part) for part in stage_slices(layers, stages)] == expected


def test_runs_of_equal_layers_are_spread():
    assert layer_sequence({"layers": [{"count": 2, "a": 1}, {"count": 1, "a": 2}]}) == [
        {"count": 2, "a": 1},
        {"count": 2, "a": 1},
        {"count": 1, "a": 2},
    ]


def test_bytes_of_dtypes():
    assert [dtype_bytes(name) for name in ("float32", "bfloat16", "half", "fp8")] == [4, 2, 2, 1]
    with pytest.raises(ValueError, match="'bf15' is unknown"):
        dtype_bytes("bf15")


def test_rounding():
    assert (round_up(128256, 64), round_up(1, 64), round_up(0, 64)) == (128256, 64, 0)

"""Writes the snapshots of all releases as the collection's data files, and reads them back."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import intervals

DATA = Path(__file__).resolve().parents[2] / "plugins" / "plugin_utils" / "_catalogue" / "data"

# Part of a snapshot -> how it is stored: "records" are tables of tables, "table" is one table, "value" a single value.
PARTS = {
    "arguments": "records",
    "environment": "table",
    "architectures": "table",
    "quantization": "records",
    "batch_defaults": "value",
    "float16_refused": "value",
    "routes": "records",
    "guarded_prefixes": "value",
    "requirements": "table",
}


def version_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def write(snapshots: dict[str, dict[str, Any]], folder: Path = DATA) -> None:
    """Writes one file a part; the same snapshots give the same bytes."""
    releases = sorted(snapshots, key=version_key)
    _dump(folder / "releases.json", releases)
    for part, shape in PARTS.items():
        values = {release: snapshots[release][part] for release in releases if part in snapshots[release]}
        pack = {"records": intervals.compress_records, "table": intervals.compress_table, "value": intervals.compress}[
            shape
        ]
        _dump(folder / f"{part}.json", pack(releases, values))


def read(folder: Path = DATA) -> dict[str, dict[str, Any]]:
    """The snapshots that :func:`write` was given."""
    if not (folder / "releases.json").exists():
        return {}
    releases = json.loads((folder / "releases.json").read_text(encoding="utf-8"))
    snapshots: dict[str, dict[str, Any]] = {release: {} for release in releases}
    for part, shape in PARTS.items():
        unpack: Any = {"records": intervals.expand_records, "table": intervals.expand_table, "value": intervals.expand}[
            shape
        ]
        for release, value in unpack(releases, json.loads((folder / f"{part}.json").read_text("utf-8"))).items():
            snapshots[release][part] = value
    return snapshots


def _dump(path: Path, value: Any) -> None:
    """One line a top-level entry: a new release makes a readable difference in git."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, dict):
        rows = ",\n".join(f"{json.dumps(key)}:{_compact(value[key])}" for key in sorted(value))
        text = f"{{\n{rows}\n}}\n"
    else:
        text = "[\n" + ",\n".join(_compact(item) for item in value) + "\n]\n"
    path.write_text(text, encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)

"""Stores what is true of many releases once: a value with the first and the last release that has it."""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

ABSENT = object()


def compress(releases: list[str], values: dict[str, Any]) -> list[list[Any]]:
    """``{release: value}`` as ``[[first release, last release, value], ...]``; a release without a value has none."""
    spans: list[list[Any]] = []
    previous: Any = ABSENT
    for release in releases:
        value = values.get(release, ABSENT)
        if value is not ABSENT:
            if value == previous and type(value) is type(previous):
                spans[-1][1] = release
            else:
                spans.append([release, release, value])
        previous = value
    return spans


def expand(releases: list[str], spans: list[list[Any]]) -> dict[str, Any]:
    """The inverse of :func:`compress`."""
    position = {release: index for index, release in enumerate(releases)}
    return {
        release: value for first, last, value in spans for release in releases[position[first] : position[last] + 1]
    }


def compress_table(releases: list[str], table: dict[str, dict[str, Any]]) -> dict[str, list[list[Any]]]:
    """``{release: {key: value}}`` as ``{key: spans}``."""
    keys = sorted({key for rows in table.values() for key in rows})
    return {
        key: compress(releases, {release: rows[key] for release, rows in table.items() if key in rows}) for key in keys
    }


def expand_table(releases: list[str], spans: dict[str, list[list[Any]]]) -> dict[str, dict[str, Any]]:
    """The inverse of :func:`compress_table`."""
    table: dict[str, dict[str, Any]] = {release: {} for release in releases}
    for key, key_spans in spans.items():
        for release, value in expand(releases, key_spans).items():
            table[release][key] = value
    return table


def compress_records(releases: list[str], table: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """``{release: {name: {attribute: value}}}`` as ``{name: {attribute: spans}}``."""
    names = sorted({name for records in table.values() for name in records})
    return {
        name: compress_table(
            releases, {release: records[name] for release, records in table.items() if name in records}
        )
        for name in names
    }


def expand_records(releases: list[str], data: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The inverse of :func:`compress_records`."""
    table: dict[str, dict[str, dict[str, Any]]] = {release: {} for release in releases}
    for name, attributes in data.items():
        for release, record in expand_table(releases, attributes).items():
            if record:
                table[release][name] = record
    return table

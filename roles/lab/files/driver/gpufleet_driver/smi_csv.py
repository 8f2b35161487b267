# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""nvidia-smi --query-gpu and --query-compute-apps with --format=csv[,noheader][,nounits]."""

from __future__ import annotations

from typing import Any, Sequence

from .facts import facts
from .layout import Entry, read
from .profile import NOT_AVAILABLE, Device, Problem, Profile


class UnknownField(Exception):
    """The driver has no such field."""


def query_gpu(profile: Profile, gpus: Sequence[Device], names: list[str], options: list[str], timestamp: str) -> str:
    fields = _fields("query_gpu.fields", profile, names)
    rows = [_row(fields, {**facts(gpu), "timestamp": timestamp}, profile, options) for gpu in gpus]
    return _table(fields, rows, options)


def query_compute_apps(
    profile: Profile, gpus: Sequence[Device], names: list[str], options: list[str], timestamp: str
) -> str:
    """One row for each process; none in a container, where other PID namespaces are not seen."""
    fields = _fields("query_compute_apps.fields", profile, names)
    rows = []
    for gpu in [] if profile.in_container else gpus:
        for process in gpu.processes:
            if "C" in process.get("type", "C"):
                values = {**facts(gpu), "timestamp": timestamp, **_process(process)}
                rows.append(_row(fields, values, profile, options))
    return _table(fields, rows, options)


def field_names(profile: Profile) -> list[str]:
    return [" or ".join(f'"{n}"' for n in e.name.split("|")) for e in read("query_gpu.fields", profile.version_tuple)]


def _process(process: dict[str, Any]) -> dict[str, str]:
    used = process.get("used_memory_mib")
    return {
        "process.pid": str(process["pid"]),
        "process.name": str(process.get("name", "")),
        "process.used_memory": NOT_AVAILABLE if used is None else str(used),
    }


def _fields(table: str, profile: Profile, names: list[str]) -> list[Entry]:
    known = {name: entry for entry in read(table, profile.version_tuple) for name in entry.name.split("|")}
    for name in names:
        if name not in known:
            raise UnknownField(f'Field "{name}" is not a valid field to query.\n')
    return [known[name] for name in names]


def _row(fields: list[Entry], values: dict[str, str], profile: Profile, options: list[str]) -> str:
    return ", ".join(_cell(field, values, profile, options) for field in fields)


def _cell(field: Entry, values: dict[str, str], profile: Profile, options: list[str]) -> str:
    value = values.get(field.fact, NOT_AVAILABLE) if field.fact else NOT_AVAILABLE
    if isinstance(value, Problem):
        if value == NOT_AVAILABLE and profile.version_tuple < (470,):
            return "[Not Supported]"
        return value if field.name.startswith("fabric.") else f"[{value}]"
    return f"{value} {field.form}" if field.form and "nounits" not in options else value


def _table(fields: list[Entry], rows: list[str], options: list[str]) -> str:
    if "noheader" not in options:
        rows = [", ".join(_heading(field) for field in fields), *rows]
    return "".join(row + "\n" for row in rows)


def _heading(field: Entry) -> str:
    name = field.name.split("|")[0]
    return f"{name} [{field.form}]" if field.form else name

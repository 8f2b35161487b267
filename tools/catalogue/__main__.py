"""Keeps the catalogue of vLLM releases.

python tools/catalogue add 0.34.0          reads the release from PyPI, writes the data, prints what changed
python tools/catalogue add                 the same for every release of the catalogue: the data do not change
python tools/catalogue diff 0.32.0 0.33.0  prints what changed between two releases
"""

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import store
from fetch import NotOnPyPI, image_requirements, unpack_wheel
from snapshot import snapshot
from values import CannotEvaluate, InterpretedError

REPOSITORY = Path(__file__).resolve().parents[2]
RECURSION_LIMIT = 5000  # the interpreter needs some ten Python frames for each frame of the interpreted code


def add(versions: list[str], folder: Path) -> list[str]:
    """Reads the releases and writes them into the data files; returns the versions in order."""
    snapshots = store.read(folder)
    for version in sorted(versions or snapshots, key=store.version_key):
        print(f"reading vLLM {version}", file=sys.stderr)
        snapshots[version] = read_release(version)
        store.write(snapshots, folder)
    return sorted(snapshots, key=store.version_key)


def read_release(version: str) -> dict[str, Any]:
    """The snapshot of a release, from its wheel and the metadata of its CUDA wheel."""
    with tempfile.TemporaryDirectory() as folder:
        found = snapshot(unpack_wheel(version, Path(folder)))
    found["requirements"] = image_requirements(version)
    return found


def diff(old: str, new: str) -> Iterator[str]:
    """What changed between two releases of the catalogue, one line each."""
    sys.path.insert(0, str(REPOSITORY / ".collections"))
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import release
    from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue.changes import changes

    yield f"vLLM {old} -> {new}"
    for part, kinds in changes(release(old), release(new)).items():
        for kind, entries in kinds.items():
            yield from (f"  {part}, {kind.replace('_', ' ')}: {text}" for text in _entries(part, entries))


def _entries(part: str, entries: Any) -> list[str]:
    """Lists are names; dictionaries map a name to its old and new value. An image's fact is such a pair itself."""
    if part == "image":
        return [f"{entries[0]} -> {entries[1]}"]
    if isinstance(entries, dict):
        return [f"{name}: {_change(change)}" for name, change in entries.items()]
    return [str(entry) for entry in entries]


def _change(change: Any) -> str:
    if isinstance(change, dict):
        return " ".join([*(f"+{item}" for item in change["added"]), *(f"-{item}" for item in change["removed"])])
    return f"{change[0]} -> {change[1]}" if isinstance(change, list) else str(change)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tools/catalogue", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_command = commands.add_parser("add", help="read releases from PyPI and write the data")
    add_command.add_argument("versions", nargs="*", metavar="VERSION")
    add_command.add_argument("--data", type=Path, default=store.DATA, help="folder of the data files")
    diff_command = commands.add_parser("diff", help="print what changed between two releases")
    diff_command.add_argument("old")
    diff_command.add_argument("new")
    options = parser.parse_args()
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        if options.command == "diff":
            print("\n".join(diff(options.old, options.new)))
            return
        known = add(options.versions, options.data)
    except (NotOnPyPI, CannotEvaluate, InterpretedError) as error:
        sys.exit(f"{error}\nWhere vLLM's source has changed its ways, teach tools/catalogue the new one.")
    for version in options.versions if options.data == store.DATA else []:
        position = known.index(version)
        if position:
            print("\n".join(diff(known[position - 1], version)))


if __name__ == "__main__":
    main()

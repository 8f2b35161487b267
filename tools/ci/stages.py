# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run make targets one after the other, go on after a failure, and end with a table of results.

Usage: python tools/ci/stages.py TARGET [TARGET ...]. The exit status is 1 if one of them failed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One make target that was run."""

    stage: str
    passed: bool
    seconds: float


def run(stage: str, position: str) -> Result:
    """Run one make target, with its output passed through."""
    print(f"\n=== {position} {stage}", flush=True)
    start = time.monotonic()
    process = subprocess.run(["make", "--no-print-directory", stage], stdin=subprocess.DEVNULL, check=False)
    result = Result(stage, process.returncode == 0, time.monotonic() - start)
    print(f"=== {position} {stage}: {'passed' if result.passed else 'FAILED'} in {result.seconds:.0f} s", flush=True)
    return result


def table(results: list[Result]) -> str:
    """Return the summary of all the targets."""
    width = max(len(result.stage) for result in results)
    lines = [f"{'stage':<{width}}  result  seconds"]
    for result in results:
        lines.append(f"{result.stage:<{width}}  {'passed' if result.passed else 'FAILED':<6}  {result.seconds:7.0f}")
    total = sum(result.seconds for result in results)
    failed = [result.stage for result in results if not result.passed]
    lines.append(f"{'all':<{width}}  {'FAILED' if failed else 'passed':<6}  {total:7.0f}")
    if failed:
        lines.append(f"Repeat what failed with: make {' '.join(failed)}")
    return "\n".join(lines)


def main(stages: list[str]) -> int:
    """Run the targets and print the table."""
    results = [run(stage, f"[{number}/{len(stages)}]") for number, stage in enumerate(stages, start=1)]
    print("\n" + table(results), flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

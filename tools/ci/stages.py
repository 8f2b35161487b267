# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run make targets, go on after a failure, and end with a table of results.

Usage: python tools/ci/stages.py TARGET [TARGET ...] [--beside TARGET [TARGET ...]]

The targets run one after the other. Those after --beside run at the same time: they start simulated hosts and mostly
wait for them. The first of them runs alone, as it makes what the others share; then two at a time. Their output is
printed when each has ended. One of them that failed is tried once more, which the table says: a busy machine may be the
reason. The exit status is 1 if a target failed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_PRINTING = threading.Lock()


@dataclass(frozen=True)
class Result:
    """One make target that was run."""

    stage: str
    passed: bool
    seconds: float
    tries: int = 1

    @property
    def word(self) -> str:
        """The result in a word or two."""
        return ("passed" if self.passed else "FAILED") + (" at the second try" if self.tries > 1 else "")


def run(stage: str, position: str, live: bool) -> Result:
    """Run one make target; its output is passed through, or printed when it has ended."""
    say(f"\n=== {position} {stage}" + ("" if live else ": begins, its output comes at its end"))
    start = time.monotonic()
    process = subprocess.run(
        ["make", "--no-print-directory", stage],
        stdin=subprocess.DEVNULL,
        stdout=None if live else subprocess.PIPE,
        stderr=None if live else subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    result = Result(stage, process.returncode == 0, time.monotonic() - start)
    ending = f"=== {position} {stage}: {'passed' if result.passed else 'FAILED'} in {result.seconds:.0f} s"
    say(ending if live else f"\n=== {position} {stage}: its output\n{process.stdout}\n{ending}")
    return result


def say(text: str) -> None:
    """Print a whole text, also while the other targets print."""
    with _PRINTING:
        print(text, flush=True)


def run_beside(stages: list[str]) -> list[Result]:
    """Run the first target, then the others, two at a time; returns their results in the order of the targets."""
    numbered = [(stage, f"[{number}/{len(stages)}]") for number, stage in enumerate(stages, start=1)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return [twice(*stage) for stage in numbered[:1]] + list(pool.map(lambda stage: twice(*stage), numbered[1:]))


def twice(stage: str, position: str) -> Result:
    """Run one make target, and once more if it failed."""
    result = run(stage, position, live=False)
    if result.passed:
        return result
    again = run(stage, position, live=False)
    return Result(stage, again.passed, result.seconds + again.seconds, tries=2)


def table(results: list[Result], seconds: float) -> str:
    """Return the summary of all the targets."""
    width = max(len(result.stage) for result in results)
    lines = [f"{'stage':<{width}}  result  seconds"]
    for result in results:
        lines.append(f"{result.stage:<{width}}  {result.word:<6}  {result.seconds:7.0f}")
    failed = [result.stage for result in results if not result.passed]
    lines.append(f"{'all':<{width}}  {'FAILED' if failed else 'passed':<6}  {seconds:7.0f}")
    if failed:
        lines.append(f"Repeat what failed with: make {' '.join(failed)}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the targets and print the table."""
    at = arguments.index("--beside") if "--beside" in arguments else len(arguments)
    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=1) as pool:
        beside = pool.submit(run_beside, arguments[at + 1 :])
        results = [run(stage, f"[{number}/{at}]", live=True) for number, stage in enumerate(arguments[:at], start=1)]
        results += beside.result()
    print("\n" + table(results, time.monotonic() - start), flush=True)
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

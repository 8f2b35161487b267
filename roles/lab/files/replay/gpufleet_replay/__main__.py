# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`vllm serve MODEL ...`, replayed for tests."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from . import arguments, bench
from .log import write
from .run import Run, Stopped
from .settings import Settings

_USAGE = 64


def main(words: list[str]) -> int:
    """Runs the engine until it ends; returns its exit code. words: what follows `vllm`."""
    if words[:2] == ["bench", "serve"]:
        return bench.main(words[2:])
    given = arguments.parse(words[1:] if words[:1] == ["serve"] else words)
    name = (arguments.as_list(given.get("served_model_name")) or [str(given.get("model"))])[0]
    settings = Settings(os.environ, name)
    if words[:1] in (["--version"], ["-v"]):
        write(f"{settings['release']}\n")
        return 0
    write(f"gpufleet-lab-replay: for tests, replays vLLM {settings['release']}; it is not vLLM and computes nothing\n")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    return Run(given, settings).run()


def _stop(number: int, frame: Any) -> None:
    for ignored in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ignored, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        write(f"gpufleet-lab-replay: {error}\n")
        sys.exit(_USAGE)

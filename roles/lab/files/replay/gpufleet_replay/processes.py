# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes that vLLM would have: API server, engine core, workers. Each logs under its own name."""

from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Mapping
from typing import Any

from . import wording
from .faults import Failure, known, text
from .log import Log

_MIB_PER_GIB = 1024
_PACKAGES = "/usr/local/lib/python3.12/dist-packages/vllm/"
_CORE = ["v1/engine/core.py:run_engine_core", "v1/engine/core.py:__init__"]
_WORKER = ["v1/executor/multiproc_executor.py:worker_main", "v1/executor/multiproc_executor.py:__init__"]
_BUSY = ["v1/executor/multiproc_executor.py:worker_busy_loop"]
_SERVE = ["entrypoints/cli/main.py:main", "entrypoints/cli/serve.py:cmd", "entrypoints/openai/api_server.py:run_server"]
_CLIENT = [*_SERVE, "v1/engine/async_llm.py:from_vllm_config", "v1/engine/utils.py:wait_for_engine_startup"]
_INITIALIZATION = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause."
)
_DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause."
)


class Processes:
    """The logs of the processes of one engine on this host."""

    def __init__(self, release: str, config: Mapping[str, Any], debug: bool) -> None:
        self._release = release
        self._config = config
        self._own = config["local_world_size"] > 1 or config["nnodes"] > 1
        pid = os.getpid()
        headless = config["headless"]
        labels = {
            name: wording.of_release(spans, release)[0] for name, spans in wording.data("wording")["labels"].items()
        }
        self.api = Log(release, None if headless or not labels["api"] else f"{labels['api']} pid={pid}", debug)
        self._core = labels["engine"] or "EngineCore_0"
        engine = None if headless or not labels["engine"] else f"{self._core} pid={pid + 39}"
        self.engine = Log(release, engine, debug)
        first = config["node_rank"] * config["local_world_size"]
        self.ranks = list(range(first, first + config["local_world_size"]))
        self.workers = [
            Log(release, self._worker_label(labels["worker"], rank, pid + 57 + index), debug, first=index == 0)
            if self._own
            else self.engine
            for index, rank in enumerate(self.ranks)
        ]

    def place(self, rank: int) -> tuple[int, int]:
        """Pipeline and tensor parallel rank."""
        return divmod(rank, self._config["tensor_parallel_size"])

    def report(self, failure: Failure, figures: Mapping[str, Any], serving: bool) -> int:
        """Logs how the engine ends, and returns the exit code of the process that was started."""
        fault = known()[failure.name]
        told = {**figures, **fault, **failure.figures, "local_rank": self._index(failure), "rank": failure.rank or 0}
        if "left_mib" in fault:
            told["used_gib"] = told["total_gib"] - told["left_mib"] / _MIB_PER_GIB
            told["allocated_gib"] = told["used_gib"] - told["non_torch_gib"]
        ending = _Ending(failure, fault, text(failure.name, self._release, told), told)
        end = self._end_while_serving if serving else getattr(self, "_end_in_" + fault["raised_by"])
        code = end(ending)
        return code if failure.exit_code is None else failure.exit_code

    def _worker_label(self, label: str, rank: int, pid: int) -> str:
        if self._config["ray"]:
            return f"RayWorkerWrapper pid={pid}"
        pipeline, tensor = self.place(rank)
        parts = [f"PP{pipeline}"] * (self._config["pipeline_parallel_size"] > 1)
        parts += [f"TP{tensor}"] * (self._config["tensor_parallel_size"] > 1)
        return f"{label.format(rank=rank, place='_'.join(parts))} pid={pid}"

    def _worker_of(self, ending: _Ending) -> Log:
        return self.workers[self._index(ending.failure)]

    def _index(self, failure: Failure) -> int:
        """Which of the local workers meets the failure: the first, if nothing else is said."""
        return self.ranks.index(failure.rank) if failure.rank in self.ranks else 0

    def _end_in_parser(self, ending: _Ending) -> int:
        self.api.raw(f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {ending.said}")
        return 2

    def _end_in_config(self, ending: _Ending) -> int:
        self.api.raw(
            _traceback(
                [*_SERVE, "engine/arg_utils.py:create_engine_config"],
                f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {ending.fault['config']}\n"
                f"  Value error, {ending.said} [type=value_error, input_value=ArgsKwargs((), {{...}}), "
                "input_type=ArgsKwargs]\n    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
            )
        )
        return 1

    def _end_in_api(self, ending: _Ending) -> int:
        self.api.raw(_traceback([*_SERVE, *ending.fault["frames"]], ending.said))
        return 1

    def _end_in_worker_start(self, ending: _Ending) -> int:
        self._before(ending)
        if not self._own:
            return self._end_in_engine(ending)
        self._worker_of(ending).exception("worker_failed", ending.traceback(_WORKER, self._release))
        return self._end_engine(
            _traceback([*_CORE, "v1/executor/multiproc_executor.py:wait_for_ready"], _INITIALIZATION)
        )

    def _end_in_worker(self, ending: _Ending) -> int:
        if not self._own:
            return self._end_in_engine(ending)
        self._worker_of(ending).exception("worker_exception", ending.traceback(_BUSY, self._release))
        return self._end_engine(
            _traceback([*_CORE, "v1/executor/multiproc_executor.py:collective_rpc"], _relayed(ending))
        )

    def _end_in_engine(self, ending: _Ending) -> int:
        return self._end_engine(ending.traceback(_CORE, self._release))

    def _end_in_worker_dies(self, ending: _Ending) -> int:
        self._worker_of(ending).raw(ending.said)
        if not self._own:
            return self._end_api({self._core: -6})
        self.engine.line("worker_died", rank=ending.failure.rank or self.ranks[0], exit_code=-6)
        return self._end_engine(_traceback(_CORE, "RuntimeError: cancelled"))

    def _end_in_engine_killed(self, ending: _Ending) -> int:
        return self._end_api({self._core: -9})

    def _before(self, ending: _Ending) -> None:
        """What vLLM says itself before it raises PyTorch's exception."""
        if "before" in ending.fault:
            self._worker_of(ending).line(ending.fault["before"], error=ending.said)

    def _end_engine(self, traceback: str) -> int:
        """The engine core ends, and with it the API server. On a host without one only the tracebacks are there."""
        if self._config["headless"]:
            self.engine.raw(traceback)
            return 1
        self.engine.exception("engine_failed", traceback)
        self.engine.raw(f"Process {self._core}:\n{traceback}")
        return self._end_api({})

    def _end_api(self, failed: dict[str, int]) -> int:
        said = f"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {failed}"
        self.api.raw(_traceback(_CLIENT, said))
        return 1

    def _end_while_serving(self, ending: _Ending) -> int:
        """vLLM's API server stops in good order when its engine dies, with exit code 0 (vllm-project/vllm#48966)."""
        rank = ending.failure.rank or self.ranks[0]
        if ending.fault["raised_by"] in ("worker_dies", "engine_killed"):
            self.engine.line("worker_died", rank=rank, exit_code=-9)
            traceback = _traceback([*_CORE[:1], "v1/engine/core.py:run_busy_loop"], "RuntimeError: cancelled")
        elif self._own:
            self._worker_of(ending).exception("worker_exception", ending.traceback(_BUSY, self._release))
            traceback = _traceback([*_CORE[:1], "v1/engine/core.py:run_busy_loop"], _relayed(ending))
        else:
            traceback = ending.traceback([*_CORE[:1], "v1/engine/core.py:run_busy_loop"], self._release)
        if self._config["headless"]:
            self.engine.line("worker_died", rank=rank, exit_code=1)
            return 0
        self.engine.exception("engine_fatal", traceback)
        self.api.exception("output_handler", _traceback(["v1/engine/async_llm.py:output_handler"], _DEAD))
        return 0


class _Ending:
    """How an engine ends: the failure, its entry of faults.json, and what its exception says."""

    def __init__(self, failure: Failure, fault: Mapping[str, Any], said: str, figures: Mapping[str, Any]) -> None:
        self.failure = failure
        self.fault = fault
        self.said = said
        self._figures = figures

    def traceback(self, outer: list[str], release: str) -> str:
        """The traceback, with the exception that caused this one above it if there is one."""
        own = _traceback([*outer, *self.fault["frames"]], self.said)
        if "cause" not in self.fault:
            return own
        cause = _traceback(self.fault["frames"], text(self.failure.name, release, dict(self._figures), "cause"))
        return f"{cause}\n\nThe above exception was the direct cause of the following exception:\n\n{own}"


def _relayed(ending: _Ending) -> str:
    said = ending.said.split("\n")[0].split(": ", 1)[-1]
    return f"RuntimeError: Worker failed with error '{said}', please check the stack trace above for the root cause"


def _traceback(frames: list[str], said: str) -> str:
    """A traceback as Python prints it without the sources. frames: "file:function", below vLLM's package."""
    rows = ["Traceback (most recent call last):"]
    for frame in frames:
        path, function = frame.split(":")
        # A number that stays the same, as the real ones do within a release.
        number = zlib.crc32(frame.encode()) % 2000 + 20
        rows.append(f'  File "{posixpath.normpath(_PACKAGES + path)}", line {number}, in {function}')
    return "\n".join([*rows, said])

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One engine from its start to its end."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from . import arguments
from .api import Api, Server, routes
from .boot import Boot
from .engine import Engine
from .faults import Failure, known
from .settings import Settings

_POLL_SECONDS = 0.05
_STATISTICS_SECONDS = 10.0


class Stopped(Exception):
    """Somebody asked the engine to stop."""


class Run:
    """One engine. given: its arguments."""

    def __init__(self, given: Mapping[str, Any], settings: Settings) -> None:
        self._boot = Boot(given, settings, os.environ)
        self._settings = settings
        self._keys = arguments.as_list(given.get("api_key")) or [os.environ.get("VLLM_API_KEY", "")]
        self._server: Server | None = None
        self._engine: Engine | None = None

    def run(self) -> int:
        boot = self._boot
        try:
            boot.run(self._bind)
            self._serve()
            return 0
        except Failure as failure:
            return self._end(failure)
        except Stopped:
            return self._stopped()
        finally:
            boot.members.close()
            boot.allocation.close()

    def _bind(self) -> None:
        self._server = Server(self._boot.config["host"], self._boot.config["port"])
        self._server.server_bind()

    def _serve(self) -> None:
        """Serves until a fault or a signal ends it, which is raised."""
        boot = self._boot
        self._engine = Engine(boot.config, boot.figures.get("kv_tokens", 0), float(self._settings["seconds_per_token"]))
        if self._server is not None:
            self._open(self._server)
        began = time.monotonic()
        statistics = _Statistics(boot, self._engine)
        while True:
            boot.members.lost.wait(_POLL_SECONDS)
            boot.members.check()
            self._act((time.monotonic() - began) * float(self._settings["clock_rate"]))
            statistics.log()

    def _open(self, server: Server) -> None:
        boot, log = self._boot, self._boot.processes.api
        server.api = Api(boot.release, self._settings, boot.processes, [key for key in self._keys if key])
        server.api.engine, server.api.faults = self._require_engine(), boot.faults
        log.line("tasks", **boot.figures)
        log.line("server", **boot.figures)
        log.line("routes")
        for path, methods in routes(server.api).items():
            log.line("route", route=path, methods=", ".join(methods))
        log.raw(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
        server.server_activate()
        threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True).start()
        log.raw("INFO:     Application startup complete.")

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("the engine has not started")
        return self._engine

    def _act(self, seconds: float) -> None:
        """Ends the engine where a fault asks for it."""
        requests = self._server.api.completions if self._server is not None else 0
        for fault in self._boot.faults.due("serving"):
            if seconds < fault.get("after_seconds", 0) or requests < fault.get("after_requests", 0):
                continue
            if fault["fault"] == "killed":
                self._boot.kill()
            if "raised_by" in known()[fault["fault"]]:
                raise self._boot.failure(fault)

    def _end(self, failure: Failure) -> int:
        """Logs why the engine ends. While it serves the API server stops in good order."""
        code = self._boot.processes.report(failure, self._boot.figures, serving=self._engine is not None)
        if self._engine is not None:
            self._engine.dead.set()
            self._close()
        return code

    def _stopped(self) -> int:
        """What vLLM does when it is asked to stop: while it starts Python ends it, later it stops in good order."""
        if self._engine is None:
            self._boot.processes.api.raw("Traceback (most recent call last):\nKeyboardInterrupt: terminated")
            return 128 + signal.SIGINT
        self._engine.dead.set()
        if self._server is not None:
            self._boot.processes.api.line("stopping")
        self._close()
        return 0

    def _close(self) -> None:
        if self._server is not None:
            # The handlers that wait for the engine answer first.
            time.sleep(_POLL_SECONDS)
            self._server.shutdown()
            self._server.server_close()
            log = self._boot.processes.api
            log.raw("INFO:     Shutting down\nINFO:     Waiting for application shutdown.")
            log.raw(f"INFO:     Application shutdown complete.\nINFO:     Finished server process [{os.getpid()}]")


class _Statistics:
    """The line with the throughput, every ten seconds in which there was any."""

    def __init__(self, boot: Boot, engine: Engine) -> None:
        self._boot = boot
        self._engine = engine
        self._logged = time.monotonic()
        self._prompt = self._generated = 0

    def log(self) -> None:
        seconds = time.monotonic() - self._logged
        if seconds < _STATISTICS_SECONDS:
            return
        counts = self._engine.counts
        prompt, generated = counts.prompt_tokens - self._prompt, counts.generated_tokens - self._generated
        if prompt or generated or counts.running or counts.waiting:
            self._boot.processes.api.line(
                "throughput",
                prompt_rate=prompt / seconds,
                generation_rate=generated / seconds,
                running=counts.running,
                waiting=counts.waiting,
                kv_usage_percent=100 * counts.tokens_in_cache / max(self._engine.kv_tokens, 1),
            )
        self._prompt, self._generated = counts.prompt_tokens, counts.generated_tokens
        self._logged = time.monotonic()

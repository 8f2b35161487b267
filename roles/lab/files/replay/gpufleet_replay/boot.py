# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The start of an engine, phase by phase, up to the moment in which it serves."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import arguments, cards, checkpoint, memory, wording
from .allocation import DEFAULT_FOLDER, Allocation
from .config import complete, layout
from .faults import Failure, Faults, known
from .log import progress_bar
from .members import Members
from .processes import Processes
from .settings import Settings

# The part of the start-up that each phase takes.
PHASES = {
    "starting": 0.1,
    "loading": 0.3,
    "compiling": 0.15,
    "profiling": 0.15,
    "allocating": 0.05,
    "capturing": 0.15,
    "warming": 0.1,
}
_MIB = 1 << 20
_GIB = 1 << 30
_SHARED_MEMORY_MIB = 160
# Raised before there is an engine.
_EARLY = ("config", "api")
# These change what is measured, and the failure follows from it.
_MEASURED = ("no_kv_cache", "max_model_len_exceeds_kv")


class Boot:
    """One start. ``config``: the arguments with vLLM's defaults; ``figures``: what the log can say of this engine."""

    def __init__(self, given: Mapping[str, Any], settings: Settings, environment: Mapping[str, str]) -> None:
        self.release = str(settings["release"]).lstrip("v")
        self.config = layout(given)
        self.settings = settings
        self.processes = Processes(self.release, self.config, environment.get("VLLM_LOGGING_LEVEL") == "DEBUG")
        self.members = Members(self.config, settings["connect_timeout_seconds"], settings["heartbeat_timeout_seconds"])
        self.allocation = Allocation(
            environment.get("GPUFLEET_DRIVER_ALLOCATIONS", DEFAULT_FOLDER),
            "VLLM::Worker" if self.config["world_size"] > 1 else "VLLM::EngineCore",
            float(settings["memory_release_seconds"]),
        )
        self.figures: dict[str, Any] = {"release": self.release, "unknown": "--swap-space 4", **self.config}
        self._given = given
        self._environment = environment
        self._seconds = 0.0

    def run(self, bind: Callable[[], None]) -> None:
        """Starts the engine. bind: takes the port of the API server, which raises OSError. Raises Failure."""
        refusal = self._configure()
        self.faults = Faults(self.settings, self.config)
        if not refusal:
            self._act("starting", ("parser",))
        self._introduce(bind)
        if refusal:
            raise refusal
        self._act("starting", _EARLY)
        self._announce()
        began = time.monotonic()
        for phase, share in PHASES.items():
            if phase != "starting":
                self.members.synchronize(phase)
            self._seconds = self.settings["phase_seconds"].get(phase, share * self.settings["startup_seconds"])
            getattr(self, "_" + phase)()
        self._initialized(time.monotonic() - began)
        self.members.synchronize("serving")

    def kill(self) -> None:
        """Ends this process as the kernel would. The first process of a container cannot kill itself."""
        if os.getpid() == 1:
            os._exit(128 + signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def failure(self, fault: Mapping[str, Any]) -> Failure:
        """The failure that a fault asks for, with what its text says that does not follow from this engine."""
        total = self._cards[0].total_gib
        timeout = self.settings["connect_timeout_seconds"]
        figures = {
            "total_gib": total,
            "non_torch_gib": 0.0,
            **self.figures,
            "derived_length": self.config["max_model_len"] // 2,
            "shm_free_mib": 64.0,
            "timeout_seconds": timeout,
            "timeout_ms": int(timeout * 1000),
            "joined": 1,
            "peer": self.config["master_addr"],
            "peer_port": self.config["master_port"],
        }
        if fault["fault"] == "gpu_shared":
            requested = total * self.config["gpu_memory_utilization"]
            figures.update(requested_gib=requested, free_gib=requested / 2)
        failure = Failure(fault["fault"], fault.get("rank"), fault.get("exit_code"))
        failure.figures = figures
        return failure

    # -- before there is an engine ------------------------------------------------------------------------------------
    def _configure(self) -> Failure | None:
        """Reads checkpoint and GPUs and completes the arguments; returns why vLLM refuses them."""
        try:
            self._cards = cards.visible(self.settings["gpus"])
            if not self._cards:
                raise Failure("no_gpu")
            card = self._cards[0]
            self.figures.update(card=card.name, capability=card.compute_capability, gpus=len(self._cards))
            self.figures.update(capability_digits=card.compute_capability.replace(".", ""))
            self._checkpoint = checkpoint.read(self.config["model"], self.settings["model"])
            self.figures.update(vars(self._checkpoint), first_shard=(self._checkpoint.shards or ("",))[0])
            complete(self.config, self._given, self._checkpoint, self._cards, self.release, self._environment)
        except checkpoint.Missing:
            return Failure("model_not_found")
        except Failure as failure:
            return failure
        finally:
            self.figures.update(self.config)
        return None

    def _introduce(self, bind: Callable[[], None]) -> None:
        log = self.processes.api
        if self.config["headless"]:
            log.line("headless", **self.figures)
            return
        log.line("banner", **self.figures)
        log.line(
            "arguments",
            given=arguments.printable(self._given, redacted=False),
            given_without_secrets=arguments.printable(self._given, redacted=True),
        )
        try:
            bind()
        except OSError:
            raise Failure("port_in_use") from None

    def _announce(self) -> None:
        log = self.processes.api
        log.line("architecture", **self.figures)
        if self.config["dtype"] == "float16" and self._checkpoint.dtype == "bfloat16":
            log.line("dtype_falls_back", **self.figures)
        log.line("max_model_len", **self.figures)
        log.line("chunked_prefill", **self.figures)
        if self.config["enforce_eager"]:
            log.line("eager")

    # -- the phases ---------------------------------------------------------------------------------------------------
    def _starting(self) -> None:
        config, engine = self.config, self.processes.engine
        if not config["headless"]:
            engine.line("waiting")
            engine.line("engine", **self.figures)
            if config["nnodes"] > 1 or config["local_world_size"] > 1:
                engine.line("leader", ip=config["master_addr"], **self.figures)
        self._check_shared_memory()
        self._measure()
        self._pause(1.0)
        self._act("starting")
        self.members.connect()
        self.members.synchronize("starting")
        method = f"tcp://{config['master_addr']}:{config['master_port']}"
        for index, (rank, log) in enumerate(zip(self.processes.ranks, self.processes.workers)):
            pipeline, tensor = self.processes.place(rank)
            log.line("world", rank=rank, local_rank=index, init_method=method, world_size=config["world_size"])
            if config["world_size"] > 1:
                log.line("nccl")
            log.line("rank", rank=rank, pp_rank=pipeline, tp_rank=tensor, world_size=config["world_size"])
        self._check_free_memory()

    def _measure(self) -> None:
        """Takes the memory of each rank's GPU."""
        # With Ray the other GPUs are on other hosts; they are taken to be like these.
        self._owned = [self._cards[index % len(self._cards)] for index in range(len(self.processes.ranks))]
        self._memories = [memory.measure(card, self._checkpoint, self.release, self.config) for card in self._owned]
        self._show(0)

    def _hold(self, *terms: str) -> None:
        """Holds the sum of these terms of each rank's memory, and the CUDA context."""
        held: dict[str, int] = {}
        for card, one in zip(self._owned, self._memories):
            if card.uuid is not None:
                gib = cards.CONTEXT_GIB + sum(getattr(one, term) for term in terms)
                held[card.uuid] = held.get(card.uuid, 0) + int(gib * 1024)
        self.allocation.hold(held)

    def _check_free_memory(self) -> None:
        """Refuses a GPU that has less free than is asked for, or cannot compute in the dtype."""
        if self.config["dtype"] == "bfloat16" and self._cards[0].capability < 8.0:
            raise Failure("bf16_unsupported")
        for index, one in enumerate(self._memories):
            if one.free_gib < one.requested_gib and not self.config["kv_cache_memory_bytes"]:
                self._show(index)
                raise Failure("gpu_shared", rank=self.processes.ranks[index])

    def _show(self, index: int) -> None:
        """Makes one local rank's memory what the figures tell."""
        one = self._memories[index]
        self.figures.update(one.figures(), local_rank=index, rank=self.processes.ranks[index])
        self.figures.update(
            more_free_gib=one.free_gib + 1.4,
            allocator_variable="PYTORCH_ALLOC_CONF"
            if wording.since(self.release, "0.11.1")
            else "PYTORCH_CUDA_ALLOC_CONF",
            cache_directory=os.path.expanduser("~/.cache/vllm/torch_compile_cache/replay/rank_0_0/backbone"),
        )

    def _loading(self) -> None:
        began = time.monotonic()
        for log in self.processes.workers:
            log.line("load", **self.figures)
            log.line("attention")
            log.line(
                "filesystem", filesystem="EXT4", checkpoint_gib=self._checkpoint.weights_gib, ram_gib=_free_ram_gib()
            )
        shards = self._checkpoint.shards
        if not shards and "weights_gib" not in self.settings["model"]:
            raise Failure("no_weights")
        total = max(len(shards), 1)
        for done in range(total + 1):
            self._shard_bar(done, total, time.monotonic() - began)
            if done == total // 2:
                self._act("loading")
                self._check_weights_fit()
                self._hold("non_torch_gib", "weights_gib")
            if done < total:
                self._check_shard(shards[done] if shards else None)
                self._pause(1.0 / total)
        elapsed = time.monotonic() - began
        for index, log in enumerate(self.processes.workers):
            self._show(index)
            log.line("weights_read", read_seconds=elapsed)
            log.line("weights", load_seconds=elapsed, **self.figures)

    def _check_weights_fit(self) -> None:
        for index, one in enumerate(self._memories):
            if one.weights_gib > one.free_gib:
                self._show(index)
                raise Failure("oom_weights", rank=self.processes.ranks[index])

    def _check_shard(self, path: str | None) -> None:
        try:
            if path is not None:
                checkpoint.check_shard(path)
        except checkpoint.Damaged:
            raise Failure("corrupted_weights") from None
        except OSError:
            raise Failure("mount_permissions", first_shard=path) from None

    def _shard_bar(self, done: int, total: int, elapsed: float) -> None:
        rate = f"{done / elapsed:5.2f}it/s" if done and elapsed else "?it/s"
        left = f"{_clock(elapsed / done * (total - done))}" if done else "?"
        progress_bar(
            f"Loading safetensors checkpoint shards: {100 * done // total:3d}% Completed | {done}/{total} "
            f"[{_clock(elapsed)}<{left}, {rate}]"
        )

    def _compiling(self) -> None:
        if self.config["enforce_eager"]:
            self._act("compiling")
            self.figures.update(compile_total_seconds=0.0)
            return
        began = time.monotonic()
        self._each("compile_cache")
        self._each("dynamo", dynamo_seconds=self._pause(0.3))
        self._act("compiling")
        self._each("compile_graph", compile_seconds=self._pause(0.7))
        self.figures.update(compile_total_seconds=time.monotonic() - began)
        self._each("compiled")

    def _profiling(self) -> None:
        took = self._pause(0.8)
        self._act("profiling")
        self._count_graphs()
        if self.config["kv_cache_memory_bytes"]:
            self._each("kv_pool_pinned")
        else:
            if not self.config["enforce_eager"]:
                self._each("graph_profile")
                self._each("graph_estimate")
            self._distort()
            self._each("profile_free")
            self._each("profile_result", profile_seconds=took)
            self._each("kv_pool")
            if not self.config["enforce_eager"]:
                self._each("graph_utilization")
        self._fit_kv_cache()
        self._pause(0.2)

    def _distort(self) -> None:
        """Takes from the KV pool what a fault asks for."""
        for fault in self.faults.due("profiling"):
            for one in self._memories:
                if fault["fault"] == "no_kv_cache":
                    one.kv_pool_gib = -abs(one.kv_pool_gib) / 10
                elif fault["fault"] == "max_model_len_exceeds_kv":
                    one.kv_pool_gib = min(one.kv_pool_gib, 0.6 * one.needed_gib(self.config["max_model_len"]))

    def _fit_kv_cache(self) -> None:
        """The engine core takes the smallest pool for all, and refuses one that holds no request of full length."""
        index = min(range(len(self._memories)), key=lambda one: self._memories[one].kv_pool_gib)
        self._show(index)
        one = self._memories[index]
        if one.kv_pool_gib <= 0:
            raise Failure("no_kv_cache")
        if self.config["max_model_len"] == -1:
            self.config["max_model_len"] = min(self._checkpoint.max_position_embeddings, one.kv_tokens)
        length = self.config["max_model_len"]
        if one.needed_gib(length) > one.kv_pool_gib:
            raise Failure("max_model_len_exceeds_kv", needed_gib=one.needed_gib(length), estimated_length=one.kv_tokens)
        concurrency = one.kv_tokens / length
        self.figures.update(kv_tokens=one.kv_tokens, max_model_len=length, max_concurrency=concurrency)

    def _allocating(self) -> None:
        self._act("allocating")
        self._check_left("oom_kv_cache", 0.0)
        self._hold("non_torch_gib", "weights_gib", "activation_gib", "kv_pool_gib")
        self._pause(1.0)
        if not self.config["headless"]:
            self.processes.engine.line("kv_tokens", **self.figures)
            self.processes.engine.line("kv_concurrency", **self.figures)

    def _check_left(self, failure: str, needed_gib: float) -> None:
        """Runs out of memory where the KV pool has left less than that."""
        for index, one in enumerate(self._memories):
            if one.left_gib < needed_gib:
                self._show(index)
                raise Failure(failure, rank=self.processes.ranks[index])

    def _capturing(self) -> None:
        if self.config["enforce_eager"]:
            self._act("capturing")
            return
        began = time.monotonic()
        modes = [("mixed prefill-decode, PIECEWISE", "graphs"), ("decode, FULL", "full_graphs")]
        if not wording.since(self.release, "0.11.0"):
            modes = [("", "graphs")]
        for mode, key in modes:
            self._capture(mode, self.figures[key], 1.0 / len(modes))
            self._act("capturing")
            self._check_left("oom_graphs", self.figures["graph_gib"])
        self._hold("non_torch_gib", "weights_gib", "activation_gib", "kv_pool_gib", "graph_gib")
        for index, log in enumerate(self.processes.workers):
            self._show(index)
            log.line("graphs", graph_seconds=time.monotonic() - began, **self.figures)

    def _capture(self, mode: str, total: int, share: float) -> None:
        title = f"Capturing CUDA graphs ({mode})" if mode else "Capturing CUDA graph shapes"
        began = time.monotonic()
        steps = sorted({0, total // 3, 2 * total // 3, total})
        for done in steps:
            self._pause(share / len(steps))
            elapsed = time.monotonic() - began
            filled = f"{'█' * (10 * done // total):<10}"
            speed = f"{done / elapsed if elapsed else 0:.2f}it/s"
            text = f"{title}: {100 * done // total:3d}%|{filled}| {done}/{total} [{_clock(elapsed)}<00:00, {speed}]"
            progress_bar(text, "\n" if done == total else "\r")

    def _count_graphs(self) -> None:
        """Batch sizes for which vLLM captures a graph: 1, 2, 4, steps of 8 to 256, of 16 (before 0.12: 8) to 512."""
        step = 16 if wording.since(self.release, "0.12.0") else 8
        sizes = [1, 2, 4, *range(8, 257, 8), *range(256 + step, 513, step)]
        largest = min(512, 2 * self.config["max_num_seqs"])
        taken = [size for size in sizes if size <= largest]
        full = [size for size in taken if size <= min(256, self.config["max_num_seqs"])]
        self.figures.update(graphs=len(taken), full_graphs=len(full))
        self.figures.update(largest_graph=taken[-1], largest_full_graph=full[-1])

    def _warming(self) -> None:
        self._pause(0.5)
        self._act("warming")
        self._pause(0.5)
        if not self.config["enforce_eager"] and not self.config["kv_cache_memory_bytes"]:
            self._each("graph_pool")
        if not self.config["kv_cache_memory_bytes"]:
            self._each("usage")

    def _initialized(self, elapsed: float) -> None:
        if not self.config["headless"]:
            self.processes.engine.line("initialized", init_seconds=elapsed, **self.figures)

    # -- what all phases need -----------------------------------------------------------------------------------------
    def _each(self, name: str, **figures: Any) -> None:
        """Logs a line of every local rank."""
        for index, log in enumerate(self.processes.workers):
            self._show(index)
            log.line(name, **{**self.figures, **figures})

    def _pause(self, share: float) -> float:
        """Waits for that part of the phase; returns the seconds. Raises Failure if a member is lost meanwhile."""
        seconds = share * self._seconds
        self.members.lost.wait(seconds)
        self.members.check()
        return seconds

    def _act(self, phase: str, raised_by: tuple[str, ...] = ()) -> None:
        """Does what is asked for in this phase. raised_by: only faults of these kinds."""
        for fault in self.faults.due(phase):
            name = fault["fault"]
            if (raised_by and known()[name].get("raised_by") not in raised_by) or name in _MEASURED:
                continue
            if name == "hang":
                self._hang()
            if name == "killed":
                self.kill()
            raise self.failure(fault)

    def _hang(self) -> None:
        """Does nothing any more. vLLM's engine core says once a minute that its workers do not answer."""
        while True:
            self.members.lost.wait(self.settings["hang_line_seconds"])
            self.members.check()
            if self.config["world_size"] > 1:
                self.processes.engine.line("shm_wait")

    def _check_shared_memory(self) -> None:
        """From 0.27 vLLM looks whether /dev/shm holds what its processes pass through it."""
        if self.config["local_world_size"] > 1 and wording.since(self.release, "0.27.0"):
            free = shutil.disk_usage("/dev/shm").free / _MIB
            if free < _SHARED_MEMORY_MIB:
                raise Failure("shm_too_small", shm_free_mib=free)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def _free_ram_gib() -> float:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB

# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what vLLM measured out of its start-up log. Private to the collection.

``parse_boot_log`` takes the log of any release from 0.6 on, of the CUDA or the CPU build, with the prefixes of
journald, ``docker logs``, ``docker compose`` or Kubernetes, with or without colours, with the lines of several ranks
mixed. It looks at the last start in the log. All sizes are GiB per GPU, all times seconds; a figure that was not logged
is ``None``.
"""

from __future__ import annotations

from . import _boot_log_patterns as patterns
from ._boot_log_lines import PROCESS, plain
from ._redaction import redact

_MAX_WARNINGS = 50
_INTEGERS = (
    "block_size",
    "data_parallel_size",
    "kv_blocks",
    "kv_tokens",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "tensor_parallel_size",
)
_TEXTS = (
    "attention_backend",
    "checkpoint_filesystem",
    "device",
    "engine",
    "kv_cache_dtype",
    "model",
    "model_runner",
    "quantization",
    "version",
)
_DECIMALS = (
    "activation_gib",
    "checkpoint_gib",
    "compile_seconds",
    "cuda_graph_estimate_gib",
    "cuda_graph_gib",
    "cuda_graph_seconds",
    "equivalent_utilization",
    "gpu_free_gib",
    "gpu_memory_utilization",
    "gpu_total_gib",
    "init_seconds",
    "kv_pool_gib",
    "load_seconds",
    "max_concurrency",
    "non_torch_gib",
    "read_seconds",
    "requested_gib",
    "weights_gib",
)
_FIGURES = tuple(sorted(_INTEGERS + _TEXTS + _DECIMALS + ("enforce_eager",)))


def parse_boot_log(log):
    """Returns what vLLM measured in the last start that ``log`` (one string) holds.

    Keys: every figure (``version``, ``weights_gib``, ``load_seconds``, ``activation_gib``, ``non_torch_gib``,
    ``cuda_graph_gib``, ``cuda_graph_estimate_gib``, ``kv_pool_gib``, ``kv_tokens``, ``kv_blocks``, ``block_size``,
    ``max_concurrency``, ``max_model_len``, ``gpu_total_gib``, ``gpu_free_gib``, ``gpu_memory_utilization``,
    ``equivalent_utilization``, ...), combined over the ranks; ``ranks``: the figures of each rank; ``binding_rank``:
    the rank whose KV pool is the smallest; ``phase`` and ``progress`` (``{"done", "total", "percent"}`` or None) of the
    start-up; ``warnings``: list of ``{"line", "line_number"}``; ``starts``: how many starts the log holds.
    """
    boot, starts = _Boot(), 0
    for line_number, line in _lines(log):
        if patterns.BANNER.search(line) and (starts == 0 or boot.engine_started):
            boot, starts = _Boot(), starts + 1
        boot.read(line, line_number)
    result = _combined(boot)
    result["starts"] = max(starts, 1 if boot.phase else 0)
    return result


def _lines(log):
    """Yields (line number from 1, line) without colours. Progress bars end their steps with a carriage return."""
    for line_number, line in enumerate(log.split("\n"), 1):
        if not line.strip():
            continue
        for step in plain(line).split("\r"):
            if step.strip():
                yield line_number, step


class _Boot:
    """One start of an engine, read line by line."""

    def __init__(self):
        self.labels = {}
        self.last = {}
        self.phase = None
        self.progress = None
        self.warnings = []
        self.warning_kinds = set()
        self.engine_started = False

    def read(self, line, line_number):
        self.engine_started = self.engine_started or bool(patterns.ENGINE_START.search(line))
        self._read_phase(line)
        if patterns.FIGURE_WORDS.search(line):
            self._read_figures(line)
        if "WARNING" in line:
            self._read_warning(line, line_number)

    def _read_figures(self, line):
        figures = {}
        for pattern in patterns.FIGURES:
            match = pattern.search(line)
            if match:
                figures.update((name, _typed(name, text)) for name, text in match.groupdict().items() if text)
        if figures:
            self.labels.setdefault(_label(line), {}).update(figures)
            self.last.update(figures)

    def _read_phase(self, line):
        phase = next((phase for phase, pattern in patterns.PHASES if pattern.search(line)), None)
        if phase is None:
            self.phase = self.phase or patterns.STARTING
            return
        # A serving engine compiles, captures and warms up again for new adapters: it still serves.
        if self.phase == patterns.SERVING and phase not in (patterns.FAILED, patterns.STOPPED):
            return
        # After the first fatal line the other processes report their own end.
        if self.phase == patterns.FAILED and phase != patterns.STARTING:
            return
        if phase != self.phase:
            self.progress = None
        self.phase = phase
        self.progress = _progress(phase, line) or self.progress

    def _read_warning(self, line, line_number):
        match = patterns.WARNING.search(line)
        if not match or len(self.warnings) >= _MAX_WARNINGS:
            return
        text = redact(match.group("text"))
        # vLLM warns of each weight by its name: one of these lines is enough.
        kind = patterns.NAMES.sub("*", text)
        if kind not in self.warning_kinds:
            self.warning_kinds.add(kind)
            self.warnings.append({"line": text, "line_number": line_number})


def _label(line):
    """The rank that wrote the line, as the log names it. Lines of a single process have no label."""
    match = PROCESS.search(line)
    if not match:
        return "rank 0"
    name, rank, pid, ip = match.group("name", "rank", "pid", "ip")
    if rank is not None:
        return "rank " + rank
    if name is None or patterns.ANONYMOUS.match(name):
        return f"{name or 'process'} pid={pid}" + (f" ip={ip}" if ip else "")
    return name


def _typed(name, text):
    if name in _INTEGERS:
        return int(text.replace(",", ""))
    if name == "enforce_eager":
        return text == "True"
    if name in _TEXTS:
        if name == "device":
            return {"gpu": "cuda"}.get(text.lower(), text.lower())
        return None if text == "None" else text
    return float(text)


def _progress(phase, line):
    pattern = {patterns.LOADING: patterns.SHARDS, patterns.CAPTURING: patterns.GRAPHS}.get(phase)
    match = pattern.search(line) if pattern else None
    if not match:
        return None
    return {name: int(match.group(name)) for name in ("done", "total", "percent")}


def _combined(boot):
    ranks = {
        label: _derived(figures, boot.last)
        for label, figures in boot.labels.items()
        if any(name in figures for name in patterns.RANK_FIGURES)
    }
    result = dict.fromkeys(_FIGURES)
    for figures in list(boot.labels.values()) + list(ranks.values()):
        for name, value in figures.items():
            if name in result and value is not None:
                combine = patterns.COMBINE.get(name)
                result[name] = combine(value, result[name]) if combine and result[name] is not None else value
    _complete(result)
    result["ranks"] = {label: {n: v for n, v in figures.items() if n in _FIGURES} for label, figures in ranks.items()}
    result["binding_rank"] = _binding_rank(ranks)
    result.update(phase=boot.phase, progress=boot.progress, warnings=boot.warnings)
    return result


def _derived(figures, engine):
    """Adds to one rank's figures those that follow from other figures of the same rank.

    Engine V0 up to 0.6.4 prints the peak with the weights in it. In the line "Actual usage is ..." the peak activation
    holds the estimate of the CUDA graphs where vLLM took that off the KV pool (``peak_activation_memory`` in
    ``v1/worker/gpu_worker.py``), and "consumed memory" is weights and non-torch memory together.
    """
    rank = dict(figures)
    weights = rank.get("weights_gib")
    estimate = _first(rank.get("cuda_graph_estimate_gib"), engine.get("cuda_graph_estimate_gib"))
    applied = "equivalent_utilization" in engine and estimate is not None
    rules = (
        ("activation_gib", "peak_torch_gib", weights),
        ("activation_gib", "peak_activation_gib", estimate if applied else 0.0),
        ("non_torch_gib", "consumed_gib", weights),
        ("gpu_free_gib", "gpu_total_gib", rank.get("used_at_start_gib")),
    )
    for name, whole, part in rules:
        if name not in rank and whole in rank and part is not None:
            rank[name] = round(rank[whole] - part, 2)
    if "cuda_graph_gib" not in rank and "cuda_graph_pool_gib" in rank:
        rank["cuda_graph_gib"] = rank["cuda_graph_pool_gib"]
    return rank


def _complete(result):
    """Fills figures of the whole engine that older releases leave to the reader's arithmetic."""
    if result["block_size"] is None and result["kv_blocks"] is not None:
        result["block_size"] = patterns.DEFAULT_BLOCK_SIZE
    if result["kv_tokens"] is None and result["kv_blocks"] is not None:
        result["kv_tokens"] = result["kv_blocks"] * result["block_size"]


def _binding_rank(ranks):
    pools = [(figures["kv_pool_gib"], label) for label, figures in ranks.items() if "kv_pool_gib" in figures]
    return min(pools)[1] if pools else None


def _first(*values):
    return next((value for value in values if value is not None), None)

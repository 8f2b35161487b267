# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM's start-up lines look like, as tables. Private to the collection.

The wordings are those of vLLM 0.6 to 0.33: ``worker/worker.py`` and ``executor/*_executor.py`` (engine V0),
``v1/worker/gpu_worker.py``, ``v1/worker/gpu_model_runner.py``, ``v1/worker/gpu/model_runner.py``,
``v1/core/kv_cache_utils.py``, ``v1/engine/core.py`` and ``compilation/*.py`` (engine V1).
"""

from __future__ import annotations

import re

# Sizes may be negative: a process that loads on the same GPU, or frees memory, during the profile run makes them so.
_GIB = r"-?\d+(?:\.\d+)?"
_NUM = r"\d+(?:\.\d+)?"
_INT = r"\d[\d,]*"

# vLLM printed "GB" up to 0.8.2 but divided by 2**30: the figure has always been GiB.
_GIB_UNIT = r"\s?Gi?B"

# Each pattern's group names are the figures that it measures.
FIGURES = [
    re.compile(pattern)
    for pattern in (
        # Engine and configuration
        r"Initializing an? (?P<engine>V\d) LLM engine \(v(?P<version>[^)\s]+)\)",
        r"Initializing an LLM engine \(v(?P<version>[^)\s]+)\)",
        r"vLLM API server version (?P<version>\d\S*)",
        r"vLLM server version (?P<version>\d\S*)",
        r"█ +version (?P<version>\d\S*)",
        r"LLM engine .*?with config: .*?model='(?P<model>[^']+)'",
        r"LLM engine .*?with config: .*?\bmax_seq_len=(?P<max_model_len>\d+)",
        r"LLM engine .*?with config: .*?\btensor_parallel_size=(?P<tensor_parallel_size>\d+)",
        r"LLM engine .*?with config: .*?\bpipeline_parallel_size=(?P<pipeline_parallel_size>\d+)",
        r"LLM engine .*?with config: .*?\bdata_parallel_size=(?P<data_parallel_size>\d+)",
        r"LLM engine .*?with config: .*?\bquantization=(?P<quantization>[\w-]+)",
        r"LLM engine .*?with config: .*?\bkv_cache_dtype=(?P<kv_cache_dtype>\w+)",
        r"LLM engine .*?with config: .*?\bdevice_config=(?:device\()?(?P<device>\w+)",
        r"LLM engine .*?with config: .*?\benforce_eager=(?P<enforce_eager>True|False)",
        r"non-default args: .*?'gpu_memory_utilization': (?P<gpu_memory_utilization>0?\.\d+|1\.0)",
        r"non-default args: .*?'max_num_seqs': (?P<max_num_seqs>\d+)",
        r"non-default args: .*?'block_size': (?P<block_size>\d+)",
        r"Setting attention block size to (?P<block_size>\d+) tokens",
        r"Setting kv cache block size to (?P<block_size>\d+)",
        r"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>\d+)",
        r"Using (?P<model_runner>V2) Model Runner",
        r"Using (?P<attention_backend>[A-Z][A-Z_\d]+) attention backend",
        r"Using AttentionBackendEnum\.(?P<attention_backend>\w+) backend\b",
        # Weights
        r"Filesystem type for checkpoints: (?P<checkpoint_filesystem>[^.\s]+)\.",
        r"Checkpoint size: (?P<checkpoint_gib>" + _NUM + r") GiB",
        r"Loading weights took (?P<read_seconds>" + _NUM + r") seconds",
        r"Loading model weights took (?P<weights_gib>" + _NUM + ")" + _GIB_UNIT,
        r"Model loading took (?P<weights_gib>"
        + _NUM
        + ")"
        + _GIB_UNIT
        + r"(?: memory)?(?: and (?P<load_seconds>"
        + _NUM
        + r") seconds)?",
        # Profile run, engine V0 up to 0.6.4
        r"total_gpu_memory=(?P<gpu_total_gib>"
        + _NUM
        + r")GiB initial_memory_usage=(?P<used_at_start_gib>"
        + _NUM
        + r")GiB peak_torch_memory=(?P<peak_torch_gib>"
        + _NUM
        + r")GiB memory_usage_post_profile="
        + _NUM
        + r"Gi[Bb] non_torch_memory=(?P<non_torch_gib>"
        + _GIB
        + r")GiB kv_cache_size=(?P<kv_pool_gib>"
        + _GIB
        + r")GiB gpu_memory_utilization=(?P<gpu_memory_utilization>"
        + _NUM
        + ")",
        # Profile run, engine V0 from 0.6.5
        r"can use total_gpu_memory \((?P<gpu_total_gib>"
        + _NUM
        + r")\s?GiB\) x gpu_memory_utilization \("
        + r"(?P<gpu_memory_utilization>"
        + _NUM
        + r")\) = (?P<requested_gib>"
        + _NUM
        + r")\s?GiB",
        r"non_torch_memory takes (?P<non_torch_gib>" + _GIB + r")\s?GiB",
        r"PyTorch activation peak memory takes (?P<activation_gib>" + _GIB + r")\s?GiB",
        r"memory reserved for KV Cache is (?P<kv_pool_gib>" + _GIB + r")\s?GiB",
        # Profile run, engine V1
        r"Initial free memory: (?P<gpu_free_gib>"
        + _NUM
        + r") GiB; Requested memory: (?P<gpu_memory_utilization>"
        + _NUM
        + r") \(util\), (?P<requested_gib>"
        + _NUM
        + ") GiB",
        r"torch peak memory increase: (?P<activation_gib>" + _GIB + r")\s?GiB",
        r"non-torch forward increase memory: (?P<non_torch_gib>" + _GIB + r")\s?GiB",
        r"total consumed \(from mem_get_info\): (?P<consumed_gib>" + _GIB + r")\s?GiB",
        r"Available KV cache memory: (?P<kv_pool_gib>" + _GIB + ") GiB",
        r"Initial free memory (?P<gpu_free_gib>"
        + _NUM
        + r") GiB,? reserved (?P<kv_pool_gib>"
        + _NUM
        + r") GiB memory for KV Cache as specified",
        r"Free memory on device(?: \w+:\d+)? \((?P<gpu_free_gib>"
        + _NUM
        + r")/(?P<gpu_total_gib>"
        + _NUM
        + r") GiB\) on startup",
        r"[Dd]esired GPU memory utilization(?: is)? \((?P<gpu_memory_utilization>"
        + _NUM
        + r"), (?P<requested_gib>"
        + _NUM
        + r") GiB\)",
        r"Actual usage is "
        + _GIB
        + r" GiB for weights?, (?P<peak_activation_gib>"
        + _GIB
        + r") GiB for peak activation, (?P<non_torch_gib>"
        + _GIB
        + r") GiB for non-torch memory, and "
        + r"(?P<cuda_graph_gib>"
        + _GIB
        + r") GiB for CUDAGraph memory",
        r"Actual usage is (?P<consumed_gib>"
        + _GIB
        + r") GiB for consumed memory \(weights \+ non-torch\), "
        + r"(?P<peak_activation_gib>"
        + _GIB
        + r") GiB for peak activation, and (?P<cuda_graph_gib>"
        + _GIB
        + r") GiB for CUDAGraph memory",
        r"set \((?P<kv_pool_gib>" + _NUM + r")/" + _NUM + r"\) GiB for KV cache on node",
        r"Current kv cache memory in use is (?P<kv_pool_gib>" + _GIB + ") GiB",
        # KV cache
        r"(?P<device>[A-Z]{2,})(?: \+ host)? KV cache size: (?P<kv_tokens>" + _INT + ") tokens",
        r"# (?:GPU|CUDA|cuda|cpu) blocks: (?P<kv_blocks>\d+)",
        r"Maximum concurrency for (?P<max_model_len>"
        + _INT
        + r") tokens per request: (?P<max_concurrency>"
        + _NUM
        + ")x",
        # CUDA graphs
        r"Estimated CUDA graph memory: (?P<cuda_graph_estimate_gib>" + _GIB + ") GiB total",
        r"Graph capturing finished in (?P<cuda_graph_seconds>"
        + _NUM
        + r") secs?(?:, took (?P<cuda_graph_gib>"
        + _GIB
        + ") GiB)?",
        r"CUDA graph pool memory: (?P<cuda_graph_pool_gib>"
        + _GIB
        + r") GiB \(actual\), (?P<cuda_graph_estimate_gib>"
        + _GIB
        + r") GiB \(estimated\)",
        r"The current --gpu-memory-utilization=(?P<gpu_memory_utilization>"
        + _NUM
        + r") is equivalent to "
        + r"--gpu-memory-utilization=(?P<equivalent_utilization>"
        + _NUM
        + ") without",
        # Time
        r"torch\.compile (?:takes|took) (?P<compile_seconds>" + _NUM + r") s in total",
        r"init engine \(profile, create kv cache, warmup model\) took (?P<init_seconds>" + _NUM + r") s",
    )
]

# A line is worth the patterns above only if it has one of these words: most of a long log has none.
FIGURE_WORDS = re.compile(
    r"LLM engine|server version|█|non-default args|block size|batched_tokens=|Model Runner|backend|heckpoint"
    r"|took|takes|memory|KV [Cc]ache|blocks: |concurrency|raph"
)

# How the figures of several ranks become one. The KV pool is what the tightest rank has; a budget must hold the
# heaviest rank. What is not named here is taken from the line that came last.
COMBINE = {
    "kv_pool_gib": min,
    "kv_tokens": min,
    "kv_blocks": min,
    "max_concurrency": min,
    "gpu_total_gib": min,
    "gpu_free_gib": min,
    "weights_gib": max,
    "load_seconds": max,
    "read_seconds": max,
    "activation_gib": max,
    "non_torch_gib": max,
    "cuda_graph_gib": max,
    "cuda_graph_estimate_gib": max,
    "cuda_graph_seconds": max,
    "compile_seconds": max,
    "init_seconds": max,
}

# A label of the log is a rank if it measured one of these.
RANK_FIGURES = ("weights_gib", "kv_pool_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "gpu_free_gib")

# Tokens in a block of engine V0 and of V1 on CUDA, if nothing else is logged.
DEFAULT_BLOCK_SIZE = 16

STARTING, LOADING, COMPILING, PROFILING = "starting", "loading weights", "compiling", "profiling"
CAPTURING, WARMING, SERVING, STOPPED, FAILED = "capturing graphs", "warming up", "serving", "stopped", "failed"

# The line that matched last tells the phase.
PHASES = [
    (phase, re.compile(pattern))
    for phase, pattern in (
        (
            FAILED,
            r"EngineCore (?:failed to start|encountered a fatal error|hit an exception)"
            r"|Engine core initialization failed|Engine process failed to start|EngineDeadError"
            r"|WorkerProc (?:failed to start|initialization failed)|Failed core proc\(s\)"
            r"|[Ww]orker proc \S+ died unexpectedly|(?:^|\s)(?:vllm|vllm serve|api_server\.py): error: "
            r"|docker: (?:Error response from daemon|invalid|unknown|Cannot connect)"
            r"|error while attempting to bind on address|Failed with result|Start request repeated too quickly",
        ),
        (STARTING, r"vLLM API server version|Initializing an? (?:V\d )?LLM engine"),
        (
            LOADING,
            r"Starting to load model|[Ll]oading [^|]*(?:shards|loader|[Ss]treamer)[^|]*:\s+\d+%"
            r"|Loading drafter model|Time spent downloading weights",
        ),
        (
            PROFILING,
            r"Model loading took|Loading model weights took|torch\.compile (?:takes|took) "
            r"|Initial profiling/warmup run|Profiling CUDA graph memory|Memory profiling (?:takes|results)"
            r"|Encoder cache will be initialized|Starting profile run",
        ),
        (
            COMPILING,
            r"Start compiling|Starting torch\.compile|for vLLM's torch\.compile|Dynamo bytecode transform"
            r"|Compiling a graph for|Cache the graph of|Directly load(?:ing)? (?:the compiled|AOT)"
            r"|Warming up model for the compilation",
        ),
        (
            WARMING,
            r"KV cache size: |# (?:GPU|CUDA|cuda|cpu) blocks: |Graph capturing finished|Warming up done"
            r"|Autotuning process (?:starts|ends)|JIT kernel warmup|init engine \(profile|Warming up "
            r"(?!model for)|Starting vLLM (?:API )?server",
        ),
        (CAPTURING, r"Capturing (?:[\w-]+ )*(?:cudagraphs|CUDA graphs?|CUDA graph shapes)"),
        (SERVING, r"Application startup complete"),
        (STOPPED, r"Application shutdown complete"),
    )
]

_BAR = r":\s+(?P<percent>\d+)%.*?(?P<done>\d+)/(?P<total>\d+)"
SHARDS = re.compile(r"[Ll]oading [^|]*(?:shards|loader|[Ss]treamer)[^|]*" + _BAR)
GRAPHS = re.compile(r"Capturing [^|]*?" + _BAR)

# The first line of a start, up to 0.18 and from then on; a log may hold several starts.
BANNER = re.compile(r"vLLM (?:API )?server version|█ +version \d")
ENGINE_START = re.compile(r"LLM engine \(v|Starting to load model|[Mm]odel loading took")

# Labels that every rank has alike: the process tells them apart.
ANONYMOUS = re.compile(r"^(?:Worker|VllmWorker|VllmWorkerProcess|RayWorkerWrapper|RayWorkerProc|RayWorkerVllm)$")

# What a message has before it: host and unit, process, level, time and place.
PREFIX = re.compile(
    r"^(?:\S+ +\d+ [\d:]{8} \S+ \S+\[\d+\]: |\S+  ?\| )?(?:\([^()]*\bpid=\d+[^)]*\) )*"
    r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d )?(?:\[\S+:\d+\] |\S+\.py:\d+\] )?"
)

WARNING = re.compile(r"\bWARNING\b:? (?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[^\]]+\] |\S+\.py:\d+\] )?(?P<text>.*)")

# Names of layers and numbers: what differs in warnings of one kind.
NAMES = re.compile(r"\w+(?:\.\w+)+|\d+")

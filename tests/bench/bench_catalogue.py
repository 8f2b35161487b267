# Copyright: gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long the catalogue takes to load and to answer, each time in a fresh Python.

    python tests/bench/bench_catalogue.py [--runs 10]

"load" is the first question in a process (import, data files, release), "again" the same question once more, both in
milliseconds of processor time. Exits with 1 where the first takes more than 50 ms or the second more than 5 ms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOAD_LIMIT_MS, AGAIN_LIMIT_MS = 50.0, 5.0

QUESTION = """
import json, sys, time
start = time.process_time()
sys.path.insert(0, {collections!r})
from ansible_collections.gpufleet.vllm.plugins.plugin_utils._catalogue import matrix, release, serve_args
H100 = {{"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81559, "compute_capability": "9.0"}}
HOST = {{"driver_version": "580.95.05", "gpus": [H100]}}
QWEN = {{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "quantization": None}}
ARGUMENTS = [{{"name": "max_model_len", "value": 8192}}, {{"name": "seed", "value": 0}}]

def ask():
    known = release("vllm/vllm-openai:v0.32.0")
    known.default("max_num_seqs", H100)
    known.default("gpu_memory_utilization")
    matrix(known, HOST, QWEN, {{}})
    return serve_args({{"release": "v0.32.0", "arguments": ARGUMENTS}}, "/models/qwen3")

ask()
loaded = time.process_time()
ask()
print(json.dumps([(loaded - start) * 1000, (time.process_time() - loaded) * 1000]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    question = QUESTION.format(collections=str(ROOT / ".collections"))
    answers = [
        json.loads(subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True).stdout)
        for _run in range(runs)
    ]
    load, again = (min(values) for values in zip(*answers, strict=True))  # other processes only add to the time
    size = sum(path.stat().st_size for path in (ROOT / "plugins/plugin_utils/_catalogue/data").glob("*.json"))
    print(
        f"load {load:.1f} ms (limit {LOAD_LIMIT_MS:.0f}), again {again:.2f} ms (limit {AGAIN_LIMIT_MS:.0f}), "
        f"the least of {runs}; data {size / 1000:.0f} kB"
    )
    return int(load > LOAD_LIMIT_MS or again > AGAIN_LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())

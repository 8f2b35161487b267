#!/usr/bin/env bash
# The Python of the lab's real vLLM, as a command: lab_python.sh SCRIPT [ARGUMENT...]
# It runs in the lab's engine image without a network, and sees this repository where it is, read-only.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
environment=$(find "$HOME/.cache/gpufleet-lab/" -maxdepth 1 -name 'vllm-*[0-9]' | sort -V | tail -n 1)
image=$(docker images --format '{{.Repository}}:{{.Tag}}' gpufleet-lab-engine | head -n 1)
exec docker run --rm --interactive --network none --shm-size 2g --env VLLM_ENABLE_V1_MULTIPROCESSING \
  --volume "$environment:/opt/vllm:ro" --volume "$repository:$repository:ro" --workdir /tmp \
  --entrypoint python3 "$image" "$@"

#!/bin/sh
# Stops the Docker engine that start_docker.sh started, unless containers still run on it: stop_docker.sh
set -eu
pidfile=/run/gpufleet-lab/docker.pid
[ -f "$pidfile" ] || exit 0
pid=$(cat "$pidfile")
[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || exit 0
[ -z "$(docker ps --quiet)" ] || { echo "kept: other containers run on it"; exit 0; }
kill "$pid"
for _ in $(seq 60); do
  [ -d "/proc/$pid" ] || { rm -rf /run/gpufleet-lab; echo stopped; exit 0; }
  sleep 1
done
echo "The Docker engine (process $pid) did not stop within a minute. Next: kill -9 $pid" >&2
exit 1

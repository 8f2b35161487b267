#!/bin/sh
# Starts a Docker engine where there is no init system: start_docker.sh FOLDER
# An earlier engine may have been killed together with its machine: what it left in the run folder would keep the new
# one from starting (a process id that now belongs to something else, namespaces and layers that are still mounted), and it
# holds nothing of value.
set -eu
folder=$1/docker
run=/run/gpufleet-lab
awk -v run="$run/" -v folder="$folder/" 'index($2, run) == 1 || index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r |
  while read -r mounted; do umount -l "$mounted"; done
rm -rf "$run"
mkdir -p "$folder" "$run"
rm -f /var/run/docker.sock
setsid dockerd --data-root "$folder/data" --exec-root "$run/exec" --pidfile "$run/docker.pid" \
  >"$folder/dockerd.log" 2>&1 </dev/null &

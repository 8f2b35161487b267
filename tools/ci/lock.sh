#!/usr/bin/env bash
# Usage: tools/ci/lock.sh "CORE/PYTHON ..." [uv options]
# Writes requirements/*.txt: exact versions with hashes, for every Python of the controller, and no index address.
set -euo pipefail
cores=$1
shift
options=("$@")
export UV_CUSTOM_COMPILE_COMMAND="make lock"

compile() {
    echo "lock: $1"
    uv pip compile --quiet --no-config --universal --generate-hashes "${options[@]}" --output-file "$@"
}

cd "$(dirname "$0")/../../requirements"
compile test.txt --python-version 3.11 test.in
compile run.txt --python-version 3.11 --constraints test.txt run.in
compile docs.txt --python-version 3.11 --constraints test.txt docs.in
for core in ${cores}; do
    echo "ansible-core ~= ${core%/*}.0" | compile "core-${core%/*}.txt" --python-version "${core#*/}" unit.in -
done

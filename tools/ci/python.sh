#!/usr/bin/env bash
# Usage: tools/ci/python.sh 3.11 [3.12 ...]
# Prints the path of the first interpreter of one of these versions that runs, in the order given. Looks on PATH, then
# in pyenv's versions (its shims answer "command not found" for versions that are installed but not selected).
set -euo pipefail

candidates() {
    local version=$1 directory
    type -aP "python${version}" python3 || true
    IFS=: read -ra directories <<<"${PATH}"
    for directory in "${directories[@]}" "${PYENV_ROOT:-${HOME}/.pyenv}/shims"; do
        [[ ${directory} == */shims ]] && compgen -G "${directory%/shims}/versions/${version}*/bin/python${version}" || true
    done
}

is_version() {
    "$1" -c "import sys; sys.exit('.'.join(map(str, sys.version_info[:2])) != '$2')" >/dev/null 2>&1
}

for version in "$@"; do
    while read -r candidate; do
        if is_version "${candidate}" "${version}"; then
            # Name what is behind a shim or a virtual environment.
            "${candidate}" -c 'import os, sys; print(os.path.abspath(sys._base_executable))'
            exit 0
        fi
    done < <(candidates "${version}")
done
exit 1

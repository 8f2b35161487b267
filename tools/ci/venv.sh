#!/usr/bin/env bash
# Usage: tools/ci/venv.sh DIRECTORY REQUIREMENTS VERSION [VERSION ...]
# Makes (or brings up to date) a virtual environment from a lock file, with the first of these Python versions that is here.
set -euo pipefail
directory=$1 requirements=$2
shift 2

if ! "${directory}/bin/python" -c '' 2>/dev/null; then
    if ! python=$("$(dirname "$0")/python.sh" "$@"); then
        echo "None of Python ${*} is on this machine. On Debian or Ubuntu: apt-get install python3 python3-venv" >&2
        exit 1
    fi
    if ! "${python}" -c 'import ensurepip, venv' 2>/dev/null; then
        if [[ ${EUID} -ne 0 ]] || ! command -v apt-get >/dev/null; then
            echo "${python} cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2
            exit 1
        fi
        echo "venv: ${python} lacks venv; installing Debian's python3-venv"
        apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends python3-venv >/dev/null
    fi
    echo "venv: ${directory} from ${python}"
    "${python}" -m venv --clear "${directory}"
fi

echo "venv: installing $(grep -c '^[a-z]' "${requirements}") pinned packages of ${requirements} into ${directory}"
"${directory}/bin/python" -m pip -qq --disable-pip-version-check install --no-compile --require-hashes -r "${requirements}"

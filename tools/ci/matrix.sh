#!/usr/bin/env bash
# Usage: tools/ci/matrix.sh CORE/PYTHON ...
# The unit tests, and the syntax of all playbooks, on each of these releases of ansible-core whose Python is here.
set -euo pipefail
failed=()
# Collections that the roles use come from the `ansible` package of .venv; ours comes from ansible.cfg.
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export ANSIBLE_COLLECTIONS_PATH=${PWD}/.collections:${packages}

try() {
    local core=$1 environment=$2
    echo "matrix: ansible-core ${core}: unit tests"
    "${environment}/bin/python" -m pytest --quiet --no-header -p no:cacheprovider || return
    echo "matrix: ansible-core ${core}: syntax of the playbooks"
    for playbook in playbooks/*.yml; do
        "${environment}/bin/ansible-playbook" --inventory localhost, --syntax-check "${playbook}" >/dev/null || return
    done
}

for pair in "$@"; do
    core=${pair%/*} python=${pair#*/} environment=.build/matrix/${pair%/*}
    if ! tools/ci/python.sh "${python}" >/dev/null; then
        echo "matrix: ansible-core ${core}: SKIPPED, Python ${python} is not on this machine"
        continue
    fi
    if ! cmp --silent "requirements/core-${core}.txt" "${environment}/requirements.txt"; then
        tools/ci/venv.sh "${environment}" "requirements/core-${core}.txt" "${python}"
        cp "requirements/core-${core}.txt" "${environment}/requirements.txt"
    fi
    try "${core}" "${environment}" || failed+=("${core}")
done

[[ ${#failed[@]} -eq 0 ]] || { echo "matrix: failed on ansible-core ${failed[*]}" >&2; exit 1; }

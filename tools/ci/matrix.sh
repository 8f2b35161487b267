#!/usr/bin/env bash
# Usage: tools/ci/matrix.sh CORE/PYTHON ...
# The unit tests, and the syntax of all playbooks, on each of these releases of ansible-core whose Python is here. Where
# the Python is that of .venv, only the tests of what ansible-core loads: the rest does not know ansible-core.
set -euo pipefail
failed=()
# Collections that the roles use come from the `ansible` package of .venv; ours comes from ansible.cfg.
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export ANSIBLE_COLLECTIONS_PATH=${PWD}/.collections:${packages}

own_python=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')

try() {
    local core=$1 python=$2 environment=$3 tests=(tests/unit)
    [[ ${python} != "${own_python}" ]] || tests=(tests/unit/plugins/{action,filter,modules})
    echo "matrix: ansible-core ${core}, Python ${python}: ${tests[*]}"
    "${environment}/bin/python" -m pytest --quiet --no-header -p no:cacheprovider "${tests[@]}" || return
    echo "matrix: ansible-core ${core}: syntax of the playbooks"
    for playbook in playbooks/*.yml; do
        "${environment}/bin/ansible-playbook" --syntax-check "${playbook}" >/dev/null || return
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
    try "${core}" "${python}" "${environment}" || failed+=("${core}")
done

[[ ${#failed[@]} -eq 0 ]] || { echo "matrix: failed on ansible-core ${failed[*]}" >&2; exit 1; }

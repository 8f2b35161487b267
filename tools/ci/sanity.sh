#!/usr/bin/env bash
# Usage: tools/ci/sanity.sh VERSION ...
# ansible-test sanity on a copy of the repository, with the compile and import tests on each of these Pythons that is here.
set -euo pipefail
copy=.build/ansible_collections/gpufleet/vllm
pip_chatter='^(Looking in|Collecting|Processing|Using cached pip|Installing collected|Successfully (un)?installed|WARNING: Location)|^ +(Downloading|Preparing|Getting|Installing|Attempting|Found existing|Uninstalling|Successfully|Using cached|━)'
pythons=()

for version in "$@"; do
    if python=$(tools/ci/python.sh "${version}"); then
        echo "sanity: Python ${version}: ${python}"
        pythons+=("$(dirname "${python}")")
    else
        echo "sanity: Python ${version}: SKIPPED, not on this machine"
    fi
done

tools/ci/export.sh "${copy}"
python tools/ci/get_pip.py
path=$(IFS=:; echo "${PWD}/.venv/bin:${pythons[*]}:${PATH}")
cd "${copy}"
# ansible-test asks git for the files; without a repository here it would ask the one around the build folder, which ignores it.
git init --quiet && git add --all
# pip tells more of its work than belongs between the results.
PATH=${path} ansible-test sanity --color no 2>&1 | grep --line-buffered -vE "${pip_chatter}"

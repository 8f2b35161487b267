#!/usr/bin/env bash
# Usage: tools/ci/docs.sh DIRECTORY VERSION [VERSION ...]
# Builds the documentation of the collection as a site in DIRECTORY/html, with tools of its own from a lock file.
set -euo pipefail
directory=$1
shift
tools/ci/venv.sh "${directory}/venv" requirements/docs.txt "$@"
PATH="$(realpath "${directory}/venv/bin"):${PATH}"
ANSIBLE_COLLECTIONS_PATH=$(realpath .collections)
export PATH ANSIBLE_COLLECTIONS_PATH

# antsibull-docs writes only where nobody else may.
mkdir -p "${directory}/source/rst"
chmod -R go-w "${directory}/source"

# What Ansible's own pages say is linked to by name, which needs the internet: here those links stay text.
antsibull-docs sphinx-init --use-current --squash-hierarchy --lenient --sphinx-theme furo --dest-dir "${directory}/source" \
    --project gpufleet.vllm --title gpufleet.vllm --copyright "gpufleet contributors" \
    gpufleet.vllm >/dev/null
printf 'intersphinx_mapping = {}\nsuppress_warnings = ["ref.ref"]\n' >>"${directory}/source/conf.py"
antsibull-docs --config-file "${directory}/source/antsibull-docs.cfg" collection --use-current --squash-hierarchy \
    --cleanup everything --fail-on-error --dest-dir "${directory}/source/rst" gpufleet.vllm
sphinx-build --quiet --fail-on-warning --builder html --conf-dir "${directory}/source" "${directory}/source/rst" "${directory}/html"
echo "docs: ${directory}/html/index.html"

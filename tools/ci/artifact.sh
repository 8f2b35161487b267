#!/usr/bin/env bash
# Builds the collection, installs it into an empty folder and uses it from there as a buyer would: every playbook by its
# full name, the documentation of every plugin, and the checks of Galaxy's importer.
set -euo pipefail
repository=${PWD}
copy=${repository}/.build/artifact/source
project=${repository}/.build/artifact/project
rm -rf "${repository}/.build/artifact"
mkdir -p "${project}"

echo "artifact: build"
tools/ci/export.sh "${copy}"
ansible-galaxy collection build "${copy}" --output-path "${project}" >/dev/null
archive=$(compgen -G "${project}/gpufleet-vllm-*.tar.gz")
echo "artifact: $(basename "${archive}"), $(tar -tzf "${archive}" | wc -l) entries, $(du -k "${archive}" | cut -f1) KiB"

echo "artifact: contents"
unwanted='(^|/)\.|(^|/)(tests|molecule|tools|requirements|__pycache__)/|^(Makefile|ansible\.cfg|pyproject\.toml)$'
if tar -tzf "${archive}" | sed 's#^\./##' | grep -E "${unwanted}"; then
    echo "artifact: the above do not belong into the archive: name them in build_ignore of galaxy.yml" >&2
    exit 1
fi

echo "artifact: install"
cd "${project}"
unset ANSIBLE_CONFIG
export ANSIBLE_COLLECTIONS_PATH=${project}/collections
ansible-galaxy collection install --offline "${archive}" -p collections >/dev/null
installed=${project}/collections/ansible_collections/gpufleet/vllm

echo '{"vllm": {"hosts": {"gpu1": null}}}' >inventory.json
for playbook in "${installed}"/playbooks/*.yml; do
    name=gpufleet.vllm.$(basename "${playbook}" .yml)
    echo "artifact: ansible-playbook ${name} --syntax-check"
    ansible-playbook --inventory inventory.json --syntax-check "${name}" >/dev/null
done

echo "artifact: ansible-playbook gpufleet.vllm.plan_vllm with the example that comes with it"
ansible-playbook --inventory "${installed}/inventories/example" gpufleet.vllm.plan_vllm --limit gpu01 | grep '^FITS: qwen'

for kind in filter lookup module role test; do
    names=$(ansible-doc --list --type "${kind}" --json gpufleet.vllm | python -c 'import json, sys; print(*json.load(sys.stdin))')
    for name in ${names}; do
        echo "artifact: ansible-doc --type ${kind} ${name}"
        ansible-doc --type "${kind}" "${name}" >/dev/null
    done
done

echo "artifact: galaxy-importer"
# Its ansible-lint is left out: `make lint` runs it with more rules.
GALAXY_IMPORTER_RUN_ANSIBLE_LINT=false python -m galaxy_importer.main "${archive}" 2>&1 | tee import.log | grep -v '^Loading '
if grep --quiet '^WARNING' import.log; then
    echo "artifact: galaxy-importer warns: see above" >&2
    exit 1
fi

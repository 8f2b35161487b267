#!/usr/bin/env bash
# Usage: tools/ci/export.sh DIRECTORY
# Copies the repository as it is now (tracked and new files, without ignored ones and without the link in .collections)
# to DIRECTORY. ansible-test and ansible-galaxy want a real folder .../ansible_collections/NAMESPACE/NAME.
set -euo pipefail
directory=$1
rm -rf "${directory}"
mkdir -p "${directory}"
git ls-files -z --cached --others --exclude-standard -- ':!.collections' \
    | while IFS= read -r -d '' file; do [[ ! -e ${file} ]] || printf '%s\0' "${file}"; done \
    | tar --null --files-from=- --create | tar --extract --directory="${directory}"

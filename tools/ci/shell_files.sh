#!/usr/bin/env bash
# Prints the shell scripts of the repository: tracked or new, by name or by first line.
set -euo pipefail
git ls-files --cached --others --exclude-standard | while read -r file; do
    [[ -f ${file} && ! -L ${file} ]] || continue
    case ${file} in
        *.sh) echo "${file}" ;;
        *.*) ;;
        *) if head -n 1 "${file}" | grep -qaE '^#!.*[/ ](ba|da)?sh( |$)'; then echo "${file}"; fi ;;
    esac
done

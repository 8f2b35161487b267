#!/usr/bin/env bash
# Has a Chromium for the tests beside this file. Where none can be had, it says so, and they are skipped.
set -euo pipefail

for program in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "${program}" >/dev/null; then
        exit 0
    fi
done
if [[ ${EUID} -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "browser: SKIPPED, there is no Chromium. On Debian or Ubuntu: sudo apt-get install chromium"
    exit 0
fi
echo "browser: installing Debian's chromium"
if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends chromium fonts-dejavu-core; } >/dev/null; then
    echo "browser: SKIPPED, Debian's chromium cannot be installed"
fi

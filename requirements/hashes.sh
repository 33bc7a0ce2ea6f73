#!/usr/bin/env bash
# Write the SHA-256 of each file of each pinned package into requirements/hashes/, a file for each of
# those beside it, as `make env` and the build of Horovod install them:
#   hashes.sh FOLDER     for uv, which asks the index
# torch and torchvision have none: the index of a machine decides between its builds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. system.sh

folder=$1
uv=$folder/bin/uv
if [ "$("$uv" --version 2>/dev/null | cut -d ' ' -f 2)" != "$(sed -n 's/^uv==//p' uv.txt)" ]; then
    rm -rf "$folder" && "${PYTHON:-python3}" -m venv "$folder"
    "$folder/bin/python" -m pip install -q --disable-pip-version-check -r uv.txt
fi
for file in constraints.txt uv.txt dali_*.txt benchmarks.txt horovod/*.txt libraries/*.txt; do
    [ "$file" != libraries/common.txt ] || continue # a part of the others
    mkdir -p "hashes/$(dirname "$file")"
    "$uv" pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes \
        --no-emit-package torch --no-emit-package torchvision --no-annotate \
        --custom-compile-command "make hashes" --output-file "hashes/$file" "$file" ||
        fail "$file has no hashes" "the lines above say why"
done

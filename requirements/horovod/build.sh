#!/usr/bin/env bash
# Build Horovod from its released source against the library of an environment, and install it there:
#   build.sh PYTHON CACHE torch|tensorflow|mxnet [wheel]
# The wheel is kept in CACHE under a name made of everything that it depends on, so the same build
# is never done twice. With `wheel` it is built and not installed. Set these variables for more than the default (collectives by Gloo alone):
#   HOROVOD_WITH_MPI=1            MPI too; mpicxx must be found
#   HOROVOD_GPU_OPERATIONS=NCCL   NCCL for tensors on the GPU: torch's own, or HOROVOD_NCCL_HOME's;
#                                 with nvcc from PATH, HOROVOD_CUDA_HOME, CUDA_HOME, NVIDIA's wheels in
#                                 the environment, or /usr/local/cuda
#   HOROVOD_BUILD_JOBS=4          compile so many files at a time (default: all cores, at most 8)
#   HASHES=no                     an index that serves builds of its own: compare no hashes
set -euo pipefail
umask 022 # code is installed from the cache

python=$1 cache=$2 library=$3 goal=${4:-install}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pip=("$python" -m pip --disable-pip-version-check --no-input)

fail() {
    printf 'Horovod was not built: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

checked=(--require-hashes -r "$here/../hashes/horovod")
[ "${HASHES:-yes}" != no ] || checked=(-r "$here")

ask() { "$python" -c "$1"; }

headers=$(ask 'import sysconfig; print(sysconfig.get_paths()["include"])')
version=$(ask 'import sys; print("%d.%d" % sys.version_info[:2])')
command -v "${CXX:-g++}" >/dev/null ||
    fail "there is no C++ compiler ${CXX:-g++}" \
        "install the package g++, or load the cluster's compiler module, or set CXX"
command -v make >/dev/null || fail "make is missing" "install the package make"
[ -f "$headers/Python.h" ] ||
    fail "$headers has no Python.h" "install the package python$version-dev"
mpi=none
if [ "${HOROVOD_WITH_MPI:-0}" = 1 ]; then
    command -v mpicxx >/dev/null ||
        fail "HOROVOD_WITH_MPI=1 was asked for, but there is no mpicxx" \
            "load the cluster's MPI module, install the package libopenmpi-dev, or unset it"
    mpi=$(command -v mpicxx)
else
    unset HOROVOD_WITH_MPI
    export HOROVOD_WITHOUT_MPI=1
fi

mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] || { # a home that cannot be written to
    cache=$here/../../build/horovod
    mkdir -p "$cache"
}
cache=$(cd "$cache" && pwd)
[ -O "$cache" ] && [ $((0$(stat -c %a "$cache") & 022)) = 0 ] ||
    fail "$cache is not this user's alone to write to, and code is installed from it" \
        "name another folder: XDG_CACHE_HOME=DIR make horovod" \
        "or, if it is yours: chmod go-w $cache"
mapfile -t facts < <("$python" "$here/facts.py" "$library")
[ ${#facts[@]} = 5 ] ||
    fail "$library is not in the environment of $python" "make ${library/torch/env}"
built_for="$library ${facts[0]}" built_cuda=${facts[1]} nccl=${facts[2]}
nccl_header=${facts[3]} nccl_library=${facts[4]}

# Say whether a variable HOROVOD_GPU_... has a value that fits.
gpu_by() {
    local name
    for name in "${!HOROVOD_GPU_@}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ ${!name} != $1 ]] || return 0
    done
    return 1
}

toolkit=none
. "$here/cuda.sh"
if ! gpu_by '?*'; then
    # The same build on every machine, beside a GPU and an nvcc too, which Horovod would take unasked.
    export DDL_HOROVOD_NO_CUDA=1 HOROVOD_WITHOUT_NVTX=1
    unset CUDA_HOME CUDA_PATH CUDACXX "${!HOROVOD_CUDA@}" "${!HOROVOD_NCCL@}"
    nccl=none
elif [ "${HOROVOD_GPU:-CUDA}" = CUDA ]; then # not ROCM
    find_cuda
    ! gpu_by NCCL || find_nccl
fi

settings=$(env | grep -E '^(HOROVOD_|CXX=|CXXFLAGS=)' | sort || true)
key=$( (cd "$here" && cat -- *.txt *.cmake *.py *.sh
    "${CXX:-g++}" --version | head -n 1
    echo "$version $built_for $built_cuda $mpi $toolkit $nccl $(uname -m) $settings") |
    sha256sum | cut -c 1-12)
folder=$cache/$key

export CMAKE_TOOLCHAIN_FILE="$here/toolchain.cmake" CMAKE_POLICY_VERSION_MINIMUM=3.5
export HOROVOD_WITH_GLOO=1
constraints=$here/../constraints.txt
[ "$library" = torch ] || constraints=$here/../libraries/$library.txt
for one in torch tensorflow mxnet; do
    name=${one/torch/pytorch} with=WITHOUT
    [ "$one" != "$library" ] || with=WITH
    export "HOROVOD_${with}_${name^^}=1"
done
# What the source relies on and later compilers refuse: headers that it does not include (GCC 13),
# a template, never used, that assigns to a constant (GCC 15; older ones ignore the name).
export CXXFLAGS="${CXXFLAGS:-} -include cstdint -include stdexcept -Wno-template-body"
# Without debugging symbols: 1 MB instead of 18.
export LDFLAGS="${LDFLAGS:-} -s"
# A surrounding make's own flags would say otherwise.
cores=$(nproc)
export MAKEFLAGS="-j${HOROVOD_BUILD_JOBS:-$((cores < 8 ? cores : 8))}"

if ! ls "$folder"/*.whl >/dev/null 2>&1; then
    "${pip[@]}" install -q --no-deps "${checked[@]}/build.txt"
    HOROVOD_CMAKE=$(ask 'import cmake, os; print(os.path.join(cmake.CMAKE_BIN_DIR, "cmake"))')
    export HOROVOD_CMAKE
    rm -rf "$folder"
    partial=$(mktemp -d "$cache/.partial.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    "${pip[@]}" wheel --no-deps --no-build-isolation --no-binary horovod --no-cache-dir \
        "${checked[@]}/horovod.txt" -w "$partial" ||
        fail "the compilation failed; the lines above tell why"
    mv -T "$partial" "$folder" || ls "$folder"/*.whl >/dev/null # of another clone, at the same time
fi
[ "$goal" = install ] || exit 0
"${pip[@]}" install -q --no-deps --no-index --force-reinstall "$folder"/*.whl
"${pip[@]}" install -q -c "$constraints" "$folder"/*.whl # what it imports
"$python" -c "import horovod.$library" || fail "it compiles, but cannot be imported"

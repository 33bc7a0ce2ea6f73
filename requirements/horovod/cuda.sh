# Sourced by build.sh where a GPU is asked for: the CUDA toolkit, and NCCL, that Horovod is built with.
# Both set variables that Horovod's CMake reads, and `toolkit` or `nccl` for the name of the wheel.

# torch and Horovod share one process: what is compiled for CUDA 12 does not fit a torch of CUDA 13.
find_cuda() {
    local wanted=${built_cuda%%.*} home=${HOROVOD_CUDA_HOME:-${CUDA_HOME:-}} nvcc release
    [ "$built_cuda" != none ] ||
        fail "HOROVOD_GPU_OPERATIONS asks for CUDA, but $built_for here was built without it" \
            "install a CUDA build of $library (docs/how-to/install-horovod.md), or unset the variable"
    if [ -n "$home" ]; then
        nvcc=$home/bin/nvcc
    else
        nvcc=$(command -v nvcc || from_wheels "$wanted" || echo /usr/local/cuda/bin/nvcc)
    fi
    [ -x "$nvcc" ] ||
        fail "there is no $nvcc, and compiling for a GPU needs NVIDIA's CUDA toolkit $wanted" \
            "install it, or load the cluster's CUDA module, or name it: HOROVOD_CUDA_HOME=/path" \
            "for CUDA 13 also: $python -m pip install -r requirements/horovod/cuda13.txt"
    toolkit=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    [ "${toolkit%%.*}" = "$wanted" ] ||
        fail "$nvcc is of CUDA $toolkit, and $built_for of CUDA $built_cuda" \
            "the major versions have to be the same: name a toolkit $wanted with HOROVOD_CUDA_HOME" \
            "or load such a module, or install a torch for CUDA ${toolkit%%.*}" \
            "(docs/how-to/install-horovod.md)"
    toolkit="$toolkit $("$nvcc" --version | sha256sum)"
    # A script or a link of that name may lie elsewhere: the compiler itself says where it belongs.
    home=$("$nvcc" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
    home=$(realpath -q "$home" || echo "${nvcc%/bin/nvcc}") nvcc=$home/bin/nvcc
    export HOROVOD_CUDA_HOME=$home
    [ -e "$HOROVOD_CUDA_HOME/lib64" ] || join_wheels "$wanted"
    # What else of CUDA looks for it: torch, Horovod's list of architectures, CMake.
    export CUDA_HOME=$HOROVOD_CUDA_HOME CUDA_PATH=$HOROVOD_CUDA_HOME CUDACXX=$nvcc
    export PATH="${nvcc%/nvcc}:$PATH"
}

# Print the compiler of NVIDIA's wheels, if the environment has them.
from_wheels() {
    local nvcc
    nvcc=$(ask 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu$1/bin/nvcc
    [ -x "$nvcc" ] && echo "$nvcc"
}

# NVIDIA's wheels are a toolkit, too, but for the linker's names: with links they are a whole one.
# nvcc looks beside the place where it really is, the linker also where LIBRARY_PATH says.
join_wheels() {
    local wheels=$HOROVOD_CUDA_HOME links part
    [ -e "$wheels/lib/libcudart.so.$1" ] || return 0
    links=$cache/cuda-$(sha256sum <<<"$wheels $toolkit" | cut -c 1-12)
    mkdir -p "$links/lib64"
    for part in bin include nvvm; do
        ln -sfn "$wheels/$part" "$links/$part"
    done
    ln -sf "$wheels"/lib/lib* "$links/lib64/"
    ln -sfn "$wheels/lib/libcudart.so.$1" "$links/lib64/libcudart.so"
    export LIBRARY_PATH="$links/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}" HOROVOD_CUDA_HOME=$links
    nvcc=$links/bin/nvcc
}

# torch's own, unless another is named: then all frameworks use the same NCCL. Its wheel has no
# libnccl.so, for which the linker asks; what is linked remembers libnccl.so.2, as torch does.
find_nccl() {
    local header=${HOROVOD_NCCL_INCLUDE:-${HOROVOD_NCCL_HOME:-}/include}/nccl.h links
    if [ -n "${HOROVOD_NCCL_INCLUDE:-}${HOROVOD_NCCL_HOME:-}" ]; then
        [ -f "$header" ] ||
            fail "there is no $header" \
                "HOROVOD_NCCL_HOME is a folder with include/nccl.h and lib/libnccl.so or" \
                "lib/libnccl_static.a; unset it, and torch's own NCCL is taken"
        nccl=$(sha256sum <"$header")
        return
    fi
    [ "$nccl_header" != none ] && [ "$nccl_library" != none ] ||
        fail "this torch brings no NCCL along: the package nvidia-nccl-cu${built_cuda%%.*} is not there" \
            "name one with HOROVOD_NCCL_HOME=/path, or install torch by pip"
    links=$cache/nccl-$nccl
    mkdir -p "$links/lib"
    ln -sfn "${nccl_header%/nccl.h}" "$links/include"
    ln -sfn "$nccl_library" "$links/lib/libnccl.so"
    export HOROVOD_NCCL_HOME=$links HOROVOD_NCCL_LINK=SHARED
}

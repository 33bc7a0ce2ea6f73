"""What a CUDA kernel does, read from its name: the one list for every profiler's files.

A name says who wrote the kernel, not who launched it, so some time cannot be told apart:

- ATen's elementwise kernels are "other", even where a loader runs them (uint8 to float, normalise).
- Matrix products (``cutlass_80_tensorop_*gemm*``, ``sm80_xmma_gemm_*``, ``splitKreduce_kernel``)
  are "other": cuBLAS has them for linear layers, cuDNN for 1 x 1 convolutions, under one name.
- An NCCL kernel can run several collectives and is named after one of them. NCCL 2.13 named it
  SendRecv whatever it ran, as did RCCL (NVIDIA/nccl#714, #739, ROCm/rccl#505): all-reduce is then
  counted as "communication". RCCL's ``ncclDevKernel_Generic`` is "communication" for that reason.
- Copying into and out of Horovod's and DDP's buckets is "other", as it is compute of this GPU.
"""

import re
from functools import lru_cache
from typing import Literal, get_args

Kind = Literal["allreduce", "communication", "data", "cudnn", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# In this order: the first that is found decides.
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    # Kernels since NCCL 2.0 (ncclAllReduceRingLLKernel_*, ncclKernel_AllReduce_*,
    # ncclDevKernel_AllReduce_*, ncclSymkDevKernel_AllReduce_*), and torch's names of the calls.
    ("allreduce", re.compile(r"\bnccl\w*AllReduce|\b(nccl|gloo):all_?reduce")),
    ("communication", re.compile(r"\bnccl[A-Z]|\b(nccl|gloo):")),
    ("data", re.compile(r"\bdali::|\bnvjpeg|\bnvimgcodec::|\bculj92::")),
    # Most carry the library's name, at least in an argument's type. The others are its
    # convolutions (forward, data and weight gradients), their layout changes and batch norms.
    (
        "cudnn",
        re.compile(
            r"cudnn|[fdw](?:prop|grad)(?![a-z])|wgrad2d|implicit_convolve|convolve_common_engine"
            r"|winograd|conv2d_grouped_direct|nchwToNhwc|nhwcToNchw|\bbn_[fb]w_|\bbatchnorm_[fb]wtr_"
        ),
    ),
)


@lru_cache(maxsize=4096)
def kind(name: str) -> Kind:
    """Return what a kernel does.

    Parameters
    ----------
    name
        As a profiler shows it: demangled, with namespaces; it may be cut off after these.

    Returns
    -------
    str
        ``allreduce``; ``communication``: any other collective; ``data``: decoding and augmentation
        by DALI, nvJPEG or nvImageCodec; ``cudnn``; or ``other``.
    """
    return next((found for found, pattern in _PATTERNS if pattern.search(name)), "other")

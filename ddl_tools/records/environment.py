"""Environment variables that change the work of a framework, without private facts of a machine.

A record has the variables of libraries that compute, communicate or allocate. It has no ranks,
addresses, ports, hosts, folders or visible devices. Names of network interfaces stay.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_MODULES = "LOADEDMODULES"  # of a cluster, with their versions: "GCC/13.3.0:CUDA/12"
LIBRARIES = (
    # arithmetic, threads and their places
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "ATEN_"),
    # torch, its compiler and its allocator
    *("TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_", "PYTORCH_"),
    # the other libraries, and what they compile with
    *("TF_", "XLA_", "JAX_", "KERAS_", "MXNET_", "DMLC_", "PS_"),
    # NVIDIA's and AMD's
    *("CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "NVIDIA_TF32_OVERRIDE"),
    *("HIP_", "HSA_", "MIOPEN_"),
    # communication, from the framework down to the network
    *("HOROVOD_", "DS_", "DEEPSPEED_", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "PSM2_", "PSM3_"),
    *("OMPI_MCA_btl", "OMPI_MCA_coll", "OMPI_MCA_mtl", "OMPI_MCA_pml", "MPICH_"),
    # data
    "DALI_",
    _MODULES,
    # memory of the host
    *("MALLOC_", "MIMALLOC_", "TCMALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"),
    # of Python itself, which slow it down
    *("PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONDEVMODE", "PYTHONASYNCIODEBUG", "PYTHONDUMPREFS"),
)

# Words of names that say where something is.
_PLACES = {
    *("ADDR", "ADDRESS", "HOST", "HOSTID", "HOSTNAME", "PORT", "URI", "URL", "UUID"),
    *("DIR", "HOME", "PATH", "ROOT"),
}
# Parts of names, also within a word, whose values nobody else may know.
_SECRETS = (
    *("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CRED", "LOGIN"),
    *("COOKIE", "SIGNATURE", "PRIVATE", "BEARER", "JWT"),
)
_NO_SECRETS = {"BYPASS", "PASSES", "PASSIVE", "PASSTHROUGH"}  # words that have such a part
_PLACE_NAMES = {
    *(f"HOROVOD_{part}RANK" for part in ("", "LOCAL_", "CROSS_")),
    *(f"HOROVOD_{part}SIZE" for part in ("", "LOCAL_", "CROSS_")),
    "NCCL_COMM_ID",
}
_VISIBLE = "VISIBLE_DEVICES"
_ITEM = re.compile(r"[^\s,;]+")  # of a value

# Parts of values: folders, meeting places, and interfaces that are named after their hardware.
_HIDDEN = (
    (re.compile(r"\b[\w+.-]+://[^\s,;]*|\b\d+\.\d+\.\d+\.\d+([:/]\d+)?\b"), "(address)"),
    (re.compile(r"[^\s:,;=]*/"), ""),
    (re.compile(r"\benx[0-9a-f]{12}\b"), "enx(address)"),
)

# Terraform's variables, which begin as TensorFlow's do.
_NOT_TENSORFLOWS = ("TF_CLI_", "TF_VAR_", "TF_LOG", "TF_IN_AUTOMATION", "TF_WORKSPACE")


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change the work of a framework; of a path, its last part."""
    counted = {name: environment[name] for name in sorted(environment) if _counts(name)}
    return {name: text if name == _MODULES else _value(text) for name, text in counted.items()}


def _counts(name: str) -> bool:
    if not name.startswith(LIBRARIES) or name.startswith(_NOT_TENSORFLOWS):
        return False
    if name in _PLACE_NAMES or name.endswith(_VISIBLE):
        return False
    return _PLACES.isdisjoint(name.upper().split("_")) and not _is_secret(name)


def _is_secret(name: str) -> bool:
    words = set(re.split("[_-]", name.upper())) - _NO_SECRETS
    return any(one in word for one in _SECRETS for word in words)


def _shown(item: "re.Match[str]") -> str:
    """Return an item of a value without a key in it, as in ``name=key`` and ``user:key@host``."""
    text = item[0]
    name, sign, _ = text.partition("=") if "=" in text else text.partition(":")
    if sign and _is_secret(name):
        return f"{name}{sign}(secret)"
    return "(address)" if ":" in text.partition("@")[0] and "@" in text else text


def _value(text: str) -> str:
    text, home = _ITEM.sub(_shown, text), str(Path.home())
    for pattern, instead in ((re.compile(re.escape(home) + r"\b"), ""), *_HIDDEN):
        text = pattern.sub(instead, text)
    return text

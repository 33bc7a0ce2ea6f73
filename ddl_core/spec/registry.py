"""Names a study may use, each with the place of its code.

The values are ``"module:attribute"`` strings, so that reading this table imports nothing: a study
is planned without torch, and a missing framework disables its own name only.
"""

from importlib import import_module
from typing import Any

from ddl_core.errors import NotInstalledError, SpecError

STRATEGIES = {
    "single": "ddl_core.train.strategies.single:Single",
    "ddp": "ddl_core.train.strategies.ddp:DDP",
    "horovod": "ddl_core.train.strategies.horovod:Horovod",
    "deepspeed": "ddl_core.train.strategies.deepspeed:DeepSpeed",
}

LOADERS = {
    "native": "ddl_core.train.loaders.native:Native",
    "turbo": "ddl_core.train.loaders.turbo:Turbo",
    "memory": "ddl_core.train.loaders.turbo:Memory",
    "dali_cpu": "ddl_core.train.loaders.dali:DaliCPU",
    "dali_gpu": "ddl_core.train.loaders.dali:DaliGPU",
    "synthetic": "ddl_core.train.loaders.synthetic:Synthetic",
}

MODELS = {
    "resnet18": "ddl_core.train.models:resnet18",
    "resnet50": "ddl_core.train.models:resnet50",
    "resnet101": "ddl_core.train.models:resnet101",
    "resnet152": "ddl_core.train.models:resnet152",
    "resnet8": "ddl_core.train.models:resnet8",
    "resnet44": "ddl_core.train.models:resnet44",
    "alexnet": "ddl_core.train.models:alexnet",
    "googlenet": "ddl_core.train.models:googlenet",
}

REGISTRIES = {"strategy": STRATEGIES, "loader": LOADERS, "model": MODELS}


def check_name(kind: str, name: str) -> str:
    """Return `name` if `kind` (``"strategy"``, ``"loader"``, ``"model"``) knows it.

    Raises
    ------
    SpecError
        With the names that exist.
    """
    known = REGISTRIES[kind]
    if name not in known:
        raise SpecError(f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(known))}")
    return name


def resolve(kind: str, name: str) -> Any:
    """Import and return the object registered as `name`.

    Raises
    ------
    SpecError
        If the name is unknown.
    NotInstalledError
        If a package that this name needs is not installed.
    """
    module, attribute = REGISTRIES[kind][check_name(kind, name)].split(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ddl_core":
            raise
        raise NotInstalledError(
            f"{kind} {name!r} needs the package {error.name!r}, which is not installed; "
            f"run `make env`, or choose another {kind}"
        ) from error

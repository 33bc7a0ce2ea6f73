"""Names of frameworks, strategies, loaders, formats and models, and what is known of each.

Code is named by ``"module:attribute"``: a study is planned without torch, and a missing package
disables its own names only.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module, metadata
from typing import Any, NamedTuple

from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.origin import IN_CLONE, INSTALL, made
from ddl_core.retired import NAMES as RETIRED
from ddl_core.spelling import choices


@dataclass(frozen=True)
class Entry:
    """What is known of a framework, a strategy, a loader, a format of data or a model."""

    code: str  # "module:attribute", imported by the ranks of a run that asks for it
    title: str = ""  # in figures and lists; empty: the name
    packages: tuple[str, ...] = ()  # distributions of which it needs one
    also: tuple[str, ...] = ()  # distributions that it needs besides, all of them
    variables: tuple[str, ...] = ()  # beginnings of environment variables that it alone reads
    install: str = INSTALL  # the command that installs the distributions
    frameworks: tuple[str, ...] = ("torch",)  # with which the name can be used
    of_run: bool = False  # whether a model's function takes the run, not its number of classes
    one_run_per_process: bool = False  # whether a second run in the same process fails
    extensions: tuple[str, ...] = ()  # of files that a loader reads; empty: those of images
    formats: tuple[str, ...] = ()  # of data that a loader reads; empty: all
    optimizers: tuple[str, ...] = ("sgd",)  # with which a framework trains
    version: int = 1  # of a loader; runs of two versions are never compared


COMMAND = "command"
"""The framework that is a program of the user's."""

# Each but torch has an environment of its own, and a command has the user's.
FRAMEWORKS = {
    "torch": Entry(
        "ddl_core.trainer:Trainer", "PyTorch", optimizers=("sgd", "lars", "lamb", "adamw")
    ),
    "tensorflow": Entry(
        "ddl_tools.frameworks.tensorflow:TensorFlow",
        "TensorFlow",
        packages=("tensorflow", "tensorflow-cpu"),
        variables=("TF_",),
        install=made("tensorflow"),
        optimizers=("sgd", "adamw"),
    ),
    "keras": Entry(
        "ddl_tools.frameworks.keras:Keras",
        "Keras on JAX",
        packages=("keras",),
        also=("jax", "jaxlib", "optax"),
        variables=("KERAS_", "JAX_", "XLA_"),
        install=made("keras"),
        optimizers=("sgd", "adamw"),
    ),
    "mxnet": Entry(
        "ddl_tools.frameworks.mxnet:MXNet",
        "MXNet",
        packages=("mxnet",),
        variables=("MXNET_", "DMLC_", "PS_"),
        install=made("mxnet"),
        optimizers=("sgd", "adamw"),
    ),
    COMMAND: Entry("ddl_tools.rank.command:CommandRun", "command"),
}
_ALL = tuple(FRAMEWORKS)

# The code is torch's; other frameworks have their own of the same name.
STRATEGIES = {
    "single": Entry("ddl_core.strategies.base:Single", "single process", frameworks=_ALL),
    "ddp": Entry("ddl_core.strategies.ddp:DDP", "PyTorch-DDP"),
    "horovod": Entry(
        "ddl_core.strategies.horovod:Horovod",
        "Horovod",
        packages=("horovod",),
        variables=("HOROVOD_",),
        install=made("horovod"),
        frameworks=("torch", "tensorflow", "mxnet"),
        one_run_per_process=True,  # a second start ends with SIGSEGV
    ),
    "deepspeed": Entry(
        "ddl_core.strategies.deepspeed:DeepSpeed",
        "DeepSpeed",
        packages=("deepspeed",),
        variables=("DEEPSPEED_", "DS_"),
        one_run_per_process=True,  # a second start looks for the group of the first
    ),
    "fsdp": Entry("ddl_core.strategies.fsdp:FSDP", "PyTorch-FSDP", one_run_per_process=True),
    "multiworker": Entry(
        "ddl_tools.frameworks.tensorflow:TensorFlow",
        "MultiWorkerMirrored",
        frameworks=("tensorflow",),
    ),
    "spmd": Entry("ddl_tools.frameworks.keras:Keras", "shard_map", frameworks=("keras",)),
    "kvstore": Entry("ddl_tools.frameworks.mxnet:MXNet", "KVStore", frameworks=("mxnet",)),
    "torchrun": Entry(
        "ddl_tools.rank.command:CommandRun", packages=("torch",), frameworks=(COMMAND,)
    ),
    "srun": Entry("ddl_tools.rank.command:CommandRun", frameworks=(COMMAND,)),
}


def _dali(code: str, title: str) -> Entry:
    packages = ("nvidia-dali-cuda130", "nvidia-dali-cuda120", "nvidia-dali-cuda110")
    return Entry(
        f"ddl_core.loaders.{code}",
        title,
        packages,
        variables=("DALI_",),
        install=INSTALL if IN_CLONE else f"pip install {packages[0]}",
        formats=("folder", "tfrecord"),
        version=2,  # version 1 was fed by threads in Python
    )


LOADERS = {
    "native": Entry("ddl_core.loaders.native:Native", frameworks=_ALL),
    "turbo": Entry("ddl_core.loaders.turbo:Turbo"),
    # Version 1 cropped image by image, and rounded to 8 bits.
    "memory": Entry("ddl_core.loaders.memory:Memory", version=2),
    "dali_cpu": _dali("dali:DaliCPU", "DALI (CPU)"),
    "dali_gpu": _dali("dali:DaliGPU", "DALI (GPU)"),
    "synthetic": Entry(  # which reads none: it leaves the format at its default
        "ddl_core.loaders.synthetic:Synthetic", frameworks=_ALL, formats=("folder",)
    ),
}

FORMATS = {
    "folder": Entry("ddl_core.data.formats:ClassFolders", "folders", frameworks=_ALL),
    "tfrecord": Entry("ddl_core.data.formats:TFRecord", "TFRecord", frameworks=_ALL),
}

MODELS = {
    "resnet18": Entry("ddl_core.models:resnet18", "ResNet18", frameworks=_ALL),
    "resnet50": Entry("ddl_core.models:resnet50", "ResNet50", frameworks=_ALL),
    "resnet101": Entry("ddl_core.models:resnet101", "ResNet101", frameworks=_ALL),
    "resnet152": Entry("ddl_core.models:resnet152", "ResNet152", frameworks=_ALL),
    "resnet8": Entry("ddl_core.models:resnet8", "ResNet8", frameworks=_ALL),
    "resnet44": Entry("ddl_core.models:resnet44", "ResNet44", frameworks=_ALL),
    "alexnet": Entry("ddl_core.models:alexnet", "AlexNet", frameworks=_ALL),
    "googlenet": Entry("ddl_core.models:googlenet", "GoogLeNet", frameworks=_ALL),
}
# Whose networks are asked for as "timm/convnext_tiny".
ZOOS = {
    "torchvision": Entry("ddl_core.models:of_torchvision", packages=("torchvision",), of_run=True),
    "timm": Entry("ddl_core.models:of_timm", packages=("timm",), of_run=True),
}
_IN_A_ZOO = re.compile(rf"({'|'.join(ZOOS)})/([A-Za-z0-9_.-]+)")
# "package.module:function": a function of the number of classes.
_OF_ONES_OWN = re.compile(r"([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)

# "module:attribute" of the classes by which plug-ins declare fields of a run: `config.Options`.
OPTIONS: dict[str, str] = {}

REGISTRIES: dict[str, dict[str, Entry]] = {
    "framework": FRAMEWORKS,
    "strategy": STRATEGIES,
    "loader": LOADERS,
    "data_format": FORMATS,
    "model": MODELS,
}
# What packages may add to; a framework has an environment of its own.
EXTENSIBLE = tuple(kind for kind in REGISTRIES if kind != "framework")


class PlugIn(NamedTuple):
    """A name that a package announces, and its code, ``"module:attribute"``."""

    name: str
    code: str
    package: str


def plug_ins(kind: str, taken: Collection[str]) -> tuple[dict[str, PlugIn], list[str]]:
    """Return the entry points of the group ``ddl_core.<kind>`` by name; none is imported.

    And a sentence on each that is left out: one whose name is wrong, `taken`, or announced twice.
    """
    found: dict[str, set[PlugIn]] = {}  # a package may be on the path twice
    for point in _entry_points(f"ddl_core.{kind}"):
        package = point.dist.name if point.dist else "?"
        found.setdefault(point.name, set()).add(PlugIn(point.name, point.value.strip(), package))
    chosen, left_out = {}, []
    for name, several in found.items():
        packages = " and ".join(sorted({one.package for one in several}))
        announced = f"{kind} {name!r} of package {packages}"
        if not re.fullmatch("[a-z0-9_]+", name):  # it becomes part of a folder's name
            left_out.append(f"{announced}: a name is made of a-z, 0-9 and _")
        elif name in taken:
            left_out.append(f"{announced}: the project has one of that name; give it another")
        elif len(several) > 1:
            left_out.append(f"{announced}: one name stands for one thing; uninstall all but one")
        else:
            chosen[name] = several.pop()
    return chosen, left_out


@cache
def _entry_points(group: str) -> metadata.EntryPoints:
    """Return the entry points of all installed packages, which takes 10 ms to find."""
    return metadata.entry_points(group=group)


_BROUGHT: set[str] = set()  # by packages
LEFT_OUT: list[str] = []  # a sentence on each name of a package that is left out

for _kind in EXTENSIBLE:
    _found, _left_out = plug_ins(_kind, REGISTRIES[_kind])
    LEFT_OUT.extend(_left_out)
    _BROUGHT.update(_found)
    REGISTRIES[_kind] |= {
        _one.name: Entry(
            _one.code,
            packages=(_one.package,),
            install=f"pip install {_one.package}",
            one_run_per_process=True,  # whether a second would fail is not known
        )
        for _one in _found.values()
    }
_found, _left_out = plug_ins("options", OPTIONS)
LEFT_OUT.extend(_left_out)
OPTIONS |= {_one.name: _one.code for _one in _found.values()}


def known(kind: str, name: str) -> Entry | None:
    """Return what is known of a name, also of a network that is not in the table; else None.

    A retired name is known, since records have it, but has no code.
    """
    entry = REGISTRIES[kind].get(name)
    if retired := RETIRED.get(kind, {}).get(name):
        return Entry("", retired.title, retired.packages, variables=retired.variables)
    if entry or kind != "model":
        return entry
    if found := _IN_A_ZOO.fullmatch(name):
        return replace(ZOOS[found[1]], title=f"{found[2]} ({found[1]})")
    if package := package_of_own(name):
        return Entry(
            name,
            install=f"export PYTHONPATH=FOLDER_WITH_{package}",
            one_run_per_process=True,  # whether a second would fail is not known
        )
    return None


def package_of_own(model: str) -> str | None:
    """Return the top package of a network of your own, None for another name."""
    found = _OF_ONES_OWN.fullmatch(model)
    return found[1] if found else None


def title(kind: str, name: str) -> str:
    """Return the title of a name; without one, the name."""
    entry = known(kind, name)
    return entry.title if entry and entry.title else name


def owner(field: str) -> str | None:
    """Return the strategy that the name of a field of a run begins with, if any.

    A strategy of a package owns the options that the package declares by its name.
    """
    owners = [name for name in STRATEGIES if name not in _BROUGHT or name in OPTIONS]
    return max((one for one in owners if field.startswith(f"{one}_")), key=len, default=None)


_OTHERS = {"model": "torchvision/NAME, timm/NAME, package.module:function"}


def check_name(kind: str, name: str) -> str:
    """Return `name` if `kind` knows it; else `SpecError` with the names that exist."""
    if known(kind, name) is None:
        left_out = [f" ({why})" for why in LEFT_OUT if why.startswith(f"{kind} {name!r} ")]
        raise SpecError(
            f"unknown {kind} {name!r}{''.join(left_out)}; "
            f"{choices(name, REGISTRIES[kind], _OTHERS.get(kind, ''))}"
        )
    return name


def resolve(kind: str, name: str) -> Any:
    """Import and return the object registered as `name`.

    `NotInstalledError` if a package that it needs is missing; `SpecError` for a wrong name.
    """
    entry = known(kind, check_name(kind, name))
    assert entry is not None
    try:
        return load(f"{kind} {name!r}", entry.code)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ddl_core":
            raise
        raise _not_installed(kind, name, error.name or "") from error


def load(what: str, code: str) -> Any:
    """Import and return ``"module:attribute"``; `SpecError` if the module has no such thing."""
    module, _, attribute = code.partition(":")
    imported = import_module(module)
    if not hasattr(imported, attribute):
        raise SpecError(f"{what} is announced as {code}, but there is no such thing")
    return getattr(imported, attribute)


def require(kind: str, name: str) -> None:
    """Raise `NotInstalledError` if none of the packages of a name is installed."""
    entry = known(kind, name)
    needed = entry.packages if entry else ()
    if needed and not any(map(_is_installed, needed)):
        raise _not_installed(kind, name, needed[0])


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _not_installed(kind: str, name: str, package: str) -> NotInstalledError:
    entry = known(kind, name)
    remedy = f"run `{entry.install}`" if entry else ""
    if package_of_own(name) not in (None, package.partition(".")[0]):
        remedy = "install it"  # the network itself is found, and imports it
    return NotInstalledError(
        f"{kind} {name!r} needs the package {package!r}, which is not installed; "
        f"{remedy}, or choose another {kind}"
    )


def packages(kind: str) -> list[str]:
    """Return the distributions that names of a kind need, each once."""
    entries = [*REGISTRIES[kind].values(), *(ZOOS.values() if kind == "model" else ())]
    needed = (name for entry in entries for name in entry.packages + entry.also)
    return list(dict.fromkeys(needed))

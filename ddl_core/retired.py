"""Names and fields of old records that no new run has; they are read with the values they had."""

from typing import NamedTuple


class Name(NamedTuple):
    """A name that a record may have and a new run may not."""

    title: str  # in figures and lists
    instead: str
    packages: tuple[str, ...] = ()  # as in `registry.Entry`
    variables: tuple[str, ...] = ()


_DALI = ("nvidia-dali-cuda130", "nvidia-dali-cuda110"), ("DALI_",)
NAMES: dict[str, dict[str, Name]] = {
    "loader": {
        "dali_reader_cpu": Name("DALI reader (CPU)", "use 'dali_cpu', in which DALI reads", *_DALI),
        "dali_reader_gpu": Name("DALI reader (GPU)", "use 'dali_gpu', in which DALI reads", *_DALI),
    }
}


class Setting(NamedTuple):
    """A field of `RunSpec` that a record may have, at one value, and a study may not."""

    value: bool | str  # its default, which every published run has
    instead: str


SETTINGS = {
    "ddp_static_graph": Setting(False, "leave it out"),
    "horovod_compression": Setting("none", "leave it out, or use 'ddp' with ddp_compression"),
    "nsys": Setting(False, "use prefix, with the words 'nsys profile ...'"),
}


def refusal(name: str) -> str:
    """Return why a run may not have a retired field, and what to do instead."""
    return f"{name} is retired: {SETTINGS[name].instead}"


# By the class of the record.
FIELDS: dict[str, tuple[str, ...]] = {"EpochRecord": ("rescued_images",)}

FED = "DALI fed by Python (withdrawn)"
_WHY = f"{FED}: the loader's own Python threads limited it, not DALI"
# Loaders by name and version whose numbers no figure, table or advice uses, and why.
WITHDRAWN: dict[tuple[str, int], str] = {("dali_cpu", 1): _WHY, ("dali_gpu", 1): _WHY}

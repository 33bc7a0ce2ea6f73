"""Names of runs and configurations in words: one table of words, and the fields that differ."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ddl_core.combinations import OF_COMMAND
from ddl_core.config import RunSpec, declared, run_fields
from ddl_core.registry import COMMAND, REGISTRIES, owner, title

IN_RUN_ID = ("framework", "strategy", "loader", "model", "nodes", "gpus_per_node", "repeat")
"""Fields in the readable part of a run's name."""

WORDS: dict[str, str | dict[Any, str]] = {
    # What values are called; registered ones have titles.
    "loader": {"dali": "DALI"},  # the paper does not always say where its DALI decoded
    "work": {"train": "training", "load": "loading alone"},
    "dataset": {
        "fashion_mnist": "Fashion-MNIST",
        "cifar10": "CIFAR-10",
        "imagenet": "ImageNet",
        "sample": "sample set",
    },
    "optimizer": {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB", "adamw": "AdamW"},
    "lr_scaling": {"linear": "linear scaling", "sqrt": "square-root scaling"},
    "dali_decode": {"gpu": "", "cpu": "decoding on the CPU"},  # of one loader alone
    "precision": {"torch": "TF32 in convolutions"},
    "prefix": {None: "no prefix"},
    "schedule": {"constant": "constant rate"},
    # What stands before a value, where a name without underscores says it worse.
    "gpus_per_node": "ranks per node",
    "image_size": "",
    "local_batch_size": "batch",
    "global_batch_size": "global batch",
    "base_lr": "learning rate",
    "warmup_epochs": "warm-up epochs",
    "crop_min_area": "smallest crop",
    "train_images": "training images",
    "eval_images": "evaluation images",
    "cpu_threads": "compute threads",
    "command": "",
    "compile": "torch.compile",
    "activation_checkpointing": "activation checkpointing",
    "precise_bn": "precise batch norm",
    "decay_norm_bias": "decay of norm and bias",
    "adam_beta1": "Adam beta1",
    "adam_beta2": "Adam beta2",
    "adam_eps": "Adam eps",
    "clip_grad_norm": "largest gradient norm",
    "loader_prefetch": "prefetched batches",
    "pin_memory": "pinned memory",
    "fsdp_shards": "HSDP group",
    "deepspeed_zero_stage": "ZeRO stage",
    "deepspeed_overlap_comm": "overlap",
    "ddp_powersgd_rank": "PowerSGD rank",
    "ddp_powersgd_start": "PowerSGD start",
    # Of records.
    "hardware": "",
    "software": "",
    "apart": "",
}
"""What fields and facts are called, or their values."""
for _kind in declared():
    WORDS |= _kind.words
# By field, or by how its name ends.
_UNITS = {
    "image_size": "px",
    "mb": "MiB",
    "gib": "GiB",
    "ms": "ms",
    "mbit": "Mbit/s",
    "elements": "elements",
    "fsdp_shards": "ranks",
}
# What null says of a field, if not that it is the default.
_NONE = {"clip_grad_norm": "no", "fsdp_shards": "no"}
_DEFAULT = "default settings"
ITEMS = "; "
"""Between the items of a fact that is a list."""

_FIELDS = run_fields()
_SIZE = ("nodes", "gpus_per_node")
# Ranks share the cores of a node: where each number of ranks has one number of threads, a name
# with the first need not have the second. So it is with each fact and the hardware.
_FOLLOWS = {"cpu_threads": "gpus_per_node"}
_HARDWARE = "hardware"

Row = Mapping[str, Any]
"""Fields of a `RunSpec`, and facts of its record by other names; None is a missing fact."""


def label(runs: Iterable[RunSpec | Row], hide: Collection[str] = ()) -> list[str]:
    """Return of each run its values of what varies, e.g. ``"batch 64, no pinned memory, 2 ranks"``.

    Two labels are equal only if their runs differ in nothing but `hide`. A setting of a strategy
    is named for runs of this strategy; if several vary, for runs that change it. Rows without a
    strategy name it before what is not at its default. Left out is what follows from a field that
    is not hidden. Of facts that are lists of items, those that not all have are named. What is off
    by default is named only where nothing else is.
    """
    rows = [dict(run) for run in runs]
    names = varying(rows, hide)
    facts = {name: differing(row[name] for row in rows) for name in names if name not in _FIELDS}
    if "command" in names:
        facts["command"] = _words_of(row["command"] for row in rows)
    fields = [name for name in names if name not in facts]

    def text(row: Row, names: Sequence[str]) -> str:
        known = {name: told for name, told in facts.items() if _matters(row, name)}
        return joined(*_parts(row, names), _size(row, names, hide), *_facts(row, known))

    return [text(row, _without_off(row, fields)) or text(row, fields) for row in rows]


def _without_off(row: Row, names: Sequence[str]) -> list[str]:
    """Return the fields but those that say "no", by default; of a strategy's own, a single one."""
    own = [name for name in names if owner(name) == row.get("strategy")]
    return [
        name
        for name in names
        if row[name] != _FIELDS[name].default
        or not phrase(name, row[name]).startswith("no ")
        or (owner(name) and len(own) > 1)
    ]


def _words_of(commands: Iterable[str | None]) -> dict[str, str]:
    """Return of each command the options and words that not all have; of one without, all."""
    items = {one: ITEMS.join(_options(one)) for one in commands if one is not None}
    shorter = differing(items.values())
    return {one: shorter[text] or one for one, text in items.items()}


def _options(command: str) -> list[str]:
    """Return the words of a command, each option with its value and without dashes."""
    found: list[str] = []
    for word in command.split():
        if found and found[-1].startswith("-") and " " not in found[-1] and word[0] != "-":
            found[-1] += f" {word}"
        else:
            found.append(word)
    return [one.lstrip("-") or one for one in found]


def varying(rows: Sequence[Row], hide: Collection[str] = ()) -> list[str]:
    """Return the fields in which rows differ, in the order of `RunSpec`, and then the facts.

    A setting of a strategy varies if the runs of this strategy differ in it.
    """
    shown = [name for name in (rows[0] if rows else ()) if name not in hide]
    fields = [name for name in _FIELDS if name in shown]
    return [
        name
        for name in (*fields, *(one for one in shown if one not in _FIELDS))
        if _varies(name, rows, hide)
    ]


def _varies(name: str, rows: Sequence[Row], hide: Collection[str] = ()) -> bool:
    if strategy := owner(name):
        rows = [row for row in rows if row.get("strategy", strategy) == strategy]
    first = _FOLLOWS.get(name, None if name in _FIELDS or name == _HARDWARE else _HARDWARE)
    pairs = {(row.get(first) if first and first not in hide else None, row[name]) for row in rows}
    return len(pairs) > len({one for one, _ in pairs})


def following(rows: Sequence[Row]) -> list[str]:
    """Return the fields whose values follow from the number of ranks of a node, in these rows."""
    return [name for name in _FOLLOWS if not _varies(name, rows)]


def common(rows: Sequence[Row], names: Iterable[str]) -> str:
    """Return what rows share of some fields; ``gpus_per_node`` stands for the number of ranks."""
    differ, first = varying(rows), rows[0]
    shared = [name for name in names if name not in differ and _matters(first, name)]
    if "nodes" in differ and "gpus_per_node" in shared:
        shared.remove("gpus_per_node")
    return ", ".join(
        _ranks(first, first["nodes"] > 1) if name == "gpus_per_node" else _phrase(first, name)
        for name in shared
    )


def unsaid(rows: Sequence[Row], hide: Collection[str] = ()) -> str:
    """Return the settings that a `label` omits: those at their defaults, and those of ranks."""
    own: dict[str, list[str]] = {}
    for name in varying(rows, hide):
        if strategy := owner(name):
            own.setdefault(strategy, []).append(phrase(name, _FIELDS[name].default))
    parts = [
        f"{title('strategy', strategy)}: {', '.join(texts)}"
        for strategy, texts in own.items()
        if len(texts) > 1
    ]
    for name in following(rows):
        values = {row[_FOLLOWS[name]]: row[name] for row in rows}
        if len(set(values.values())) > 1:
            parts += [
                f"{plural(ranks, 'rank')} of a node: {phrase(name, value)}"
                for ranks, value in sorted(values.items())
            ]
    return "; ".join(parts)


def differing(values: Iterable[str | None]) -> dict[str, str]:
    """Return of each text the items that not all have, or else all of them; missing ones are none.

    As short as the values allow, and different for each of them.
    """
    known = {one: one.split(ITEMS) for one in values if isinstance(one, str)}
    shared = set.intersection(*map(set, known.values())) if known else set()
    return {
        value: ", ".join(item for item in items if item not in shared)
        for value, items in known.items()
    }


def distinguish(labels: Sequence[str], facts: Sequence[str]) -> list[str]:
    """Return labels; equal ones are followed by the items in which their facts differ."""
    alike: dict[str, list[str]] = {}
    for text, fact in zip(labels, facts, strict=True):
        alike.setdefault(text, []).append(fact)
    return [
        f"{text} ({differing(alike[text])[fact] or 'no more'})".lstrip()
        if len(alike[text]) > 1
        else text
        for text, fact in zip(labels, facts, strict=True)
    ]


def hardware(accelerator: str | None, machine: str | None, cpu_cores: int | None) -> str:
    """Return what a machine is called: by its GPU, else by its processor and cores."""
    if accelerator or not machine:
        return accelerator or "unknown machine"
    processor = machine.replace("(R)", "").replace("(TM)", "")
    cores = f"{plural(cpu_cores, 'core')}, " if cpu_cores else ""
    return f"{processor}, {cores}no GPU"


class Names(dict[str, str]):
    """What runs are called, by `run_id`; one that is not of the list has its bare name."""

    def __missing__(self, run_id: str) -> str:
        return run_id


def named(runs: Iterable[RunSpec]) -> Names:
    """Return by `run_id` the name of each run of a list, and what it lacks in brackets."""
    specs = list(runs)
    labels = label(specs, (*IN_RUN_ID, *following([dict(spec) for spec in specs])))
    return Names(
        (spec.run_id, spec.run_id + (f" ({text})" if text else ""))
        for spec, text in zip(specs, labels, strict=True)
    )


def as_asked(run: RunSpec) -> str:
    """Return in words what the end of a run's name is a hash of: all that is not at its default."""
    fields = run.model_dump(exclude_defaults=True)
    names = (name for name in _FIELDS if name in fields and name not in IN_RUN_ID)
    return ", ".join(phrase(name, fields[name]) for name in names)


def describe(values: Row) -> str:
    """Return some fields of a run in words, e.g. ``"PyTorch-DDP, native, ResNet50"``."""
    return joined(*_parts(values, list(values)))


def joined(*parts: str) -> str:
    """Return the parts of a name as one; empty ones are left out."""
    return ", ".join(filter(None, parts))


def called(library: str, strategy: str) -> str:
    """Return what a strategy of a library is called: PyTorch-DDP, but ``"PyTorch, Horovod"``."""
    names = title("framework", library), title("strategy", strategy)
    return names[1] if names[1].startswith(names[0]) else ", ".join(names)


def phrase(name: str, value: Any) -> str:
    """Return a field or a fact and its value in plain words, e.g. ``"bucket 25 MiB"``."""
    words = WORDS.get(name)
    if isinstance(words, dict) and value in words:
        return words[value]
    if name in REGISTRIES:
        return title(name, value)
    if isinstance(words, dict):
        return str(value)
    word, unit = _word(name)
    if value is None and name in _FIELDS:
        start = "all" if name.endswith("_images") else _NONE.get(name, "default")
        return f"{start} {word}"
    if isinstance(value, bool):
        return word if value else f"no {word}"
    if value == "none":
        return f"no {word or name}"
    return f"{word} {_text(value)}{unit}".lstrip()


def plural(number: float, word: str, form: str = "") -> str:
    """Return a number with its word, e.g. ``"1 rank"``, ``"2 ranks"`` or ``"2 processes"``."""
    end = "" if number == 1 else "es" if word.endswith("s") else "s"
    return f"{number:{form}} {word}{end}"


def _parts(row: Row, names: Sequence[str]) -> list[str]:
    own = [name for name in names if owner(name)]
    if "strategy" in row:
        own = [name for name in own if owner(name) == row["strategy"]]
    changed = [name for name in own if row[name] != _FIELDS[name].default]
    shown = own if len(own) == 1 and "strategy" in row else changed
    parts = []
    for name in names:
        if name in _SIZE or (name == "framework" and "strategy" in names):
            continue  # said by `_size`, and with the strategy
        if not _matters(row, name):
            continue
        if name == "strategy" and "framework" in names:
            parts.append(called(row["framework"], row["strategy"]))
        elif name == "data_format" and row.get("loader") == "synthetic":
            continue  # it reads no files
        elif name == "second_start" and not row[name] and len(names) > 1:
            continue  # as every other run
        elif not (strategy := owner(name)) or name in shown:
            of = f"{title('strategy', strategy)} " if strategy and "strategy" not in row else ""
            parts.append(of + _phrase(row, name))
        elif own and name == own[0] and not shown and "strategy" in row:
            parts.append(_DEFAULT)
    return parts


def _phrase(row: Row, name: str) -> str:
    """Return the words for a field of a run; a command has a loader of its own."""
    if name == "loader" and row.get("framework") == COMMAND:
        return "first batch" if row[name] == "synthetic" else "own loader"
    return phrase(name, row[name])


def _matters(row: Row, name: str) -> bool:
    """Say whether a field says something of a run: of a command, what it is started with."""
    is_command = row.get("framework") == COMMAND
    if name == "command":
        return is_command
    return not is_command or name not in _FIELDS or name in OF_COMMAND


def _size(row: Row, names: Collection[str], hide: Collection[str]) -> str:
    if not {*_SIZE}.intersection(names):
        return ""
    if "nodes" in hide:
        return f"{plural(row['gpus_per_node'], 'rank')} per node"
    if "gpus_per_node" in hide:
        return plural(row["nodes"], "node")
    return _ranks(row, "nodes" in names)


def _ranks(row: Row, on_nodes: bool) -> str:
    where = f" on {plural(row['nodes'], 'node')}" if on_nodes else ""
    return plural(row["nodes"] * row["gpus_per_node"], "rank") + where


def _facts(row: Row, facts: Mapping[str, Mapping[Any, str]]) -> list[str]:
    texts = {name: shorter.get(row[name], row[name]) for name, shorter in facts.items()}
    missing = [_word(name)[0] or name for name, text in texts.items() if text is None]
    known = [phrase(name, text) for name, text in texts.items() if text not in (None, "")]
    return [*known, *([f"unknown {', '.join(missing)}"] if missing else [])]


def _word(name: str) -> tuple[str, str]:
    """Return what stands before and after a value."""
    bare = name.removeprefix(f"{owner(name)}_")
    stem, _, ending = bare.rpartition("_")
    unit = _UNITS.get(name) or (stem and _UNITS.get(ending))
    word = WORDS.get(name)
    if not isinstance(word, str):
        word = (stem if unit else bare).replace("_", " ")
    return word, f" {unit}" if unit else ""


def _text(value: Any) -> str:
    """Return a number as short as it can be, without losing a digit."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, int) and value and value % 10**6 == 0:
        return f"{value // 10**6}M"
    return str(value)

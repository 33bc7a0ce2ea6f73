"""What the configurations of a study are called, and which runs belong to none of them."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddl_core.config import RunSpec
from ddl_core.registry import owner, title
from ddl_tools.analysis.configurations import specs
from ddl_tools.names import following, labels, phrase, plural, varying
from ddl_tools.records.identity import REPEATS, SIZE
from ddl_tools.records.software import differing

# Where and with what a run was made.
PLACE = [
    *("hardware", "device_used", "machine", "cpu_cores", "memory_gib", "software"),
    "method_version",
]
_SIZE = "world_size"
_COMMON = ["strategy", "loader", _SIZE, "model", "image_size", "local_batch_size", "precision"]

# `firsts` holds one run of each configuration.


def _varied(firsts: pd.DataFrame) -> list[str]:
    several = len(firsts[[*SIZE]].drop_duplicates()) > 1
    return [*varying(specs(firsts), (*REPEATS, *SIZE)), *([_SIZE] if several else [])]


def names(firsts: pd.DataFrame) -> list[str]:
    """Return what each configuration is called: its values of the fields that vary.

    Two share a name only if they differ in machine or software: see `distinguished`.
    """
    if len(firsts) == 1:
        return [common(firsts, _COMMON[:3])]
    named = labels(specs(firsts), (*REPEATS, *SIZE, *following(specs(firsts))))
    if _SIZE not in _varied(firsts):
        return named
    several = firsts["nodes"].nunique() > 1
    sizes = [_ranks(row, several) for row in specs(firsts)]
    return [", ".join(filter(None, parts)) for parts in zip(named, sizes, strict=True)]


def _ranks(spec: dict[str, Any], on_nodes: bool) -> str:
    where = f" on {plural(spec['nodes'], 'node')}" if on_nodes else ""
    return plural(spec["nodes"] * spec["gpus_per_node"], "rank") + where


def distinguished(firsts: pd.DataFrame) -> list[str]:
    """Return the column ``label``; equal names are followed by what differs in ``setting``."""
    table = firsts[["setting", "label"]].copy()
    for name, alike in table.groupby("label"):
        if len(alike) > 1:
            items = alike["setting"].str.replace(", ", "; ")  # as a record lists them
            more = items.map(differing(items)).replace("", "no more")
            table.loc[alike.index, "label"] = [f"{name} ({text})".lstrip() for text in more]
    return table["label"].to_list()


def unsaid(firsts: pd.DataFrame) -> str:
    """Return the settings that a name omits: those at their defaults, and those of ranks."""
    own: dict[str, list[str]] = {}
    for field in _varied(firsts):
        if strategy := owner(field):
            own.setdefault(strategy, []).append(phrase(field, RunSpec.model_fields[field].default))
    defaults = [
        f"{title('strategy', strategy)}: {', '.join(texts)}"
        for strategy, texts in own.items()
        if len(texts) > 1
    ]
    return "; ".join([*defaults, *_of_ranks(firsts)])


def _of_ranks(firsts: pd.DataFrame) -> list[str]:
    """Return for each number of ranks of a node the settings that follow from it."""
    table = firsts.drop_duplicates("gpus_per_node").sort_values("gpus_per_node")
    omitted = [name for name in following(specs(firsts)) if table[name].nunique() > 1]
    return [
        f"{plural(row['gpus_per_node'], 'rank')} of a node: "
        + ", ".join(phrase(name, row[name]) for name in omitted)
        for row in (specs(table) if omitted else [])
    ]


def common(firsts: pd.DataFrame, fields: Sequence[str] = _COMMON) -> str:
    """Return what all configurations share of these fields."""
    differ, first = _varied(firsts), specs(firsts)[0]
    return ", ".join(
        _ranks(first, first["nodes"] > 1) if field == _SIZE else phrase(field, first[field])
        for field in fields
        if field not in differ
    )


def changes(spec: dict[str, Any], other: dict[str, Any] | None = None) -> int:
    """Return how many fields of a run differ from those of another one, or from their default."""
    default = {name: about.default for name, about in RunSpec.model_fields.items()}
    than = other or default
    return sum(than[name] != value for name, value in spec.items() if name not in REPEATS)


def place_texts(firsts: pd.DataFrame) -> list[str]:
    """Return what each of some places with a network is called: what differs between them.

    `firsts` is one run of each.
    """
    named = ["hardware"] if firsts["hardware"].nunique() > 1 else []
    alike = firsts.groupby("hardware")  # which names machine and cores, except for a GPU
    named += [name for name in PLACE[1:] if (alike[name].nunique(dropna=False) > 1).any()]
    software = differing(firsts["software"])
    texts = []
    for place in firsts[PLACE].to_dict("records"):
        place["software"] = software.get(place["software"])
        texts.append(", ".join(_place_text(name, place[name]) for name in named))
    if firsts["model"].nunique() > 1:
        models = (phrase("model", model) for model in firsts["model"])
        texts = [", ".join(filter(None, pair)) for pair in zip(texts, models, strict=True)]
    return texts


def _place_text(name: str, value: Any) -> str:
    if pd.isna(value):
        return f"unknown {name}"
    return str(value) if name in ("hardware", "software") else f"{name} {value}"


def left_out(runs: pd.DataFrame, made: pd.DataFrame) -> str:
    """Return how many `runs` of a study are not in `made`, and why."""
    rest = runs[~runs["run_id"].isin(made["run_id"])]
    loading, ended = rest["work"] != "train", rest["status"] == "completed"
    counts = {
        "that only load": int(loading.sum()),
        "without a warm epoch": int((~loading & ended).sum()),
        "not finished": int((~loading & ~ended).sum()),
    }
    return ", ".join(f"{plural(number, 'run')} {why}" for why, number in counts.items() if number)

"""The arms of a study: which runs are one, what each is called, and which runs are in none."""

from collections.abc import Collection, Sequence
from typing import Any, Literal, get_origin

import pandas as pd

from ddl_core.config import RunSpec
from ddl_core.registry import owner, title
from ddl_tools.analysis.software import differing
from ddl_tools.labels import REPEATS, labels, phrase, varying

# Where and with what a run was made, whatever was asked for.
PLACE = ["hardware", "device_used", "machine", "cpu_cores", "memory_gib", "software",
         "method_version"]  # fmt: skip
KEY = [*(name for name in RunSpec.model_fields if name not in REPEATS), *PLACE, "setting"]
"""Runs of one arm agree in all of these; ``setting`` knows what else their records tell."""

SIZE = "world_size"
_NODES = ["nodes", "gpus_per_node"]  # one field to a reader: how many ranks, and where
_COMMON = ["strategy", "loader", SIZE, "model", "image_size", "local_batch_size", "precision"]


def specs(firsts: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the fields of some runs, with None where one has no value."""
    table = firsts[list(RunSpec.model_fields)].astype(object)
    return [
        {str(name): value for name, value in row.items()}
        for row in table.where(table.notna(), None).to_dict("records")
    ]


def varied(firsts: pd.DataFrame) -> list[str]:
    """Return the fields in which arms differ, nodes and ranks per node as one, ``world_size``.

    Parameters
    ----------
    firsts
        One run of each arm.
    """
    several = len(firsts[_NODES].drop_duplicates()) > 1
    return [*varying(specs(firsts), (*REPEATS, *_NODES)), *([SIZE] if several else [])]


def names(firsts: pd.DataFrame, without: Collection[str] = ()) -> list[str]:
    """Return what each arm is called among these: its values of the fields that are `varied`.

    Two have the same name only if they differ in nothing but `without`, or in what their records
    tell: see `told_apart`.
    """
    if len(firsts) == 1:
        return [common(firsts, _COMMON[:3])]
    told = labels(specs(firsts), (*REPEATS, *_NODES, *without))
    if SIZE in without or SIZE not in varied(firsts):
        return told
    several = firsts["nodes"].nunique() > 1
    sizes = [_ranks(row, several) for row in specs(firsts)]
    return [", ".join(filter(None, parts)) for parts in zip(told, sizes, strict=True)]


def _ranks(spec: dict[str, Any], on_nodes: bool) -> str:
    nodes, ranks = spec["nodes"], spec["nodes"] * spec["gpus_per_node"]
    where = f" on {nodes} node{'s' if nodes > 1 else ''}" if on_nodes else ""
    return f"{ranks} rank{'s' if ranks > 1 else ''}{where}"


def told_apart(firsts: pd.DataFrame, told: Sequence[str]) -> list[str]:
    """Return the names of arms, with what their records tell where two were asked for alike.

    Parameters
    ----------
    firsts
        One run of each arm, with the column ``setting``.
    told
        What each is called by its fields.
    """
    table = firsts[["setting"]].assign(name=list(told))
    for name, twins in table.groupby("name"):
        if len(twins) > 1:
            items = twins["setting"].str.replace(", ", "; ")  # as a record lists them
            more = items.map(differing(items)).replace("", "no more")
            table.loc[twins.index, "name"] = [f"{name} ({text})".lstrip() for text in more]
    return table["name"].to_list()


def unsaid(firsts: pd.DataFrame) -> str:
    """Return the defaults of the settings that a name tells only where they are no default."""
    own: dict[str, list[str]] = {}
    for field in varied(firsts):
        if strategy := owner(field):
            own.setdefault(strategy, []).append(phrase(field, RunSpec.model_fields[field].default))
    return "; ".join(
        f"{title('strategy', strategy)}: {', '.join(texts)}"
        for strategy, texts in own.items()
        if len(texts) > 1
    )


def common(firsts: pd.DataFrame, fields: Sequence[str] = _COMMON) -> str:
    """Return what all arms have in common, of these fields."""
    differ, first = varied(firsts), specs(firsts)[0]
    return ", ".join(
        _ranks(first, first["nodes"] > 1) if field == SIZE else phrase(field, first[field])
        for field in fields
        if field not in differ
    )


def changes(spec: dict[str, Any]) -> int:
    """Return how many fields of an arm have no default."""
    about = RunSpec.model_fields
    return sum(about[name].default != value for name, value in spec.items() if name not in REPEATS)


def is_number(field: str) -> bool:
    """Say whether the values of a field lie on an axis: no names, and no choices."""
    if field == SIZE:
        return True
    about = RunSpec.model_fields[field]
    whole = isinstance(about.default, int | float) and not isinstance(about.default, bool)
    return whole and get_origin(about.annotation) is not Literal


def axis_label(field: str) -> str:
    """Return what stands at the axis of a number, e.g. ``"bucket (MiB)"``."""
    if field == SIZE:
        return "ranks"
    word, _, unit = phrase(field, 0).partition(" 0")
    return f"{word} ({unit.strip()})" if unit else word


def place_texts(firsts: pd.DataFrame) -> list[str]:
    """Return what each of some places is called: what differs between them; nothing of one.

    Parameters
    ----------
    firsts
        One run of each place, with the columns of `PLACE`.
    """
    named = ["hardware"] if firsts["hardware"].nunique() > 1 else []
    alike = firsts.groupby("hardware")  # which names machine and cores, but where it is a GPU
    named += [name for name in PLACE[1:] if (alike[name].nunique(dropna=False) > 1).any()]
    software = differing(firsts["software"])
    texts = []
    for place in firsts[PLACE].to_dict("records"):
        told = place | {"software": software.get(place["software"])}
        texts.append(", ".join(_place_text(name, told[name]) for name in named))
    return texts


def _place_text(name: str, value: Any) -> str:
    if pd.isna(value):
        return f"unknown {name}"
    return str(value) if name in ("hardware", "software") else f"{name} {value}"


def left_out(runs: pd.DataFrame, made: pd.DataFrame) -> str:
    """Return how many of `runs` are not in `made`, the same study's as `made_runs` has them."""
    rest = runs[~runs["run_id"].isin(made["run_id"])]
    loading, ended = rest["work"] != "train", rest["status"] == "completed"
    counts = {
        "that only load": int(loading.sum()),
        "without a warm epoch": int((~loading & ended).sum()),
        "not finished": int((~loading & ~ended).sum()),
    }
    return ", ".join(
        f"{number} run{'s' if number > 1 else ''} {why}" for why, number in counts.items() if number
    )

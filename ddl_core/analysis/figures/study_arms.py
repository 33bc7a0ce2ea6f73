"""The arms of a study: which runs are one, what tells them apart, and which runs are in none."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddl_core.analysis.configuration import differing
from ddl_core.analysis.plot import fields

# Where and with what a run was made, whatever was asked for.
PLACE = ["hardware", "device_used", "machine", "cpu_cores", "memory_gib", "software",
         "method_version"]  # fmt: skip
KEY = [*fields.ARM, *PLACE, "setting"]
"""Runs of one arm agree in all of these; `with_settings` adds what else their records tell."""


def told_apart(firsts: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the names of arms, with what their records tell where two were asked for alike.

    Parameters
    ----------
    firsts
        One run of each arm, with the column ``setting``.
    names
        What each is called by its fields.
    """
    table = firsts[["setting"]].assign(name=list(names))
    for name, twins in table.groupby("name"):
        if len(twins) > 1:
            items = twins["setting"].str.replace(", ", "; ")  # as a record lists them
            told = items.map(differing(items)).replace("", "no more")
            table.loc[twins.index, "name"] = [f"{name} ({text})".lstrip() for text in told]
    return table["name"].to_list()


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

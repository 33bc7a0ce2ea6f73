"""One row per statement of the paper: the verdict on its own terms, why, and what is seen here."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from ddl_core.analysis import estimates
from ddl_core.analysis.claims import accuracy, decide, speed
from ddl_core.analysis.claims.decide import CONTRADICTED, SUPPORTED, UNDECIDED, Seen
from ddl_core.analysis.claims.planned import where_to_measure
from ddl_core.analysis.claims.statements import KINDS, Part, Statement, statements
from ddl_core.analysis.paper import Paper, covers, read_paper
from ddl_core.analysis.tables import not_emulated, profiles_table, runs_table, whole, windows_table
from ddl_core.records.paths import Tree

Look = Callable[[Part, bool], list[Seen]]

COLUMNS = ["statement", "kind", "claim", "place", "verdict", "why", "here"]
SEEN = "seen here"
_SHARES = {"allreduce_percent": "allreduce", "cudnn_percent": "cudnn"}


def of_records(tree: Tree) -> pd.DataFrame:
    """Return every statement judged by the records in `tree`, see `judged`.

    Raises
    ------
    DataError
        If the paper's numbers are missing.
    """
    return judged(
        runs_table(tree.runs), read_paper(), windows_table(tree.runs), profiles_table(tree)
    )


def judged(
    runs: pd.DataFrame,
    paper: Paper,
    windows: pd.DataFrame | None = None,
    profiles: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return every statement with its verdict: `COLUMNS`.

    Parameters
    ----------
    runs, windows, profiles
        As `tables` reads them; without windows nothing is paired but repeats of accuracies, and
        without profiles nothing is known of kernel time.
    paper
        What is stated.

    Returns
    -------
    pandas.DataFrame
        ``verdict`` is on the paper's own terms, ``here`` what the records show of the same
        comparison at whatever size and hardware; empty where they show nothing.
    """
    runs = not_emulated(whole(runs))
    runs = runs[runs["library"] == "torch"]  # the paper's frameworks are PyTorch's
    sources = _sources(runs, windows, profiles)
    rows = [_row(statement, sources, runs) for statement in statements(paper)]
    return pd.DataFrame(rows, columns=COLUMNS).astype("string")


def _sources(
    runs: pd.DataFrame, windows: pd.DataFrame | None, profiles: pd.DataFrame | None
) -> dict[str, Look]:
    """Return, for each quantity, what finds the evidence for a part: on its terms or anywhere."""
    fast, whole = speed.throughput(runs, windows), speed.runtime(runs)
    learnt = accuracy.arms(runs)
    of_speed = {"throughput": fast, "parallel_efficiency": fast, "runtime": whole, "speedup": whole}
    if profiles is not None:
        of_speed |= {
            quantity: speed.kernel_time(runs, profiles, share)
            for quantity, share in _SHARES.items()
        }
    looks: dict[str, Look] = {
        quantity: partial(_of_speed, evidence) for quantity, evidence in of_speed.items()
    }
    return looks | dict.fromkeys(accuracy.QUANTITIES, partial(_of_accuracy, learnt))


def _of_speed(evidence: speed.Evidence, part: Part, strict: bool) -> list[Seen]:
    return speed.seen(part, evidence, strict)


def _of_accuracy(found: list[accuracy.Arm], part: Part, strict: bool) -> list[Seen]:
    return accuracy.seen(part, found, strict)


def _row(statement: Statement, looks: dict[str, Look], runs: pd.DataFrame) -> dict[str, str]:
    about = {name: getattr(statement, name) for name in ("kind", "claim", "place")}
    about["statement"] = statement.name
    if statement.kind == KINDS["possible"]:
        return about | _possible(statement, runs)
    if not statement.parts:
        return about | {"verdict": UNDECIDED, "why": statement.reason, "here": ""}
    margin = accuracy.MARGIN if statement.kind == KINDS["top1"] else estimates.MARGIN
    strict, loose = (_look(statement, looks, terms) for terms in (True, False))
    verdict, why = decide.verdict(statement, strict, margin)
    if not strict:
        why = f"not measured on its terms; {where_to_measure(statement)}"
        why += f"; {statement.reason}" if statement.reason else ""
    return about | {"verdict": verdict, "why": why, "here": _here(loose, margin)}


def _look(statement: Statement, looks: dict[str, Look], strict: bool) -> list[Seen]:
    return [
        one
        for part in statement.parts
        if part.quantity in looks
        for one in looks[part.quantity](part, strict)
    ]


def _here(loose: list[Seen], margin: float) -> str:
    """Return what is seen, by place, with what the interval says of two arms that are compared."""
    known = {(one.place, one.text): one for one in loose}
    places: dict[str, list[str]] = {}
    for (place, text), one in known.items():
        compared = one.part.compared and one.estimate.n > 1
        shown = f"{text}, {estimates.decision(one.estimate, margin)}" if compared else text
        places.setdefault(place, []).append(shown)
    return "; ".join(f"{place}: {'; '.join(shown)}" for place, shown in places.items())


def _possible(statement: Statement, runs: pd.DataFrame) -> dict[str, str]:
    """Tell of runs with both; "cannot be used together" is about the releases of 2022."""
    where = statement.parts[0].where
    both = runs["strategy"].eq(where["strategy"]) & runs["work"].eq("train")
    both &= np.array([covers(where["loader"], name) for name in runs["loader"]], dtype=bool)
    done = runs[both & (runs["status"] == "completed")]
    if done.empty:
        return {"verdict": UNDECIDED, "why": "no completed run with both", "here": ""}
    many = f"{len(done)} completed run{'s' if len(done) > 1 else ''} with both"
    known = [text.split(";")[0] for text in done["communication"].dropna()]
    releases = [text for text in known if text.startswith("deepspeed ")]
    places = ["the CPU" if name == "cpu" else "a GPU" for name in done["device_used"]]
    how = [", ".join(sorted(set(names))) for names in (done["study"], releases, places)]
    why = "it is about the releases of 2022, and was not measured with them"
    return {"verdict": UNDECIDED, "why": why, "here": f"{many} ({'; '.join(filter(None, how))})"}


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many statements of each kind have which verdict.

    Rows: kinds, as they come in `table`; columns: the verdicts, and `SEEN`: of how many the
    records show anything.
    """
    counts = pd.crosstab(table["kind"], table["verdict"])
    counts = counts.reindex(table["kind"].unique())
    counts = counts.reindex(columns=[SUPPORTED, CONTRADICTED, UNDECIDED], fill_value=0)
    seen_here = table["here"].ne("").groupby(table["kind"]).sum()
    return counts.assign(**{SEEN: seen_here}).rename_axis(columns=None)

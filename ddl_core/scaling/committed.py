"""The validation as tables in data/scaling/: what was predicted, how far off, and the bands.

    python -m ddl_core.scaling.committed

They are committed, because a figure is a pure function of tables, and fits would differ in
their last digits between processors. A test makes them again and compares.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddl_core.records.paths import SCALING, committed
from ddl_core.records.storage import write_atomically
from ddl_core.scaling import box_case, box_checks, paper_case, published_case
from ddl_core.scaling.box_case import BoxFit
from ddl_core.scaling.box_checks import Planted, Twin
from ddl_core.scaling.fit import Band, Fitted
from ddl_core.scaling.judged import Judged, Summary, summaries
from ddl_core.scaling.paper_case import PaperFit, efficiency_peer, share_peer
from ddl_core.scaling.published_case import PublishedFit

Table = list[dict[str, object]]

RANKS = [2**power for power in range(13)]  # from one GPU to 4096
_DIGITS = 4


@dataclass(frozen=True)
class Validation:
    """All cases: their fits, and every held-out value beside its prediction."""

    paper: Sequence[PaperFit]
    published: Sequence[PublishedFit]
    box: Sequence[BoxFit]
    judged: Sequence[Judged]
    planted: Sequence[Planted]

    @classmethod
    def made(cls) -> "Validation":
        """Fit and judge all of it; takes some seconds.

        Raises
        ------
        DataError
            If the paper's or the published numbers are missing, or the runs of the box.
        """
        paper = [paper_case.fit_series(one) for one in paper_case.read_series()]
        published = [published_case.fit_series(one) for one in published_case.read_series()]
        series = box_case.series_of(box_case.read_runs(box_case.STUDY))
        box = [box_case.fit_series(one) for one in series]
        planted = box_checks.find_links(series, box_case.MOST_FITTED)
        if committed().run_folders(box_checks.DELAYS):
            planted += box_checks.find_delays(box_case.read_runs(box_checks.DELAYS))
        judged = [
            *paper_case.judge_paper(paper),
            *published_case.judge_published(published),
            *box_case.judge_box(box),
        ]
        return cls(paper, published, box, judged, planted)

    def tables(self) -> dict[str, Table]:
        """Return the tables by the name of their file."""
        return {
            "validation": [_judged(one) for one in self.judged],
            "summary": [_summary(one) for one in summaries(self.judged)],
            "parameters": [
                row for name, fitted in self._fits() for row in estimate_rows(name, fitted)
            ],
            "curves": [row for one in self.paper for row in _paper_curves(one, self.judged)]
            + [
                row
                for one in self.published
                for row in _published_curves(one)
                if one.series.case == published_case.LARGE
            ]
            + [row for one in self.box for row in _box_curves(one)],
            "planted": [_planted(one) for one in self.planted],
            "twin": [_twin(one) for one in box_checks.twins(self.box)],
        }

    def _fits(self) -> Iterable[tuple[str, Fitted]]:
        for paper in self.paper:
            yield f"paper, {paper.series.name}", paper.fitted
        for published in self.published:
            yield published.series.name, published.fitted
        for box in self.box:
            yield f"box, {box.series.name}", box.fitted


def _judged(one: Judged) -> dict[str, object]:
    return {
        "case": one.case,
        "series": one.series,
        "statement": one.statement,
        "quantity": one.quantity,
        "world_size": one.ranks,
        "bound": one.bound,
        "stated": one.stated,
        "predicted": one.predicted,
        "low": one.low,
        "high": one.high,
        "power_law": one.peer,
        "error": one.error,
        "power_law_error": one.peer_error,
        "inside": str(one.inside).lower(),
        "doubt": one.doubt,
        "cause": one.cause if one.missed else "",
    }


def _summary(one: Summary) -> dict[str, object]:
    return dict(vars(one))


def estimate_rows(name: str, fitted: Fitted) -> Table:
    """Return what is known of each parameter of a fit."""
    return [
        {
            "series": name,
            "parameter": one.parameter.name,
            "unit": one.parameter.unit,
            "value": one.value,
            "low": one.low,
            "high": one.high,
            "known": one.known,
        }
        for one in fitted.estimates.values()
    ]


def _paper_curves(one: PaperFit, judged: Iterable[Judged]) -> Table:
    series = one.series
    peers = {
        "parallel_efficiency": efficiency_peer(series).predict(np.array(RANKS) / paper_case.BASE),
        "all_reduce_share": share_peer(series).predict(RANKS),
    }
    rows: Table = []
    for quantity, peer in peers.items():
        rows += _curve(series.name, quantity, RANKS, one.band(quantity, RANKS), peer)
    shares = zip(series.ranks[series.fitted], series.shares[series.fitted], strict=True)
    rows += [point_row("fitted", series.name, "all_reduce_share", *pair) for pair in shares]
    rows.append(point_row("fitted", series.name, "parallel_efficiency", paper_case.BASE, 1.0))
    mine = [
        row for row in judged if row.case == series.case and row.series.startswith(series.model)
    ]
    return rows + [
        point_row("stated", series.name, row.quantity, row.ranks, row.stated, row.bound)
        for row in mine
    ]


def _published_curves(one: PublishedFit) -> Table:
    series, ranks = one.series, np.array(RANKS, float)
    band, peer = one.band(RANKS), series.peer.predict(ranks)
    each = Band(band.value / ranks, band.low / ranks, band.high / ranks)
    rows = _curve(series.name, "throughput_per_gpu", RANKS, each, peer / ranks)
    values = zip(series.fitted, series.ranks, series.throughput / series.ranks, strict=True)
    return rows + [
        point_row("fitted" if fitted else "stated", series.name, "throughput_per_gpu", count, value)
        for fitted, count, value in values
    ]


def _box_curves(one: BoxFit) -> Table:
    """Return the efficiency over nodes, a curve for each rate of the links."""
    rows: Table = []
    for mbit in one.mbits:
        name = f"box, {one.series.name}, {mbit:g} Mbit/s"
        band, peer = one.efficiency(mbit, RANKS)
        rows += _curve(name, "parallel_efficiency", RANKS, band, peer)
        rows += [
            point_row("emulated, fitted" if fitted else "emulated, held out", name,
                      "parallel_efficiency", ranks, value)
            for fitted, ranks, value in one.efficiencies(mbit)
        ]  # fmt: skip
    return rows


def _planted(one: Planted) -> dict[str, object]:
    return {
        "series": one.series,
        "parameter": one.found.parameter.name,
        "unit": one.found.parameter.unit,
        "planted": one.planted,
        "found": one.found.value,
        "low": one.found.low,
        "high": one.found.high,
        "known": one.found.known,
        "error": one.error,
    }


def _twin(one: Twin) -> dict[str, object]:
    return {
        "series": one.series,
        "link_mbit": one.mbit,
        "world_size": one.ranks,
        "box_s": one.box_s,
        "twin_s": one.twin_s,
        "error": one.twin_s / one.box_s - 1,
    }


def _curve(
    series: str, quantity: str, ranks: Sequence[int], band: Band, peer: NDArray[np.float64]
) -> Table:
    pairs = zip(ranks, peer, strict=True)
    return band_rows(series, quantity, ranks, band) + [
        point_row("peer", series, quantity, count, value) for count, value in pairs
    ]


def band_rows(series: str, quantity: str, ranks: Sequence[int], band: Band) -> Table:
    """Return a model's curve with its band as rows of a table of curves."""
    return [
        point_row("model", series, quantity, count, value) | {"low": low, "high": high}
        for count, value, low, high in zip(ranks, band.value, band.low, band.high, strict=True)
    ]


def point_row(
    source: str, series: str, quantity: str, ranks: float, value: float, bound: str = "value"
) -> dict[str, object]:
    """Return a point of a figure as a row of a table of curves."""
    return {
        "source": source,
        "series": series,
        "quantity": quantity,
        "world_size": int(ranks),
        "bound": bound,
        "value": float(value),
        "low": "",
        "high": "",
    }


def write(directory: Path = SCALING) -> list[Path]:
    """Make all tables and write them.

    Raises
    ------
    RecordError
        If the folder cannot be written.
    """
    paths = []
    for name, table in Validation.made().tables().items():
        paths.append(directory / f"{name}.csv")
        write_atomically(paths[-1], csv_text(table))
    return paths


def csv_text(table: Sequence[Mapping[str, object]]) -> str:
    """Return a table as it is committed: floats with four digits."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({name: _short(value) for name, value in row.items()})
    return text.getvalue()


def _short(value: object) -> object:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else value


if __name__ == "__main__":
    write()

"""One run by itself: its epochs as a table, loss and throughput as a figure."""

from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddl_tools.analysis.metrics import WORLD_G_PER_KWH, joules_per_image, kg_co2e, kwh
from ddl_tools.analysis.plot import style
from ddl_tools.names import as_asked
from ddl_tools.records.run import read_epochs, read_record

COLUMNS = {
    **{name: name for name in ("epoch", "phase", "cold")},
    **{"samples": "images", "corrupt_images": "corrupt"},
    **{"wall_s": "wall (s)", "data_s": "data wait (s)", "throughput_samples_per_s": "images/s"},
    **{"loss": "loss", "top1": "top-1", "lr": "learning rate", "energy_j": "energy (J)"},
}


def run_energy(run_dir: Path | str, g_per_kwh: float = WORLD_G_PER_KWH) -> str:
    """Return the energy of a run, its method and what is not in it; or why there is no number."""
    record, epochs = read_record(Path(run_dir)), read_epochs(Path(run_dir))
    system = record.system or {}
    unknown = "the run is older than the measurement, or never started"
    method, missing = system.get("energy_method"), system.get("energy_missing", unknown)
    if method is None:
        return f"energy: not measured ({missing})"
    total = kwh(epochs)
    if total is None:
        return "energy: " + ("lost in at least one window" if epochs else "no window is over yet")
    per_image = joules_per_image([row for row in epochs if row.phase == "train" and not row.cold])
    lines = [
        f"energy: {total:.4g} kWh in {len(epochs)} windows",
        f"{kg_co2e(total, g_per_kwh):.4g} kg CO2e at {g_per_kwh:g} g/kWh",
        "no measured epoch" if per_image is None else f"{per_image:.4g} J per image",
        f"measured: {method}",
        *([f"not measured: {missing}"] if missing else []),
    ]
    return "\n  ".join(lines)


def run_table(run_dir: Path | str) -> pd.DataFrame:
    """Return one row per epoch and phase of a run, with headings for people."""
    rows = [row.model_dump(include=set(COLUMNS)) for row in read_epochs(Path(run_dir))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).rename(columns=COLUMNS)


def run_figure(run_dir: Path | str) -> Figure:
    """Draw loss and throughput of a run over its epochs; cold epochs are hollow."""
    table = run_table(run_dir)
    train, evaluation = (table[table["phase"] == phase] for phase in ("train", "eval"))
    look: Any = {**style.PAGE, "font.size": style.CAPTION_POINTS}  # its type lists every key
    with matplotlib.rc_context(look):
        record = read_record(Path(run_dir))
        font: Any = {"size": style.CAPTION_POINTS}
        title = style.wrapped(as_asked(record.spec), 0.95 * style.WIDTH, **font)
        height = 2.4 + style.size_of(title, **font)[1]
        figure = Figure(figsize=(style.WIDTH, height), layout="constrained")
        loss, speed = figure.subplots(1, 2)
        _line(loss, train, "loss", "train", "o")
        _line(loss, evaluation, "loss", "evaluation", "s")
        loss.set_ylabel("loss")
        if len(train) and not loss.lines:
            loss.text(0.5, 0.5, "nothing was trained", ha="center", transform=loss.transAxes)
        _line(speed, train, "images/s", "train", "o")
        speed.set_ylabel("throughput (images/s)")
        speed.set_ylim(0, 1.1 * train["images/s"].max() if len(train) else None)
        if len(loss.lines) > 1:
            loss.legend()
        for axes in (loss, speed):
            axes.set_xlabel("epoch (hollow: warm-up, not counted)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(f"{record.run_id}\n{title}".strip(), **font)
    return figure


def _line(axes: Axes, table: pd.DataFrame, column: str, label: str, marker: str) -> None:
    if table[column].isna().all():  # no such rows, or a run that only loaded
        return
    (line,) = axes.plot(table["epoch"] + 1, table[column], marker=marker, label=label)
    cold = table[table["cold"].astype(bool)]
    look: Any = {"markerfacecolor": "white", "markeredgecolor": line.get_color()}
    axes.plot(cold["epoch"] + 1, cold[column], marker, label="_cold", **look)

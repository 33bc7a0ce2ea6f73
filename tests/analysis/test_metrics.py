"""Throughput and energy by hand, in tables and reports of a run; no number without its method."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ddl_tools.analysis import metrics, tables
from ddl_tools.analysis.run_report import run_energy, run_figure, run_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row
from tests.analysis.drawn import draw_only, misplaced
from tests.launch.running import ddl

METHOD = "NVML counter, GPU boards"
MEASURED = MACHINE | {"energy_method": METHOD, "energy_missing": "CPU: no RAPL counters"}
ROWS = [
    epoch_row(0, energy_j=2_000_000.0),  # cold
    epoch_row(1, energy_j=640_000.0),
    epoch_row(2, energy_j=960_000.0),
    epoch_row(2, "eval", energy_j=36_000.0),
]


def test_the_throughput_of_a_run_or_why_there_is_none() -> None:
    cold, first, second = epoch_row(0), epoch_row(1, wall_s=10.0), epoch_row(2, wall_s=30.0)
    assert metrics.describe([cold, first, second]) == "16.0 images/s in 2 measured epochs"
    assert metrics.describe([cold, first]) == "32.0 images/s in 1 measured epoch"
    assert metrics.describe([cold]).startswith("no throughput, as no epoch counts")


def test_units_by_hand() -> None:
    assert metrics.joules_per_image(ROWS[1:3]) == 1_600_000 / 640 == 2500
    assert metrics.kwh(ROWS) == pytest.approx(3_636_000 / 3_600_000)
    assert metrics.kg_co2e(2.5, 400.0) == 1.0
    assert metrics.joules([]) is None
    assert metrics.joules([*ROWS, epoch_row(3)]) is None, "a sum with a gap is no sum"
    assert metrics.joules([epoch_row(1, energy_j=0.0)]) == 0.0


def test_energy_of_a_run(tree: Tree, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_only(monkeypatch, "comparison")
    make_run(rows=ROWS, system=MEASURED)
    command = ("figures", "--study", "laptop", "--results", tree.root)
    for words, grams in (((), metrics.WORLD_G_PER_KWH), (("--carbon-intensity", 20), 20.0)):
        assert ddl(*command, *words).exit_code == 0
        (row,) = tables.read_table(tree.tables / "laptop.csv").to_dict("records")
        assert row["energy_j_per_image"] == 2500
        assert row["energy_kwh"] == pytest.approx(1.01)
        assert row["carbon_g_per_kwh"] == grams
        assert row["kg_co2e"] == pytest.approx(1.01 * grams / 1000)
        assert row["energy_method"] == METHOD


def test_what_was_not_measured_stays_empty(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1, rows=[*ROWS, epoch_row(3)], system=MEASURED)  # one window lost
    make_run(repeat=2, rows=ROWS, system=MEASURED, status="failed")  # not all of its energy
    table = tables.runs_table(tree)
    assert table[["energy_kwh", "carbon_g_per_kwh", "kg_co2e"]].isna().all(axis=None)
    assert table["energy_j_per_image"].isna().tolist() == [True, True, False]
    assert table["energy_method"].isna().tolist() == [True, False, False]


def test_a_report_names_the_method_and_what_is_missing(make_run: MakeRun) -> None:
    directory = make_run(rows=ROWS, system=MEASURED)
    report = run_energy(directory, 400.0)
    for part in ("1.01 kWh in 4", "0.404 kg CO2e at 400 g", "2500 J per image", METHOD,
                 "not measured: CPU: no RAPL counters"):  # fmt: skip
        assert part in report
    assert run_table(directory)["energy (J)"].tolist() == [2e6, 6.4e5, 9.6e5, 3.6e4]


@pytest.mark.parametrize(
    ("system", "rows", "reason"),
    [
        (MACHINE, ROWS, "not measured (the run is older than the measurement, or never started)"),
        (None, [], "never started"),
        (MEASURED | {"energy_method": None}, ROWS, "not measured (CPU: no RAPL counters)"),
        (MEASURED, [], "no window is over yet"),
        (MEASURED, [*ROWS, epoch_row(3)], "lost in at least one window"),
        (MEASURED, ROWS[:1], "no measured epoch"),
    ],
)
def test_a_report_says_why_there_is_no_number(make_run: MakeRun, system, rows, reason) -> None:
    assert reason in run_energy(make_run(rows=rows, system=system))


def test_run_that_only_loaded_has_a_throughput_and_no_loss(make_run: MakeRun) -> None:
    rows = [epoch_row(epoch, loss=None, top1=None, top5=None, lr=None) for epoch in range(3)]
    directory = make_run(work="load", rows=rows)
    figure = run_figure(directory)
    FigureCanvasAgg(figure).draw()
    loss, speed = figure.axes
    assert not loss.lines
    assert [text.get_text() for text in loss.texts] == ["nothing was trained"]
    assert len(speed.lines) == 2
    assert len(run_table(directory)) == 3


@pytest.mark.parametrize("rows", [[], [epoch_row(0)]], ids=["no epoch", "one"])
def test_run_that_trained_does_not_say_so(make_run: MakeRun, rows: list) -> None:
    loss, _ = run_figure(make_run(rows=rows)).axes
    assert not loss.texts


def test_a_long_command_has_lines_above_the_figure(make_run: MakeRun) -> None:
    directory = make_run(rows=[], prefix="nsys profile --trace=cuda $1 or $2 " * 28)
    figure = run_figure(directory)
    assert not misplaced(figure)
    heights = [ax.get_position().height * figure.get_figheight() for ax in figure.axes]
    assert min(heights) > 1.5

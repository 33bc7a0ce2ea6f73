"""Energy in tables and reports: by hand, never estimated, and never without its method."""

import pytest
from click.testing import CliRunner

from ddl_tools.analysis import metrics, run_report, tables
from ddl_tools.analysis.run_report import run_table
from ddl_tools.cli import main
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row

METHOD = "NVML counter, GPU boards"
MEASURED = MACHINE | {"energy_method": METHOD, "energy_missing": "CPU: no RAPL counters"}
ROWS = [
    epoch_row(0, energy_j=2_000_000.0),  # cold
    epoch_row(1, energy_j=640_000.0),
    epoch_row(2, energy_j=960_000.0),
    epoch_row(2, "eval", energy_j=36_000.0),
]


def test_units_by_hand() -> None:
    assert metrics.joules_per_image(ROWS[1:3]) == 1_600_000 / 640 == 2500
    assert metrics.kwh(ROWS) == pytest.approx(3_636_000 / 3_600_000)
    assert metrics.kg_co2e(2.5, 400.0) == 1.0
    assert metrics.kg_co2e(1000, metrics.WORLD_G_PER_KWH) == pytest.approx(458.29)


def test_a_sum_with_a_gap_is_no_sum() -> None:
    assert metrics.joules([]) is None
    assert metrics.joules([*ROWS, epoch_row(3)]) is None
    assert metrics.joules([epoch_row(1, energy_j=0.0)]) == 0.0


def test_a_row_has_the_energy_of_its_run(tree: Tree, make_run: MakeRun) -> None:
    make_run(rows=ROWS, system=MEASURED)
    (row,) = tables.runs_table(tree.runs).to_dict("records")
    assert row["energy_j_per_image"] == 2500
    assert row["energy_kwh"] == pytest.approx(1.01)
    assert row["carbon_g_per_kwh"] == 458.29
    assert row["kg_co2e"] == pytest.approx(1.01 * 0.45829)
    assert row["energy_method"] == METHOD
    (row,) = tables.runs_table(tree.runs, carbon_g_per_kwh=20.0).to_dict("records")
    assert row["kg_co2e"] == pytest.approx(0.0202)


def test_what_was_not_measured_stays_empty(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1, rows=[*ROWS, epoch_row(3)], system=MEASURED)  # one window lost
    make_run(repeat=2, rows=ROWS, system=MEASURED, status="failed")  # not all of its energy
    table = tables.runs_table(tree.runs)
    for column in ("energy_kwh", "carbon_g_per_kwh", "kg_co2e"):
        assert table[column].isna().all()
    assert table["energy_j_per_image"].isna().tolist() == [True, True, False]
    assert table["energy_method"].isna().tolist() == [True, False, False]


@pytest.mark.slow
def test_the_command_line_tells_the_intensity_of_the_place(tree: Tree, make_run: MakeRun) -> None:
    make_run(rows=ROWS, system=MEASURED)
    command = ["figures", "--study", "laptop", "--results", str(tree.root)]
    done = CliRunner().invoke(main, [*command, "--carbon-intensity", "20"])
    assert done.exit_code == 0, done.output
    table = tables.read_table(tree.tables / "laptop.csv")
    assert table["carbon_g_per_kwh"].tolist() == [20]
    assert table["kg_co2e"].tolist() == pytest.approx([0.0202])


def test_a_report_names_the_method_and_what_is_missing(make_run: MakeRun) -> None:
    directory = make_run(rows=ROWS, system=MEASURED)
    assert run_report.run_energy(directory, 400.0).splitlines() == [
        "energy: 1.01 kWh in 4 windows",
        "  0.404 kg CO2e at 400 g/kWh",
        "  2500 J per image in warm epochs",
        f"  measured: {METHOD}",
        "  not measured: CPU: no RAPL counters",
    ]
    assert run_table(directory)["energy (J)"].tolist() == [2e6, 6.4e5, 9.6e5, 3.6e4]


@pytest.mark.parametrize(
    ("system", "rows", "reason"),
    [
        (MACHINE, ROWS, "not measured (the run is older than the measurement, or never started)"),
        (None, [], "never started"),
        (MEASURED | {"energy_method": None}, ROWS, "not measured (CPU: no RAPL counters)"),
        (MEASURED, [], "no window is over yet"),
        (MEASURED, [*ROWS, epoch_row(3)], "lost in at least one window"),
        (MEASURED, ROWS[:1], "no warm epoch"),
    ],
)
def test_a_report_says_why_there_is_no_number(make_run: MakeRun, system, rows, reason) -> None:
    directory = make_run(rows=rows, system=system)
    assert reason in run_report.run_energy(directory)

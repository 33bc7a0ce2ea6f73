"""Whole runs with real processes: what their records say of energy."""

from pathlib import Path

import pytest

from ddl_tools.launch.ranks import run_ranks
from ddl_tools.records.run import read_epochs, read_record
from tests.pictures import write_pictures
from tests.rank.energy import powercap
from tests.rank.test_worker import planned

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

FEW = {"loader": "synthetic", "train_images": 32, "eval_images": 16, "epochs": 2}


def test_a_run_without_counters_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDL_POWERCAP", str(tmp_path / "nowhere"))
    directory = planned(tmp_path / "run", None, **FEW)
    run_ranks(directory)
    rows = read_epochs(directory)
    assert [row.energy_j for row in rows] == [None] * 4
    system = read_record(directory).system
    assert system["energy_method"] is None
    assert system["energy_missing"].startswith(f"CPU: no RAPL counters in {tmp_path}/nowhere")


LOADING = {"work": "load", "loader": "native", "train_images": None, "eval_images": None}


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"strategy": "ddp", "gpus_per_node": 2}, [4, 2, 4, 2]),
        (LOADING | {"eval_every": 0}, [4, 4]),
    ],
    ids=["two ranks", "loading"],
)
def test_a_run_records_what_its_machine_used_once(tmp_path, monkeypatch, fields, steps):
    images = write_pictures(tmp_path / "images", 16, 16)
    monkeypatch.setenv("DDL_POWERCAP", str(powercap.make(tmp_path / "powercap")))
    monkeypatch.setattr("ddl_tools.launch.ranks.WORKER", "tests.rank.energy.metered_worker")
    directory = planned(tmp_path / "run", images, **FEW | fields)
    run_ranks(directory)
    epochs = read_epochs(directory)
    assert [row.steps for row in epochs] == steps
    assert [row.energy_j for row in epochs] == [5.0 * count for count in steps]
    system = read_record(directory).system
    assert system["energy_method"] == "RAPL, CPU packages and DRAM"
    assert system["energy_missing"] is None

"""Records to tables: what counts, what stays a row, what is refused."""

import json
import math
import shutil
from typing import Any

import pandas as pd
import pytest

from ddl_core.errors import RecordError
from ddl_tools.analysis import tables
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.rounds import DISTURBED, FIRST
from tests.analysis.conftest import CODE, MakeRun, epoch_row, turned


def only_row(tree: Tree) -> dict[str, Any]:
    (row,) = tables.runs_table(tree).to_dict("records")
    return row


def test_numbers_of_a_run(tree: Tree, make_run: MakeRun) -> None:
    make_run(20.0, strategy="ddp", gpus_per_node=2, repeat=1)
    row = only_row(tree)
    expected = {
        **{"study": "laptop", "strategy": "ddp", "world_size": 2, "global_batch_size": 32},
        **{"train_epochs_warm": 2, "images_per_epoch": 320, "diverged": False},
        **{"throughput_samples_per_s": 16.0, "throughput_samples_per_cpu_s": 10.0},
        **{"runtime_s": 100 + 20 + 20, "runtime_warm_epoch_s": 20, "data_share": 0.1},
        **{"step_s_median": 1.9, "eval_loss": 6.25, "top1": 0.125, "top5": 0.5},
        **{"machine": "Example(R) CPU @ 2.00GHz", "cpu_cores": 2, "load_average_1min": 0.5},
        **{"git_commit": CODE["git_commit"], "git_dirty": False},
    }
    assert {name: row[name] for name in expected} == expected


def test_throughput_is_all_images_over_all_training_time(tree: Tree, make_run: MakeRun) -> None:
    evaluation = epoch_row(2, "eval", wall_s=1000.0, samples=5)
    make_run(rows=[epoch_row(1, wall_s=10.0), epoch_row(2, wall_s=30.0), evaluation])
    row = only_row(tree)
    assert (row["throughput_samples_per_s"], row["runtime_s"]) == (640 / 40, 40)


def test_cold_epochs_do_not_count(tree: Tree, make_run: MakeRun) -> None:
    make_run(rows=[epoch_row(0), epoch_row(1, cold=True)])
    row = only_row(tree)
    assert row["train_epochs_warm"] == 0
    assert math.isnan(row["throughput_samples_per_s"])
    assert math.isnan(row["data_share"])
    assert row["runtime_s"] == 40


def test_failed_and_planned_runs_stay_rows(tree: Tree, make_run: MakeRun) -> None:
    make_run(status="failed", rows=[], repeat=0)
    make_run(status="failed", repeat=1)
    make_run(status="planned", rows=[], repeat=2, system=None)
    table = tables.runs_table(tree).set_index("repeat")
    assert table["status"].tolist() == ["failed", "failed", "planned"]
    assert table["error_kind"].isna().tolist() == [False, False, True]
    assert table["error_category"].fillna("").tolist() == ["killed", "killed", ""]
    assert table["runtime_s"].isna().all(), "a failed run has no runtime"
    assert table["corrupt_images"].isna()[0], "missing is null, never 0"


def test_diverged_runs_are_marked(tree: Tree, make_run: MakeRun) -> None:
    make_run(rows=[epoch_row(0), epoch_row(1, loss=math.nan)], repeat=0)
    make_run(rows=[epoch_row(0), epoch_row(1, loss=math.inf)], repeat=1)
    make_run(repeat=2)
    make_run(rows=[epoch_row(0, loss=None)], repeat=3)
    diverged = tables.runs_table(tree)["diverged"]
    assert diverged.to_list() == [True, True, False, pd.NA]


def damaged(tree: Tree) -> pd.Series:
    """Return the row of the only damaged one of two runs."""
    table = tables.runs_table(tree)
    assert tables.counts(table) == "2 runs: 1 completed, 1 damaged"
    whole = tables.whole(table)["run_id"].tolist()
    assert tables.windows_table(tree)["run_id"].unique().tolist() == whole
    return table[table["status"] == tables.DAMAGED].iloc[0]


def test_of_a_damaged_record_nothing_is_believed(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=1)
    files = RunFiles(make_run())
    content = json.loads(files.record.read_text())
    files.record.write_text(json.dumps(content | {"surprise": 1}))
    row = damaged(tree)
    assert (row["study"], row["run_id"]) == ("laptop", files.directory.name)
    assert "surprise" in row["damage"]
    assert row.drop(["study", "run_id", "status", "damage"]).isna().all()


def test_of_damaged_lines_the_specification_is_believed(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=1)
    files = RunFiles(make_run(strategy="ddp"))
    line = json.loads(files.epochs.read_text().splitlines()[0])
    with files.epochs.open("a") as file:
        file.write(json.dumps(line | {"surprise": 1}) + "\n")
    row = damaged(tree)
    assert row["strategy"] == "ddp"
    assert "epochs.jsonl, line 5: surprise" in row["damage"]
    assert row[["throughput_samples_per_s", "runtime_s", "top1", "diverged"]].isna().all()


def test_a_copied_run_does_not_count(tree: Tree, make_run: MakeRun) -> None:
    directory = make_run()
    shutil.copytree(directory, directory.with_name(directory.name + "-copy"))
    assert "count twice" in damaged(tree)["damage"]


def test_table_on_disk_reads_back_the_same(tree: Tree, laptop: MakeRun) -> None:
    """Failed and damaged runs too, and a text that looks like nothing."""
    laptop(status="failed", rows=[], repeat=9)
    RunFiles(laptop(repeat=8, dataset="null")).epochs.write_text("{")
    table, _ = tables.write_tables(tree, "laptop")
    path = tree.tables / "laptop.csv"
    written = path.read_bytes()
    pd.testing.assert_frame_equal(table, tables.runs_table(tree), check_exact=False, rtol=1e-8)
    tables.write_tables(tree, "laptop")
    assert path.read_bytes() == written
    assert b"\r" not in written


def test_study_without_runs_says_what_to_do(tree: Tree) -> None:
    with pytest.raises(RecordError, match="ddl study run nowhere"):
        tables.write_tables(tree, "nowhere")
    assert tables.runs_table(tree).empty


def test_windows_are_the_warm_epochs(tree: Tree, make_run: MakeRun) -> None:
    folder = turned(make_run, {"strategy": "ddp"}, [20.0, 10.0], cpu_s=[32.0, 64.0], place=3)
    make_run(strategy="single")
    table = tables.windows_table(tree)
    assert list(table) == list(tables.WINDOW_COLUMNS)
    ours, others = table[table["run_id"] == folder.name], table[table["run_id"] != folder.name]
    assert ours["epoch"].tolist() == [1, 2, 3]
    slots = ours[["block", "round", "place", "reference"]].values.tolist()
    assert slots == [["a", number, 3, folder.name] for number in range(3)]
    assert ours["throughput_samples_per_s"].tolist()[1:] == [16.0, 32.0]
    assert ours["throughput_samples_per_cpu_s"].tolist()[1:] == [10.0, 5.0]
    assert len(others) == 2, "neither the cold epoch nor the evaluation"
    assert others[["block", "reference", "round", "place"]].isna().all(axis=None)
    pd.testing.assert_frame_equal(tables.write_tables(tree, "laptop")[1], table)
    assert (tree.tables / "windows" / "laptop.csv").exists()


DDP, HOROVOD = {"strategy": "ddp"}, {"strategy": "horovod"}


def left_out(tree: Tree) -> list[list[str | None]]:
    """Return of each run of the tree why its rounds do not count."""
    table = tables.windows_table(tree)
    table["left_out"] = table["left_out"].astype(object).where(table["left_out"].notna(), None)
    return [own["left_out"].to_list() for _, own in table.groupby("run_id")]


def test_the_first_round_of_a_start_does_not_count(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, DDP, [10.0, 10.0])
    turned(make_run, HOROVOD, [10.0, 10.0], place=1)
    turned(make_run, HOROVOD | {"repeat": 1}, [10.0], windows=2, place=2)
    assert left_out(tree) == [[FIRST, None, None], [FIRST, None, None],
                              [FIRST, None]]  # fmt: skip


def test_a_disturbed_round_does_not_count(tree: Tree, make_run: MakeRun) -> None:
    """A run that had half of the processor for one window; the other one was slow, and had it."""
    turned(make_run, DDP, [10.0, 20.0, 10.0, 10.0], cpu_s=[20.0, 20.0, 20.0, 18.0])
    turned(make_run, HOROVOD, [10.0, 10.0, 40.0, 10.0], place=1)
    assert left_out(tree) == [[FIRST, None, DISTURBED, None, None]] * 2


def test_the_short_windows_of_a_loader_alone_disturb_nothing(tree: Tree, make_run: MakeRun) -> None:
    turned(make_run, DDP, [10.0, 10.0])
    load = HOROVOD | {"work": "load"}
    turned(make_run, load, [0.1, 0.1, 0.1], cpu_s=[0.2, 0.2, 0.1], place=1, windows=2)
    assert left_out(tree)[0] == [FIRST, None, None]

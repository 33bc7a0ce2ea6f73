"""Which runs are pooled, and what they add up to."""

import math

import pytest

from ddl_core.analysis.arms import arm_table, made_runs
from ddl_core.analysis.tables import empty_table, runs_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row

GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda", "accelerator": "Example GPU"}


def test_efficiency_of_an_arm(tree: Tree, make_run: MakeRun) -> None:
    """Medians 16 and 25 images/s on 1 and 2 workers: 0.78; ends from the extremes of both."""
    for repeat, (one, two) in enumerate([(20.0, 12.8), (16.0, 10.0), (25.0, 16.0)]):
        make_run(one, strategy="ddp", repeat=repeat)
        make_run(two, strategy="ddp", gpus_per_node=2, repeat=repeat)
    base, pair = arm_table(runs_table(tree.runs)).to_dict("records")
    assert (base["world_size"], base["base_world_size"], base["n"]) == (1, 1, 3)
    assert (base["value"], base["low"], base["high"]) == (16.0, 12.8, 20.0)
    assert base["efficiency"] == 1
    assert math.isnan(base["efficiency_low"])
    assert (pair["world_size"], pair["base_world_size"]) == (2, 1)
    assert pair["efficiency"] == pytest.approx(25 / 2 / 16)
    assert pair["efficiency_low"] == pytest.approx(20 / 2 / 20)
    assert pair["efficiency_high"] == pytest.approx(32 / 2 / 12.8)


def test_base_is_the_smallest_size_that_was_measured(tree: Tree, make_run: MakeRun) -> None:
    make_run(strategy="ddp", status="failed", rows=[])
    make_run(strategy="ddp", nodes=4)
    make_run(10.0, strategy="ddp", nodes=8)
    table = arm_table(runs_table(tree.runs)).set_index("world_size")
    assert table.loc[1, ["n", "failed"]].tolist() == [0, 1]
    assert math.isnan(table.loc[1, "value"])
    assert table["base_world_size"].tolist()[1:] == [4, 4]
    assert table.loc[8, "efficiency"] == 1


def test_strategies_do_not_share_a_base(tree: Tree, make_run: MakeRun) -> None:
    make_run(10.0, strategy="single")
    make_run(20.0, strategy="ddp")
    make_run(20.0, strategy="ddp", gpus_per_node=2)
    table = arm_table(runs_table(tree.runs))
    assert table[table["world_size"] == 2]["efficiency"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("field", "value"),
    [("local_batch_size", 32), ("precision", "bf16"), ("loader_workers", 2), ("image_size", 64)],
)
def test_runs_that_do_other_work_are_not_pooled(
    tree: Tree, make_run: MakeRun, field: str, value: object
) -> None:
    make_run()
    make_run(**{field: value})
    table = arm_table(runs_table(tree.runs))
    assert table["n"].tolist() == [1, 1]
    assert table["setting"].nunique() == 2


def test_loading_alone_is_no_training(tree: Tree, make_run: MakeRun) -> None:
    """Its throughput would raise the median; a study of it alone has no arm at all."""
    make_run(20.0, repeat=0)
    make_run(1.0, repeat=1, work="load")
    make_run(1.0, repeat=2, work="load", loader="turbo")
    runs = runs_table(tree.runs)
    (row,) = arm_table(runs).to_dict("records")
    assert (row["n"], row["value"]) == (1, 16.0)
    assert row["setting"] == "laptop: 96 px, batch 16, fp32"
    assert len(runs) == 3, "tables keep all rows"
    assert made_runs(runs, "load")["value"].tolist() == [320.0, 320.0]


def test_formats_are_arms_of_one_setting(tree: Tree, make_run: MakeRun) -> None:
    """The paper's native on folders and DALI on TFRecord must be comparable."""
    make_run(20.0)
    make_run(10.0, data_format="tfrecord")
    make_run(10.0, data_format="tfrecord", loader="dali_cpu")
    table = arm_table(runs_table(tree.runs))
    assert table["n"].tolist() == [1, 1, 1]
    assert table["setting"].unique().tolist() == ["laptop: 96 px, batch 16, fp32"]


def test_runs_that_do_the_same_work_are_pooled(tree: Tree, make_run: MakeRun) -> None:
    make_run(weight_decay=0.0, base_lr=0.1)
    make_run(seed=3, eval_every=0, label_smoothing=0.0)
    assert arm_table(runs_table(tree.runs))["n"].tolist() == [2]


def test_machines_and_studies_are_not_pooled(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1, system=MACHINE | {"cpu": "Another CPU"})
    make_run(repeat=2, system=GPU)
    make_run(study="other")
    table = arm_table(runs_table(tree.runs))
    assert table["n"].tolist() == [1, 1, 1, 1]
    assert sorted(table["hardware"]) == [
        "Another CPU, 2 cores, no GPU",
        "Example CPU @ 2.00GHz, 2 cores, no GPU",
        "Example CPU @ 2.00GHz, 2 cores, no GPU",
        "Example GPU",
    ]
    assert table.set_index("hardware").loc["Example GPU", "on_cpu"] == False  # noqa: E712


def test_machines_of_one_study_have_names_of_their_own(tree: Tree, make_run: MakeRun) -> None:
    """Else a figure would draw both as one line."""
    make_run(repeat=0)
    make_run(repeat=1, system=GPU)
    assert sorted(arm_table(runs_table(tree.runs))["setting"]) == [
        "laptop: 96 px, batch 16, fp32, hardware=Example CPU @ 2.00GHz, 2 cores, no GPU",
        "laptop: 96 px, batch 16, fp32, hardware=Example GPU",
    ]


def test_methods_are_not_pooled(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1)
    table = runs_table(tree.runs).assign(method_version=[1, 2])
    assert arm_table(table)["n"].tolist() == [1, 1]


def test_run_that_failed_early_stands_with_its_study(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1, status="failed", rows=[], system=None)
    (row,) = arm_table(runs_table(tree.runs)).to_dict("records")
    assert (row["n"], row["failed"]) == (1, 1)


def test_diverged_and_unfinished_runs_give_no_value(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    make_run(repeat=1, rows=[epoch_row(0), epoch_row(1, loss=math.nan)])
    make_run(repeat=2, status="running")
    make_run(repeat=3, status="planned", rows=[], system=None)
    (row,) = arm_table(runs_table(tree.runs)).to_dict("records")
    assert (row["n"], row["failed"]) == (1, 1)
    assert len(made_runs(runs_table(tree.runs))) == 2


def test_changed_files_show_in_the_commit(tree: Tree, make_run: MakeRun) -> None:
    make_run()
    table = runs_table(tree.runs).assign(git_dirty=True)
    assert arm_table(table)["commit"].tolist() == ["01234567+"]


def test_empty_table() -> None:
    assert arm_table(empty_table()).empty

"""Which runs are pooled, and what they add up to."""

import math

import numpy as np
import pytest
from scipy import stats

from ddl_tools.analysis.configurations import configuration_table, ended_runs
from ddl_tools.analysis.interleaving import Interleaved
from ddl_tools.analysis.tables import runs_table, windows_table
from ddl_tools.records.paths import Tree
from ddl_tools.records.run import read_record, write_record
from tests.analysis.conftest import GPU, MakeRun, epoch_row, in_blocks
from tests.analysis.drawn import configurations


def test_efficiency_of_a_configuration(tree: Tree, make_run: MakeRun) -> None:
    """Means 16 and 25 images/s on 1 and 2 workers: 0.78; the interval is Welch's, on logs."""
    ones, twos = [16.0, 20.0, 12.8], [25.0, 32.0, 19.53125]
    for repeat, (one, two) in enumerate(zip(ones, twos, strict=True)):
        make_run(320 / one, strategy="ddp", repeat=repeat)
        make_run(320 / two, strategy="ddp", gpus_per_node=2, repeat=repeat)
    base, pair = configurations(tree).to_dict("records")
    assert (base["world_size"], base["base_world_size"], base["n"]) == (1, 1, 3)
    expected = stats.ttest_1samp(np.log(ones), 0).confidence_interval()
    assert (base["low"], base["high"]) == pytest.approx(tuple(np.exp(expected)))
    assert base["value"] == pytest.approx(16.0)
    assert base["efficiency"] == 1
    assert math.isnan(base["efficiency_low"])
    assert (pair["world_size"], pair["base_world_size"], pair["windows"]) == (2, 1, 0)
    assert pair["efficiency"] == pytest.approx(25 / 2 / 16)
    welch = stats.ttest_ind(np.log(twos), np.log(ones), equal_var=False).confidence_interval()
    found = (pair["efficiency_low"], pair["efficiency_high"])
    assert found == pytest.approx(tuple(np.exp(welch) / 2))


def test_a_slow_base_shows_against_single(tree: Tree, make_run: MakeRun) -> None:
    """ddp at one worker is half as fast as single, at two twice as fast as at one."""
    for repeat, slower in enumerate((1.0, 1.1, 0.9)):
        make_run(10.0 * slower, strategy="single", repeat=repeat)
        make_run(20.0 * slower, strategy="ddp", repeat=repeat)
        make_run(10.0 * slower, strategy="ddp", repeat=repeat, gpus_per_node=2, ddp_bucket_mb=10)
        make_run(10.0 * slower, strategy="ddp", repeat=repeat, gpus_per_node=2)
        make_run(1.0, strategy="single", loader="turbo", repeat=repeat)
        make_run(1.0, strategy="single", image_size=64, repeat=repeat)
    table = configurations(tree)
    ddp = table[table["strategy"] == "ddp"].sort_values(["setting", "world_size"])
    assert ddp["against_single"].tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert (ddp["against_single_low"] < 0.5).all()
    grown = ddp[ddp["base_world_size"] < ddp["world_size"]]
    assert grown["efficiency"].tolist() == pytest.approx([1.0])
    single = table[table["strategy"] == "single"]
    assert single["against_single"].tolist() == [1.0, 1.0, 1.0]


def test_efficiency_is_of_interleaved_windows(tree: Tree, make_run: MakeRun) -> None:
    """The machine drifts by a factor of three; the ratio of neighbouring windows does not."""
    drift = [1.0, 1.5, 3.0, 2.0]
    in_blocks(make_run, {"strategy": "ddp"}, [10.0 * d for d in drift], place=0)
    twice = [1.02, 0.98, 1.0, 1.0]
    took = [6.25 * d * t for d, t in zip(drift, twice, strict=True)]
    in_blocks(make_run, {"strategy": "ddp", "gpus_per_node": 2}, took, place=1)
    runs, windows = runs_table(tree), windows_table(tree)
    _, pair = configuration_table(runs, windows).to_dict("records")
    expected = stats.ttest_1samp(-np.log(0.625 * np.array(twice)), 0).confidence_interval()
    found = (pair["efficiency_low"], pair["efficiency_high"])
    assert found == pytest.approx(tuple(np.exp(expected) / 2))
    assert (pair["n"], pair["windows"]) == (4, 4)
    assert pair["low"] < 25 < pair["high"]
    _, alone = configuration_table(runs[runs["repeat"] == 0], windows).to_dict("records")
    assert math.isnan(alone["efficiency_low"]), "one start has no interval"


def test_configurations_of_two_blocks_meet_in_the_baseline(tree: Tree, make_run: MakeRun) -> None:
    """The second block runs on a machine that is twice as slow: no matter."""
    ddp, alone = {"strategy": "ddp"}, {"strategy": "horovod"}
    wobble = [1.0, 1.02, 0.98]
    in_blocks(make_run, ddp, [10.0, 10.0, 10.0, 20.0, 20.0, 20.0])
    in_blocks(make_run, alone | {"gpus_per_node": 2}, [5.0 * w for w in wobble], place=1)
    in_blocks(make_run, alone, [20.0 * w for w in wobble], begin=3, place=1)
    table = configuration_table(runs_table(tree), windows_table(tree))
    pair = table[(table["strategy"] == "horovod") & (table["world_size"] == 2)].iloc[0]
    assert pair["efficiency"] == pytest.approx(1.0, rel=1e-3)
    assert pair["efficiency_low"] < 1 < pair["efficiency_high"] < 1.1


def test_base_is_the_smallest_size_that_was_measured(tree: Tree, make_run: MakeRun) -> None:
    make_run(strategy="ddp", status="failed", rows=[])
    make_run(strategy="ddp", nodes=4)
    make_run(10.0, strategy="ddp", nodes=8)
    table = configurations(tree).set_index("world_size")
    assert table.loc[1, ["n", "failed"]].tolist() == [0, 1]
    assert math.isnan(table.loc[1, "value"])
    assert table["base_world_size"].tolist()[1:] == [4, 4]
    assert table.loc[8, "efficiency"] == 1


def test_loading_alone_is_no_training(tree: Tree, make_run: MakeRun) -> None:
    make_run(20.0, repeat=0)
    make_run(1.0, repeat=1, work="load")
    make_run(1.0, repeat=2, work="load", loader="turbo")
    runs = runs_table(tree)
    (row,) = configuration_table(runs).to_dict("records")
    assert (row["n"], row["value"]) == (1, pytest.approx(16.0))
    assert math.isnan(row["low"]), "one run has no interval"
    assert ended_runs(runs, "load")["value"].tolist() == [320.0, 320.0]


def test_formats_share_a_setting_and_repeats_are_pooled(tree: Tree, make_run: MakeRun) -> None:
    """The paper's native on folders and DALI on TFRecord must be comparable."""
    make_run(20.0)
    make_run(20.0, seed=3)
    make_run(10.0, data_format="tfrecord")
    make_run(10.0, data_format="tfrecord", loader="dali_cpu")
    table = configurations(tree)
    assert sorted(table["n"]) == [1, 1, 2]
    assert table["setting"].unique().tolist() == ["laptop: 96 px, batch 16, fp32"]


def test_machines_of_one_study_have_names_of_their_own(tree: Tree, make_run: MakeRun) -> None:
    """Else a figure would draw both as one line."""
    make_run(repeat=0)
    make_run(repeat=1, system=GPU)
    make_run(study="other")
    table = configurations(tree)
    assert sorted(table["setting"]) == [
        "laptop: 96 px, batch 16, fp32, Example CPU @ 2.00GHz, 2 cores, no GPU",
        "laptop: 96 px, batch 16, fp32, Example GPU",
        "other: 96 px, batch 16, fp32",
    ]
    assert table["on_cpu"].to_list() == (table["hardware"] != "Example GPU").to_list()


def test_diverged_and_unfinished_runs_give_no_value(tree: Tree, make_run: MakeRun) -> None:
    make_run(repeat=0)
    lost = [epoch_row(0), *(epoch_row(epoch, loss=math.nan) for epoch in (1, 2))]
    lost.append(epoch_row(2, "eval"))
    make_run(repeat=1, rows=lost)
    make_run(repeat=2, status="running")
    make_run(repeat=3, status="planned", rows=[], system=None)
    runs = runs_table(tree)
    (row,) = configuration_table(runs).to_dict("records")
    assert (row["n"], row["failed"]) == (1, 1)
    assert len(ended_runs(runs)) == 2
    changed = configuration_table(runs.assign(git_dirty=True))
    assert changed["commit"].tolist() == ["01234567+"], "the files differed from the commit"
    assert configuration_table(runs[:0]).empty


def test_runs_that_shared_a_job_are_pairs(tree: Tree, make_run: MakeRun) -> None:
    nodes = [1.0, 1.7, 2.9]  # each job has other nodes
    for repeat, slow in enumerate(nodes):
        for strategy, factor in (("ddp", 1.0), ("horovod", 1.25 + 0.01 * repeat)):
            directory = make_run(20.0 * slow * factor, strategy=strategy, repeat=repeat)
            record = read_record(directory)
            record.attempts[-1].block = f"job{repeat}"
            write_record(directory, record)
    windows, runs = windows_table(tree), runs_table(tree)
    interleaved = Interleaved(windows)
    sides = [interleaved.of("laptop", part["run_id"]) for _, part in runs.groupby("strategy")]
    ratio = interleaved.ratio(*sides)
    assert ratio.n == 3  # not six windows: those of one run are no pairs of their own
    assert ratio.value == pytest.approx(1.26, rel=1e-3)
    assert ratio.high / ratio.low < 1.05
    assert configuration_table(runs, windows)["windows"].tolist() == [0, 0]


def test_ranks_may_share_a_global_batch(tree: Tree, make_run: MakeRun) -> None:
    for ranks, wall_s in ((1, 20.0), (2, 12.5), (4, 10.0)):
        make_run(wall_s, gpus_per_node=ranks, local_batch_size=32 // ranks, strategy="ddp")
    table = configuration_table(runs_table(tree)).set_index("world_size")
    assert table["efficiency"].to_dict() == pytest.approx({1: 1.0, 2: 0.8, 4: 0.5})
    assert table["setting"].unique().tolist() == ["laptop: 96 px, global batch 32, fp32"]


def test_a_batch_per_rank_that_is_fixed_comes_first(tree: Tree, make_run: MakeRun) -> None:
    """A run of one rank could begin both curves."""
    for ranks, batch in ((1, 32), (2, 32), (2, 16)):
        make_run(gpus_per_node=ranks, local_batch_size=batch, strategy="ddp")
    table = configuration_table(runs_table(tree))
    assert table["setting"].nunique() == 2
    assert table.set_index(["world_size", "local_batch_size"])["base_world_size"].to_dict() == {
        (1, 32): 1,
        (2, 32): 1,
        (2, 16): 2,
    }

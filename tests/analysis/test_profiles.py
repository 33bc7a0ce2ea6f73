"""The table of profiles: a row per run, rank and share."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ddl_core.config import RunSpec
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.shares import profile_points
from ddl_tools.analysis.plot.canvas import caption_of, title_of
from ddl_tools.analysis.tables import KERNELS, PROFILE_COLUMNS, WINDOW, profiles_table, runs_table
from ddl_tools.records.paths import RunFiles, Tree
from ddl_tools.records.profiling import (
    KINDS,
    ProfileRecord,
    RankProfile,
    Shares,
    read_profile,
    write_profile,
)
from ddl_tools.records.run import Attempt, RunRecord, append_epoch, write_record
from tests.analysis.conftest import epoch_row
from tests.analysis.drawn import LONG, beside, misplaced

SHARES = Shares(compute=0.5, transfer=0.1, waiting=0.1, copies=0.05, data=0.05, other=0.15,
                idle=0.05)  # fmt: skip


def rank(number: int, on_gpu: bool) -> RankProfile:
    overlapped, kernels = (0.2, dict.fromkeys(KINDS, 0.2)) if on_gpu else (None, None)
    return RankProfile(rank=number, window_s=2, shares=SHARES, overlapped=overlapped,
                       exposed_s=[0.2, 0.2], kernels=kernels)  # fmt: skip


def profiled(
    tree: Tree, on_gpu: bool, status: str = "completed", load: float | None = None
) -> Path:
    strategy = "ddp" if on_gpu else "horovod"
    spec = RunSpec(strategy=strategy, gpus_per_node=2, epochs=2, profile_steps=2, eval_every=0,
                   loader_workers=1)  # fmt: skip
    record = RunRecord.plan("where", spec).model_copy(update={"status": status})
    record.system = None if load is None else {"cpu": "Example CPU", "load_average_1min": load}
    record.attempts = [Attempt(started_utc=record.created_utc)]
    directory = tree.study("where") / spec.run_id
    write_record(directory, record)
    for epoch in range(spec.epochs):
        append_epoch(directory, epoch_row(epoch))
    device, missing = ("cuda", None) if on_gpu else ("cpu", "no trace")
    ranks = [rank(0, on_gpu), rank(1, on_gpu)]
    profile = ProfileRecord(run_id=spec.run_id, device=device, epoch=1, first_step=3, steps=2,
                            overlapped_missing=missing, ranks=ranks)  # fmt: skip
    write_profile(directory, profile)
    assert read_profile(directory) == profile
    return directory


def test_each_rank_has_its_shares(tree: Tree) -> None:
    profiled(tree, on_gpu=True)
    profiled(tree, on_gpu=False)
    table = profiles_table(tree)
    assert list(table.columns) == list(PROFILE_COLUMNS)
    assert set(table["source"]) == {"torch.profiler"}
    for (strategy, number), part in table.groupby(["strategy", "rank"]):
        window = part[part["of"] == WINDOW].set_index("share")["value"]
        assert list(window.index) == [*Shares.model_fields, "overlapped"]
        assert window.drop("overlapped").sum() == pytest.approx(1)
        assert window["compute"] == 0.5
        kernels = part[part["of"] == KERNELS]
        assert number in (0, 1)
        if strategy == "ddp":
            assert window["overlapped"] == 0.2
            assert list(kernels["share"]) == list(KINDS)
            assert kernels["value"].sum() == pytest.approx(1)
            assert set(part["device"]) == {"cuda"}
        else:
            assert window.isna()["overlapped"]
            assert kernels.empty
    assert len(table.groupby(["run_id", "rank"])) == 4


def test_a_run_that_failed_or_whose_profile_is_gone_has_no_rows(tree: Tree) -> None:
    profiled(tree, on_gpu=False, status="failed")
    RunFiles(profiled(tree, on_gpu=True)).profile.unlink()
    assert profiles_table(tree).empty


def test_shares_of_a_configuration_are_means_over_its_ranks(tree: Tree) -> None:
    directory = profiled(tree, on_gpu=False)
    profiled(tree, on_gpu=True)
    profile = read_profile(directory)
    profile.ranks[1].shares = SHARES.model_copy(update={"compute": 0.3, "waiting": 0.3})
    write_profile(directory, profile)
    points = profile_points(profiles_table(tree), runs_table(tree))
    for _, own in points.groupby("strategy"):
        assert list(own["cause"]) == list(Shares.model_fields)
        assert own["value"].sum() == pytest.approx(1)
    found = points.set_index(["strategy", "cause"])
    assert found.loc[("horovod", "compute")][["value", "low", "high"]].tolist() == [0.4, 0.3, 0.5]
    assert found.loc[("horovod", "waiting")]["value"] == pytest.approx(0.2)
    assert points[points["strategy"] == "horovod"]["overlapped"].isna().all()
    assert set(points[points["strategy"] == "ddp"]["overlapped"]) == {0.2}


def test_the_figure_tells_means_from_single_ranks(tree: Tree) -> None:
    directory = profiled(tree, on_gpu=False)
    profile = read_profile(directory)
    profile.ranks[1].shares = SHARES.model_copy(update={"compute": 0.3, "waiting": 0.3})
    write_profile(directory, profile)
    points = profile_points(profiles_table(tree), runs_table(tree))
    figure = QUESTIONS["time_shares"].draw(points)
    assert title_of(figure).endswith(
        "computes for 40 % of its steps (single ranks 30 to 50 %); it waits for slower "
        "ranks for 20 % (single ranks 10 to 30 %)"
    )
    assert "means over ranks" in caption_of(figure)
    _, answer = QUESTIONS["time_shares"].sentences(points)
    assert "mean over ranks: " in answer


def test_the_figure_says_what_was_hidden_and_what_load_is_not_explained(tree: Tree) -> None:
    """Two ranks with a compute thread and a loader process each explain a load of four."""
    profiled(tree, on_gpu=False, load=4.0)
    assert "Other programs" not in caption_of(drawn(tree))
    profiled(tree, on_gpu=True, load=4.65)
    figure = drawn(tree)
    assert "Other programs ran: load average 4.7, own at most 4." in caption_of(figure)
    texts = sorted(text.split() for text in beside(figure)[1:])
    assert texts == [["1", "20", "%"], ["1", "unknown"]]


def test_long_names_stay_on_the_page(tree: Tree) -> None:
    profiled(tree, on_gpu=False)
    profiled(tree, on_gpu=True)
    points = profile_points(profiles_table(tree), runs_table(tree))
    long = {"panel": f"{LONG}: " + "no persistent workers, " * 20, "hardware": LONG}
    assert not misplaced(QUESTIONS["time_shares"].draw(points.assign(**long)))


def drawn(tree: Tree) -> Figure:
    return QUESTIONS["time_shares"].draw(profile_points(profiles_table(tree), runs_table(tree)))

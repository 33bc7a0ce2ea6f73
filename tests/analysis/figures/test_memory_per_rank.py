"""Memory of a rank: the most of any run, beside what the share of the training state takes."""

import pytest

from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.figures.memory import GIB, memory_points, state_bytes
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MACHINE, MakeRun, epoch_row
from tests.analysis.drawn import words

PARAMETERS = 10_000_000
SYSTEM = MACHINE | {"network": {"parameters": PARAMETERS}}


def made(make_run: MakeRun, strategy: str, *gib: float | None, **fields) -> None:
    """Write a run whose epochs took so much memory; the first one is cold."""
    taken = [None if one is None else round(one * GIB) for one in gib]
    rows = [epoch_row(epoch, max_memory_bytes=most) for epoch, most in enumerate(taken)]
    workers = 1 if strategy == "single" else 2
    common = {"system": SYSTEM, "gpus_per_node": workers, "checkpoint_every": 0, **fields}
    make_run(rows=rows, study="sharding", strategy=strategy, **common)


def test_a_row_is_the_most_of_warm_epochs_and_its_share(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, "ddp", 9.0, 1.5, 1.6)
    made(make_run, "ddp", 9.0, 1.5, 1.4, repeat=1)
    made(make_run, "deepspeed", 9.0, 1.0, 1.0, deepspeed_zero_stage=2)
    made(make_run, "fsdp", 9.0, 0.5, 0.75)
    points = memory_points(runs_table(tree))
    assert points["label"].tolist() == ["PyTorch-FSDP", "DeepSpeed", "PyTorch-DDP"]
    assert points["value"].tolist() == pytest.approx([0.75, 1.0, 1.6])
    assert points["low"].tolist() == pytest.approx([0.75, 1.0, 1.5])
    assert points["n"].tolist() == [1, 1, 2]
    shares = [1.5, 2.0, 3.0]  # of two ranks: all in halves; weights whole; everything whole
    assert (points["state"] * GIB).tolist() == pytest.approx([4 * PARAMETERS * s for s in shares])
    assert QUESTIONS["memory_per_rank"].figure(points) is None, "the scatter shows it"
    said = words(QUESTIONS["memory_against_throughput"].draw(points))
    assert "memory before the network is subtracted" in said


def test_the_share_of_fsdp_with_accumulation_is_not_known(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, "ddp", 9.0, 1.5, accumulation=2)
    made(make_run, "fsdp", 9.0, 0.5, accumulation=2)
    points = memory_points(runs_table(tree)).set_index("strategy")
    assert points["state"].isna().to_dict() == {"ddp": False, "fsdp": True}


@pytest.mark.parametrize(
    ("shards", "momenta", "numbers"),
    [
        *[(0, 1, 3.0), (1, 1, 2.25), (2, 1, 1.5), (3, 1, 0.75)],
        *[(3, 0, 0.5), (0, 2, 4.0), (1, 2, 2.5), (3, 2, 1.0)],
    ],
)
def test_the_state_of_a_rank_is_that_of_zero(shards: int, momenta: int, numbers: float) -> None:
    assert state_bytes(100, shards, 4, momenta) == 4 * 100 * numbers


def test_adamw_keeps_two_numbers_of_each_weight(tree: Tree, make_run: MakeRun) -> None:
    for optimizer in ("sgd", "adamw", "lamb"):
        made(make_run, "ddp", 9.0, 1.5, optimizer=optimizer)
        made(make_run, "fsdp", 9.0, 0.5, optimizer=optimizer)
    points = memory_points(runs_table(tree)).set_index("label")
    numbers = (points["state"] * GIB / 4 / PARAMETERS).round(6).dropna().to_dict()
    assert numbers == {
        "PyTorch-DDP, SGD": 3.0,
        "PyTorch-FSDP, SGD": 1.5,
        "PyTorch-DDP, AdamW": 4.0,
        "PyTorch-FSDP, AdamW": 2.0,
    }


def test_one_strategy_is_no_comparison(tree: Tree, make_run: MakeRun) -> None:
    """The record of the other one has no memory."""
    made(make_run, "ddp", None, 1.5)
    made(make_run, "fsdp", None, None)
    assert memory_points(runs_table(tree)).empty


def test_hsdp_divides_the_state_by_its_group(tree: Tree, make_run: MakeRun) -> None:
    """AdamW in fp32: 16 bytes a weight (Rajbhandari et al. 2020)."""
    common = {"optimizer": "adamw", "gpus_per_node": 4}
    made(make_run, "ddp", 9.0, 1.5, **common)
    made(make_run, "fsdp", 9.0, 0.5, **common)
    made(make_run, "fsdp", 9.0, 0.75, **common, fsdp_shards=2)
    points = memory_points(runs_table(tree))
    bytes_each = (points["state"] * GIB / PARAMETERS).round(6).tolist()
    assert bytes_each == [16 / 4, 16 / 2, 16.0]


def test_memory_is_drawn_against_throughput(tree: Tree, make_run: MakeRun) -> None:
    made(make_run, "ddp", 9.0, 1.5)
    made(make_run, "ddp", 9.0, 1.25, repeat=1)
    made(make_run, "ddp", 9.0, 1.125, ddp_bucket_view=True)
    made(make_run, "fsdp", 9.0, 0.5)
    points = memory_points(runs_table(tree))
    figure = QUESTIONS["memory_against_throughput"].draw(points)
    (ax,) = figure.axes
    drawn = {
        (float(x), float(y)) for line in ax.lines for x, y in zip(*line.get_data(), strict=True)
    }
    for row in points.to_dict("records"):
        assert (row["value"], row["throughput"]) in drawn
        starts = (map(float, row[name].split(";")) for name in ("repeats", "speeds"))
        if row["n"] > 1:
            assert set(zip(*starts, strict=True)) <= drawn
    names = [text.get_text() for text in ax.texts]
    assert names == ["PyTorch-FSDP", "bucket view", "PyTorch-DDP"]


def test_the_first_sentence_is_what_saves_memory_at_the_same_speed(
    tree: Tree, make_run: MakeRun
) -> None:
    for repeat in range(3):
        made(make_run, "ddp", 9.0, 2.0, repeat=repeat)
        made(make_run, "ddp", 9.0, 1.5, ddp_bucket_view=True, repeat=repeat)
        made(make_run, "fsdp", 9.0, 0.5, repeat=repeat)
    (first, *_) = QUESTIONS["memory_against_throughput"].sentences(memory_points(runs_table(tree)))
    assert first.startswith("PyTorch-FSDP needs 25 % of the memory of PyTorch-DDP at 1.00")
    assert first.endswith("at 1.00 [1.00, 1.00] times its throughput (equivalent).")

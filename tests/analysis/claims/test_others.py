"""Published throughputs beside ours, where the GPUs are of one kind."""

import pytest

from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.claims import others
from ddl_core.analysis.paper import read_paper
from ddl_core.analysis.tables import empty_table, runs_table
from ddl_core.records.paths import Tree
from tests.analysis.conftest import MakeRun

PAPER = read_paper()
GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda"}


def test_without_a_gpu_nothing_stands_beside_them(make_run: MakeRun, tree: Tree) -> None:
    make_run()
    for runs in (empty_table(), runs_table(tree.runs)):
        table = others.beside(arm_table(runs), PAPER)
        assert len(table) > 50
        assert table["per_gpu"].gt(0).all()
        assert table["ours_per_gpu"].isna().all()


def test_the_same_kind_of_gpu_and_network_is_compared_per_gpu(
    make_run: MakeRun, tree: Tree
) -> None:
    make_run(20.0, system=GPU | {"accelerator": "NVIDIA A100-SXM4-40GB"}, strategy="ddp", nodes=4)
    table = others.beside(arm_table(runs_table(tree.runs)), PAPER)
    ours = table.dropna(subset="ours_per_gpu")
    assert ours["ours_per_gpu"].unique() == pytest.approx([320 / 20 / 4])
    assert ours["hardware"].str.contains("A100").all()
    assert set(ours["model"]) == {"resnet50"}
    assert (ours["ratio"] * ours["per_gpu"]).tolist() == pytest.approx([4.0] * len(ours))


def test_doubtful_numbers_are_left_out() -> None:
    doubtful = PAPER.performance[~PAPER.performance["evidence"].isin(others.READ)]
    assert not doubtful.empty
    shown = others.beside(arm_table(empty_table()), PAPER)
    throughputs = PAPER.performance[PAPER.performance["quantity"] == "throughput"]
    assert len(shown) == len(throughputs) - (doubtful["quantity"] == "throughput").sum()

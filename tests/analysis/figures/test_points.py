"""What each figure shows, before anything is drawn."""

import itertools

import pandas as pd
import pytest

from ddl_tools.analysis import paper as published
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS, efficiency, scaling
from ddl_tools.analysis.tables import empty_table, runs_table
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.paper import covers
from tests.analysis.conftest import MakeRun
from tests.analysis.drawn import PAPER, configurations, points_of


def test_a_statement_about_dali_speaks_of_both_modes() -> None:
    assert all(covers("dali", name) for name in ("dali_cpu", "dali_gpu"))
    assert covers("dali_gpu", "dali_gpu")
    for stated, name in (("dali_cpu", "dali_gpu"), ("dali", "native")):
        assert not covers(stated, name)


def test_statements_stand_in_panels_of_their_network_and_loader() -> None:
    table = efficiency.efficiency_points(configuration_table(empty_table()), PAPER)
    assert list(table["panel"].unique()) == [
        f"the paper (JUWELS Booster): {name}"
        for name in ("DALI, ResNet50", "native, ResNet50", "DALI, ResNet101", "DALI, ResNet152")
    ]
    unnamed = table[table["statement"] == "E13"]  # neither framework nor network
    assert len(unnamed) == 1
    assert unnamed["strategy"].isna().all()
    assert sorted(table[table["statement"] == "E07"]["strategy"]) == ["ddp", "deepspeed", "horovod"]
    assert set(table["statement"]) == set(published.efficiency_points(PAPER)["statement"])
    derived = table[table["source"] == "derived"].set_index("statement")["value"]
    assert derived.round(3).to_dict() == {"D04": 0.914, "D06": 0.797, "D07": 0.844}


@pytest.mark.usefixtures("laptop")
def test_one_size_is_in_no_figure_of_scaling(tree: Tree) -> None:
    made = configurations(tree)
    efficiencies = efficiency.efficiency_points(made, PAPER)
    for table in (efficiencies, scaling.throughput_points(made)):
        ours = table[table["source"] == "measured"]
        assert set(ours["strategy"]) == {"ddp"}
        assert ours["world_size"].tolist() == [1, 2, 1, 2]
        assert set(ours["base_world_size"]) == {1}
    panels = efficiencies[efficiencies["source"] == "measured"].groupby("panel")["loader"].unique()
    assert sorted(map(list, panels)) == [["native"], ["synthetic"]]


def test_throughput_keeps_lost_configurations_as_rows(tree: Tree, laptop: MakeRun) -> None:
    laptop(strategy="ddp", gpus_per_node=4, status="failed", rows=[])
    table = scaling.throughput_points(configurations(tree))
    lost = table[table["world_size"].eq(4) & table["source"].eq("measured")]
    assert lost[["n", "failed"]].to_numpy().tolist() == [[0, 1]]
    assert lost["value"].isna().all()


def test_a_setting_of_one_size_is_left_out_beside_larger_ones(tree: Tree, laptop: MakeRun) -> None:
    def panels() -> set[str]:
        table = scaling.throughput_points(configurations(tree))
        return set(table[table["source"] == "measured"]["panel"])

    before = panels()
    laptop(strategy="ddp", gpus_per_node=2, study="other", local_batch_size=7)
    laptop(strategy="ddp", gpus_per_node=4, study="other", status="failed", rows=[])
    assert panels() == before
    laptop(strategy="ddp", gpus_per_node=4, study="other", local_batch_size=7)
    assert panels() > before


@pytest.mark.usefixtures("laptop")
def test_columns_and_types_do_not_depend_on_the_data(tree: Tree) -> None:
    for name in ("throughput_vs_workers", "efficiency", "loader_bound"):
        full, empty = (points_of(name, runs) for runs in (runs_table(tree), empty_table()))
        assert full.dtypes.to_dict() == empty.dtypes.to_dict(), name


def test_few_ranks_do_not_share_a_panel_with_the_paper(tree: Tree, make_run: MakeRun) -> None:
    for nodes in (1, 2):
        make_run(20 / nodes, strategy="ddp", nodes=nodes)
    for nodes in (4, 8):
        make_run(20 / nodes, strategy="ddp", nodes=nodes, study="cluster")
    made = configurations(tree)
    native = "native \N{MIDDLE DOT} {}: 96 px, batch 16, fp32, ResNet50"
    sources = efficiency.efficiency_points(made, PAPER).groupby("panel")["source"].unique()
    assert sorted(sources[native.format("cluster")]) == ["measured", "stated"]
    assert sorted(sources[native.format("laptop")]) == ["measured"]
    few = efficiency.efficiency_points(made[made["study"] == "laptop"], PAPER)
    assert "the paper (JUWELS Booster): native, ResNet50" in set(few["panel"])


def test_formats_share_panels_and_are_rows_of_their_own(tree: Tree, make_run: MakeRun) -> None:
    for loader, data_format in itertools.product(("native", "turbo"), ("folder", "tfrecord")):
        for nodes in (4, 8):
            fields = {"loader": loader, "data_format": data_format, "nodes": nodes}
            make_run(20 / nodes, strategy="ddp", **fields)
    made = configurations(tree)
    stated = efficiency.efficiency_points(made, PAPER)
    for table in (stated, scaling.throughput_points(made)):
        ours = table[table["study"].notna()]
        assert ours["panel"].nunique() == 1
        assert ours.groupby("data_format").size().to_dict() == {"folder": 4, "tfrecord": 4}
    formats = stated[stated["source"] == "stated"].groupby("loader")["data_format"].unique()
    assert formats.map(list).to_dict() == {
        "native": ["folder"],
        "dali": ["tfrecord"],
        "dali_cpu": ["tfrecord"],
        "dali_gpu": ["tfrecord"],
    }


def test_loading_alone_is_in_no_figure_of_training(tree: Tree, make_run: MakeRun) -> None:
    make_run(strategy="ddp", nodes=4, work="load")
    make_run(10.0, strategy="ddp", nodes=8, work="load")
    runs = runs_table(tree)
    for name in QUESTIONS:
        studies = points_of(name, runs).get("study", pd.Series(dtype=str))
        assert studies.isna().all(), name

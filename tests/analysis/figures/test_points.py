"""What each figure shows, before anything is drawn."""

import pandas as pd
import pytest

from ddl_core.errors import DataError
from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import scaling
from ddl_tools.analysis.paper import Paper, covers, read_paper
from ddl_tools.analysis.questions import QUESTIONS
from ddl_tools.analysis.tables import empty_table, runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import MakeRun

NATIVE = [("native", "synthetic")]


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read_paper()


def test_missing_paper_says_what_to_do(tmp_path) -> None:
    with pytest.raises(DataError, match="git checkout data"):
        read_paper(tmp_path)


def test_dali_covers_both_of_its_modes() -> None:
    assert covers("dali", "dali_cpu")
    assert covers("dali", "dali_gpu")
    assert not covers("dali_cpu", "dali_gpu")
    assert not covers("dali", "native")


def test_dali_of_the_paper_had_readers_of_its_own() -> None:
    assert covers("dali", "dali_reader_gpu")
    assert covers("dali_gpu", "dali_reader_gpu")
    assert not covers("dali_cpu", "dali_reader_gpu")
    assert not covers("dali_reader_cpu", "dali_cpu")


def test_statement_without_a_framework_is_one_point(paper: Paper) -> None:
    table = scaling.efficiency_points(
        configuration_table(empty_table()), paper, NATIVE, models=["resnet50"]
    )
    unnamed = table[table["statement"] == "E13"]
    assert len(unnamed) == 1
    assert unnamed["strategy"].isna().all()
    assert sorted(table[table["statement"] == "E07"]["strategy"]) == ["ddp", "deepspeed", "horovod"]
    assert set(table["loader"]) == {"native"}


def test_derived_points_do_not_use_the_printed_equations(paper: Paper) -> None:
    table = scaling.efficiency_points(configuration_table(empty_table()), paper, [("dali_cpu",)])
    derived = table[table["source"] == "derived"]
    assert derived["value"].round(3).tolist() == [0.914, 0.797, 0.844]


def test_panels_by_loader_repeat_what_covers_both(paper: Paper) -> None:
    table = scaling.efficiency_points(
        configuration_table(empty_table()),
        paper,
        [("dali_cpu",), ("dali_gpu",)],
        models=["resnet50"],
    )
    assert list(table["panel"].unique()) == [
        "DALI (CPU) · the paper (JUWELS Booster)",
        "DALI (GPU) · the paper (JUWELS Booster)",
    ]
    by_model = scaling.efficiency_points(
        configuration_table(empty_table()), paper, [("dali_cpu",), ("native",)]
    )
    assert by_model["panel"].iloc[0].startswith("DALI")
    panels = table.groupby("statement")["panel"].nunique()
    assert panels[["E02", "E03", "E10"]].tolist() == [1, 1, 2]


def test_arm_without_a_second_size_is_not_in_an_efficiency(
    tree: Tree, laptop: MakeRun, paper: Paper
) -> None:
    table = scaling.efficiency_points(configuration_table(runs_table(tree.runs)), paper, NATIVE)
    ours = table[table["source"] == "measured"]
    assert set(ours["strategy"]) == {"ddp"}
    assert ours["world_size"].tolist() == [1, 2, 1, 2]
    assert set(ours["base_world_size"]) == {1}


def test_figure_of_models_leaves_out_a_study_of_one_model(
    tree: Tree, laptop: MakeRun, paper: Paper
) -> None:
    runs = runs_table(tree.runs)
    table = QUESTIONS["efficiency_by_model"].points(runs, configuration_table(runs), paper)
    assert not (table["source"] == "measured").any()


def test_throughput_keeps_lost_arms_as_rows(tree: Tree, laptop: MakeRun, paper: Paper) -> None:
    laptop(strategy="ddp", gpus_per_node=4, status="failed", rows=[])
    table = scaling.throughput_points(configuration_table(runs_table(tree.runs)), paper)
    lost = table[table["world_size"].eq(4) & table["source"].eq("measured")]
    assert lost[["n", "failed"]].to_numpy().tolist() == [[0, 1]]
    assert lost["value"].isna().all()


def test_setting_of_one_world_size_is_left_out_where_another_has_more(
    tree: Tree, laptop: MakeRun, paper: Paper
) -> None:
    def panels() -> set[str]:
        table = scaling.throughput_points(configuration_table(runs_table(tree.runs)), paper)
        return set(table[table["source"] == "measured"]["panel"])

    before = panels()
    laptop(strategy="ddp", gpus_per_node=2, study="other", local_batch_size=7)
    laptop(strategy="ddp", gpus_per_node=4, study="other", status="failed", rows=[])
    assert panels() == before
    laptop(strategy="ddp", gpus_per_node=4, study="other", local_batch_size=7)
    assert panels() > before


def test_papers_throughput_is_derived_and_has_its_own_panel(paper: Paper) -> None:
    table = scaling.throughput_points(configuration_table(empty_table()), paper)
    assert set(table["source"]) == {"derived"}
    assert table["panel"].nunique() == 1
    first = table[table["statement"] == "D16"].iloc[0]
    assert first["value"] == pytest.approx(90 * 1_281_167 / (13 * 3600), rel=1e-4)


@pytest.mark.parametrize("kind", ["throughput", "efficiency"])
def test_columns_and_types_do_not_depend_on_the_data(
    tree: Tree, laptop: MakeRun, paper: Paper, kind: str
) -> None:
    def table(runs: pd.DataFrame) -> pd.DataFrame:
        arms = configuration_table(runs)
        if kind == "throughput":
            return scaling.throughput_points(arms, paper)
        return scaling.efficiency_points(arms, paper, NATIVE)

    full, empty = table(runs_table(tree.runs)), table(empty_table())
    assert full.dtypes.to_dict() == empty.dtypes.to_dict()


def test_few_workers_do_not_share_a_panel_with_the_paper(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    for nodes in (1, 2):
        make_run(20 / nodes, strategy="ddp", nodes=nodes)
    for nodes in (4, 8):
        make_run(20 / nodes, strategy="ddp", nodes=nodes, study="cluster")
    arms = configuration_table(runs_table(tree.runs))
    table = scaling.efficiency_points(arms, paper, NATIVE)
    sources = table.groupby("panel")["source"].unique().map(sorted).to_dict()
    assert sources == {
        "cluster: 96 px, batch 16, fp32": ["measured", "stated"],
        "laptop: 96 px, batch 16, fp32": ["measured"],
    }
    few = scaling.efficiency_points(arms[arms["study"] == "laptop"], paper, NATIVE)
    assert list(few["panel"].unique()) == [
        "laptop: 96 px, batch 16, fp32",
        "the paper (JUWELS Booster)",
    ]


def test_formats_share_panels_and_are_rows_of_their_own(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    for data_format in ("folder", "tfrecord"):
        for nodes in (4, 8):
            make_run(20 / nodes, strategy="ddp", nodes=nodes, data_format=data_format)
    runs = runs_table(tree.runs)
    arms = configuration_table(runs)
    for table in (
        scaling.efficiency_points(arms, paper, NATIVE),
        scaling.throughput_points(arms, paper),
    ):
        ours = table[table["study"].notna()]
        assert ours["panel"].nunique() == 1
        assert ours.groupby("data_format").size().to_dict() == {"folder": 2, "tfrecord": 2}
    stated = scaling.efficiency_points(arms, paper, [("native", "dali_cpu")])
    formats = stated[stated["source"] == "stated"].groupby("loader")["data_format"].unique()
    assert formats.map(list).to_dict() == {
        "native": ["folder"],
        "dali": ["tfrecord"],
        "dali_cpu": ["tfrecord"],
    }


def test_loading_alone_is_in_no_figure_of_training(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    make_run(strategy="ddp", nodes=4, work="load")
    make_run(10.0, strategy="ddp", nodes=8, work="load")
    runs = runs_table(tree.runs)
    for name, question in QUESTIONS.items():
        table = question.points(runs, configuration_table(runs), paper)
        assert table.get("study", pd.Series(dtype=str)).isna().all(), name


def test_one_model_is_no_comparison_of_models(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    def measured() -> int:
        arms = configuration_table(runs_table(tree.runs))
        table = scaling.efficiency_points(arms, paper, [("native",)], compare="model")
        return int((table["source"] == "measured").sum())

    for nodes in (1, 2):
        make_run(20 / nodes, strategy="ddp", nodes=nodes)
    assert measured() == 0
    for nodes in (1, 2):
        make_run(20 / nodes, strategy="ddp", nodes=nodes, model="resnet101")
    assert measured() == 4


def test_an_arm_of_one_size_is_no_line_over_workers(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    make_run(strategy="horovod", gpus_per_node=2)
    for size in (1, 2):
        make_run(20 / size, strategy="ddp", gpus_per_node=size)
    table = scaling.throughput_points(configuration_table(runs_table(tree.runs)), paper)
    assert set(table.loc[table["source"] == "measured", "strategy"]) == {"ddp"}


def test_synthetic_data_say_nothing_of_the_native_loader(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    for size in (1, 2):
        make_run(20 / size, strategy="ddp", gpus_per_node=size, loader="synthetic")
    runs = runs_table(tree.runs)
    table = QUESTIONS["efficiency_native"].points(runs, configuration_table(runs), paper)
    assert not (table["source"] == "measured").any()

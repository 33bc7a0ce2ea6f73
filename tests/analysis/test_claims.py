"""Verdicts follow from the runs."""

import pandas as pd
import pytest

from ddl_core.analysis import claims
from ddl_core.analysis.arms import arm_table
from ddl_core.analysis.paper import FORMATS, Paper, read_paper
from ddl_core.analysis.tables import empty_table, runs_table
from ddl_core.records.paths import PAPER, Tree
from tests.analysis.conftest import MACHINE, MakeRun

GPU = {"cpu": "Example CPU", "cpu_cores": 48, "device": "cuda", "accelerator": "Example GPU"}
SPREAD = (1.0, 1.01, 0.99)


@pytest.fixture(scope="module")
def paper() -> Paper:
    return read_paper()


def verdicts(tree: Tree, paper: Paper, quantity: str, claim: str) -> list[str]:
    table = claims.speed_claims(arm_table(runs_table(tree.runs)), paper, quantity)
    return table[table["claim"].str.startswith(claim)]["verdict"].tolist()


def measure(make_run: MakeRun, wall_s: float, system: dict = GPU, **fields: object) -> None:
    for repeat, factor in enumerate(SPREAD):
        make_run(wall_s * factor, system=system, strategy="ddp", repeat=repeat, **fields)


def three_models(make_run: MakeRun, deep: float, shallow: float, **common: object) -> None:
    """Scale two networks from 4 to 8 workers with these efficiencies."""
    for model, efficiency in (("resnet152", deep), ("resnet50", shallow)):
        measure(make_run, 40, model=model, nodes=4, **common)
        measure(make_run, 20 / efficiency, model=model, nodes=8, **common)


def test_without_runs_nothing_can_be_said(paper: Paper) -> None:
    for quantity in ("throughput", "parallel_efficiency"):
        table = claims.speed_claims(arm_table(empty_table()), paper, quantity)
        assert len(table) > 10
        assert set(table["verdict"]) == {claims.UNDECIDED}
        assert set(table["why"]) == {"no such runs"}
    assert set(claims.values(arm_table(empty_table()), paper)["verdict"]) == {claims.UNDECIDED}


def arms_with_dali(tree: Tree):  # type: ignore[no-untyped-def]
    """Return the arms with the synthetic loader taken for DALI on the CPU."""
    arms = arm_table(runs_table(tree.runs))
    invented = arms["loader"] == "synthetic"
    arms.loc[invented, ["loader", "data_format"]] = ["dali_cpu", "tfrecord"]
    return arms


@pytest.mark.parametrize(
    ("dali_s", "verdict"),
    [(10.0, claims.SUPPORTED), (40.0, claims.CONTRADICTED), (20.39, claims.UNDECIDED)],
)
def test_greater(tree: Tree, make_run: MakeRun, paper: Paper, dali_s: float, verdict: str) -> None:
    measure(make_run, 20.0, nodes=8)
    measure(make_run, dali_s, nodes=8, loader="synthetic")
    table = claims.speed_claims(arms_with_dali(tree), paper, "throughput").set_index("claim")
    row = table.loc["DALI more than native (PyTorch-DDP, ResNet50, 4 to 512 GPUs)"]
    assert row["verdict"] == verdict
    assert row["ours"].startswith("8 workers: ")
    assert (row["why"] == "the intervals overlap") == (verdict == claims.UNDECIDED)


@pytest.mark.parametrize(
    ("deep", "shallow", "verdict"),
    [
        (0.90, 0.70, claims.CONTRADICTED),
        (0.90, 0.86, claims.UNDECIDED),
    ],
)
def test_similar(
    tree: Tree, make_run: MakeRun, paper: Paper, deep: float, shallow: float, verdict: str
) -> None:
    three_models(make_run, deep, shallow, loader="synthetic")
    table = claims.speed_claims(arms_with_dali(tree), paper, "parallel_efficiency").set_index(
        "claim"
    )
    row = table.loc["ResNet152 like ResNet50 (PyTorch-DDP, DALI (CPU), 4 to 16 GPUs)"]
    assert row["verdict"] == verdict


def test_cores_of_a_cpu_decide_nothing(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    measure(make_run, 20.0, MACHINE, nodes=8)
    measure(make_run, 10.0, MACHINE, nodes=8, loader="synthetic")
    table = claims.speed_claims(arms_with_dali(tree), paper, "throughput").set_index("claim")
    row = table.loc["DALI more than native (PyTorch-DDP, ResNet50, 4 to 512 GPUs)"]
    assert (row["verdict"], row["why"]) == (claims.UNDECIDED, "measured on a CPU")
    assert row["ours"]


@pytest.mark.parametrize(
    ("native", "dali", "verdict"),
    [
        ("folder", "tfrecord", claims.SUPPORTED),
        ("tfrecord", "tfrecord", claims.UNDECIDED),
        ("folder", "folder", claims.UNDECIDED),
    ],
)
def test_loaders_count_with_the_formats_of_the_paper(
    tree: Tree, make_run: MakeRun, paper: Paper, native: str, dali: str, verdict: str
) -> None:
    measure(make_run, 20.0, nodes=8, data_format=native)
    measure(make_run, 10.0, nodes=8, loader="dali_gpu", data_format=dali)
    table = claims.speed_claims(arm_table(runs_table(tree.runs)), paper, "throughput")
    row = table.set_index("claim").loc[
        "DALI more than native (PyTorch-DDP, ResNet50, 4 to 512 GPUs)"
    ]
    assert row["verdict"] == verdict


def test_formats_are_those_of_the_papers_settings() -> None:
    settings = pd.read_csv(PAPER / "settings.csv").set_index("name")["value"]
    assert settings["native_format"] == "jpeg folders"
    assert settings["dali_format"] == "tfrecord"
    assert FORMATS["native"] == "folder"
    assert {FORMATS[name] for name in FORMATS if name.startswith("dali")} == {"tfrecord"}


def test_loading_alone_decides_nothing(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    measure(make_run, 20.0, nodes=8)
    measure(make_run, 10.0, nodes=8, loader="dali_gpu", data_format="tfrecord", work="load")
    table = claims.speed_claims(arm_table(runs_table(tree.runs)), paper, "throughput")
    assert set(table["verdict"]) == {claims.UNDECIDED}


def test_other_numbers_of_workers_decide_nothing(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    measure(make_run, 20.0, nodes=2)
    measure(make_run, 10.0, nodes=2, loader="synthetic")
    table = claims.speed_claims(arms_with_dali(tree), paper, "throughput")
    assert set(table["verdict"]) == {claims.UNDECIDED}


def test_open_limit_counts_at_the_end_that_is_given(
    tree: Tree, make_run: MakeRun, paper: Paper
) -> None:
    """ "DeepSpeed is fastest on few GPUs" is about 4, "DDP on many" about 512."""
    table = claims.speed_claims(arm_table(empty_table()), paper, "throughput")
    few = table[table["statement"] == "O03"]["claim"]
    many = table[table["statement"] == "O04"]["claim"]
    assert few.str.endswith("4 GPUs)").all()
    assert many.str.endswith(", 512 GPUs)").all()


@pytest.mark.parametrize(
    ("efficiency", "verdict"),
    [(0.40, claims.SUPPORTED), (0.60, claims.CONTRADICTED), (0.44, claims.UNDECIDED)],
)
def test_stated_bound(
    tree: Tree, make_run: MakeRun, paper: Paper, efficiency: float, verdict: str
) -> None:
    measure(make_run, 640.0, nodes=4)
    measure(make_run, 10.0 / efficiency, nodes=256)
    table = claims.values(arm_table(runs_table(tree.runs)), paper).set_index("statement")
    assert table.loc["E04", "verdict"] == verdict
    assert table.loc["E04", "claim"] == "E <0.44 (PyTorch-DDP, native, ResNet50, 256 GPUs)"


def test_another_base_decides_nothing(tree: Tree, make_run: MakeRun, paper: Paper) -> None:
    measure(make_run, 640.0, nodes=2)
    measure(make_run, 10.0, nodes=256)
    table = claims.values(arm_table(runs_table(tree.runs)), paper).set_index("statement")
    assert table.loc["E04", "verdict"] == claims.UNDECIDED

"""The figures of several libraries: each configuration is of one of them."""

import itertools
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from ddl_tools.analysis.configurations import configuration_table
from ddl_tools.analysis.figures import QUESTIONS
from ddl_tools.analysis.tables import runs_table
from ddl_tools.records.paths import Tree
from tests.analysis.conftest import CODE, MakeRun, curve
from tests.analysis.drawn import configurations, points_of, words

HOROVOD = ("torch", "tensorflow", "mxnet")  # that it works with
CONFIGURATIONS = [
    ("torch", "ddp"),
    *((library, "horovod") for library in HOROVOD),
    ("tensorflow", "multiworker"),
    ("keras", "spmd"),
    ("mxnet", "kvstore"),
]
OF_SEVERAL = ["time_to_accuracy", "accuracy_by_library"]
OVER_WORKERS = ["comparison", "throughput_vs_workers"]


def system(library: str) -> dict[str, Any]:
    """Return what a library has of its own in a record: software, threads and more."""
    return {
        "cpu": "Example CPU",
        "cpu_cores": 2,
        "device": "cpu",
        "threads": {f"{library}_pool": 1},
        "settings": {library: True},
        "environment": {"OMP_NUM_THREADS": "1", f"{library.upper()}_X": "1"},
        "communication": {"library": library},
        "affinity": {"cores_least": 2, "cores_most": 2, "shared": True},
    }


def trained(
    make_run: MakeRun,
    library: tuple[str, str],
    wall_s: float = 10.0,
    top1: Sequence[float] = (0.5, 0.75, 0.8),
    **fields: Any,
) -> None:
    """Write a run that trained three epochs and evaluated after each."""
    rows = curve(top1, wall_s=wall_s)
    asked = {"framework": library[0], "strategy": library[1], "dataset": "fashion_mnist", **fields}
    make_run(rows=rows, study="libraries", system=system(library[0]), **asked)


@pytest.fixture
def every_configuration(make_run: MakeRun) -> None:
    """Write each with one and two ranks and two batches, three times."""
    for (place, library), workers, batch, repeat in itertools.product(
        enumerate(CONFIGURATIONS), (1, 2), (16, 32), range(3)
    ):
        wall_s = (10 + place + 0.3 * repeat) / (0.9 * workers if workers > 1 else 1) * 20 / batch
        accuracies = [0.5, 0.75 + 0.01 * repeat, 0.8 + 0.01 * repeat - 0.002 * place]
        fields = {"gpus_per_node": workers, "local_batch_size": batch, "repeat": repeat}
        trained(make_run, library, wall_s, accuracies, **fields)


def points(name: str, tree: Tree) -> pd.DataFrame:
    return points_of(name, runs_table(tree))


@pytest.mark.usefixtures("every_configuration")
def test_libraries_share_a_setting_and_are_lines_over_batches(tree: Tree) -> None:
    """Each has software and threads of its own, which divides its own runs alone."""
    table = configurations(tree)
    assert set(table["setting"]) == {f"libraries: 96 px, batch {size}, fp32" for size in (16, 32)}
    assert set(table["n"]) == {3}
    assert len(table) == 2 * 2 * len(CONFIGURATIONS)
    table = points("throughput_vs_batch_size", tree)
    assert table["panel"].unique().tolist() == ["native · libraries: 96 px, fp32, ResNet50"]
    assert table["line"].nunique() == 2 * len(CONFIGURATIONS)
    assert (table.groupby("line")["local_batch_size"].agg(list).map(tuple) == (16, 32)).all()
    assert set(table["n"]) == {3}


def test_another_version_of_a_library_divides_its_runs_alone(tree: Tree, make_run: MakeRun) -> None:
    for repeat, one in itertools.product((0, 1), (("torch", "ddp"), ("tensorflow", "horovod"))):
        changed = one[0] == "tensorflow" and repeat == 1
        code = {"provenance": CODE | {"packages": {"tensorflow": "99"}}} if changed else {}
        trained(make_run, one, gpus_per_node=2, repeat=repeat, **code)
    table = configuration_table(runs_table(tree))
    assert table.set_index("framework")["n"].to_dict()["torch"] == 2
    assert table.loc[table["framework"] == "tensorflow", "n"].tolist() == [1, 1]
    assert table["setting"].nunique() == 3


def test_one_batch_is_no_line(tree: Tree, make_run: MakeRun) -> None:
    trained(make_run, ("torch", "ddp"), local_batch_size=16)
    trained(make_run, ("torch", "ddp"), local_batch_size=32, gpus_per_node=2)
    assert points("throughput_vs_batch_size", tree).empty


def test_seconds_to_accuracy_are_those_of_training(tree: Tree, make_run: MakeRun) -> None:
    for workers, wall_s in ((1, 10.0), (2, 6.0)):
        trained(make_run, ("torch", "ddp"), wall_s, gpus_per_node=workers)
    table = points("time_to_accuracy", tree).set_index("world_size")
    assert table["value"].to_dict() == {1: 20.0, 2: 12.0}, "two epochs of three"
    assert table["epochs"].tolist() == [2, 2]
    assert table["target"].unique().tolist() == [0.6]


def test_where_not_every_run_arrives_there_is_no_time(tree: Tree, make_run: MakeRun) -> None:
    for workers, repeat in itertools.product((1, 2), (0, 1)):
        late = workers == 2 and repeat == 1
        top1 = (0.4, 0.5, 0.55) if late else (0.4, 0.5, 0.65)
        trained(make_run, ("torch", "ddp"), top1=top1, gpus_per_node=workers, repeat=repeat)
    table = points("time_to_accuracy", tree).set_index("world_size")
    assert table["value"].isna().to_dict() == {1: False, 2: True}
    assert table["reached"].to_dict() == {1: 2, 2: 1}
    said = words(QUESTIONS["time_to_accuracy"].draw(table.reset_index()))
    assert "Configurations not drawn, as not every run arrived: 1." in said


def test_an_accuracy_is_of_one_library(tree: Tree, make_run: MakeRun) -> None:
    for top1, library in zip((0.6, 0.7, 0.8), HOROVOD, strict=True):
        trained(make_run, (library, "horovod"), top1=(0.1, 0.2, top1), gpus_per_node=2)
    table = points("accuracy_by_library", tree).set_index("framework")
    assert table["value"].to_dict() == {"torch": 0.6, "tensorflow": 0.7, "mxnet": 0.8}
    assert QUESTIONS["accuracy_by_library"].figure(table) is None
    (sentence,) = QUESTIONS["accuracy_by_library"].sentences(table)
    assert "with 2 ranks: 60.0 to 80.0 %" in sentence


def test_one_library_at_one_size_has_none_of_these(tree: Tree, make_run: MakeRun) -> None:
    trained(make_run, ("torch", "ddp"))
    assert all(points(name, tree).empty for name in OF_SEVERAL)


@pytest.mark.parametrize("name", [*OVER_WORKERS, "time_to_accuracy", "throughput_vs_batch_size"])
def test_draws_and_names_every_library(name: str, tree: Tree, every_configuration: None) -> None:
    figure = QUESTIONS[name].draw(points(name, tree))
    assert any(ax.lines for ax in figure.axes)
    assert "Discontinued" in words(figure)
    if name in OVER_WORKERS:
        legend = {text.get_text() for text in figure.legends[0].get_texts()}
        for label in ("TensorFlow, Horovod", "PyTorch, Horovod", "PyTorch-DDP"):
            assert any(text.startswith(label) for text in legend)
        gone = "Discontinued: MXNet, Horovod; MXNet, KVStore; TensorFlow, Horovod."
        assert gone in words(figure)

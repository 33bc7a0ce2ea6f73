from pathlib import Path
from typing import Any

import pytest

from ddl_core.errors import DataError, SpecError
from ddl_core.records.paths import Tree
from ddl_core.records.probe import AllReduce, Answer, ProbeRecord, write_probe
from ddl_core.scaling.calibrate import Calibrated, calibrate
from ddl_core.scaling.collectives import Network, all_reduce
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.spec.run import RunSpec
from tests.analysis.conftest import MACHINE, MakeRun, make_run, tree  # noqa: F401

IMAGES = 320  # of an epoch: ten steps of 32
TRUE = Machine(1.0, Network(4e8), framework_s=0.1, stall_s=0.02)


def planted(make: MakeRun, strategy: str, workers: int, **fields: Any) -> None:
    """Write a run that takes what the model says; a batch is 16, so 320/16/G steps an epoch."""
    training = Training(resnet("resnet50", 96), strategy, 16)
    step = float(predict(TRUE, training, workers).step_s[0])
    make(
        step * IMAGES / 16 / workers,
        strategy=strategy,
        gpus_per_node=1,
        nodes=workers,
        loader="synthetic",
        **fields,
    )


def found(tree: Tree, strategy: str = "ddp") -> Calibrated:  # noqa: F811
    return calibrate(tree, "laptop", strategy, "native", "resnet50", noise=0.01)


def write_all_reduces(tree: Tree) -> None:  # noqa: F811
    """Write what a probe of four ranks would have measured on that network."""
    sizes = [
        AllReduce(bytes=size, operations=10, seconds=took, seconds_min=took, seconds_max=took)
        for size in (2**20, 2**24, 2**26)
        for took in [float(all_reduce(size, 4, TRUE.network))]
    ]
    answer = Answer(
        rank=0, local_rank=0, host="a", cores=[0], visible={}, wanted_interfaces={}, interfaces=[],
        shared_memory_bytes=0, open_files=(1, 1), caches=[], all_reduce=sizes,
    )  # fmt: skip
    spec = RunSpec(strategy="ddp", nodes=4, gpus_per_node=1)
    record = ProbeRecord(name="one", site=None, spec=spec, system=MACHINE, answers=[answer])
    directory = tree.probes / "one"
    directory.mkdir(parents=True)
    write_probe(directory, record)


def test_one_worker_and_an_all_reduce_tell_all_apart(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "single", 1)
    for workers in (1, 2, 4):
        planted(make_run, "ddp", workers)
    write_all_reduces(tree)
    calibrated = found(tree)
    assert len(calibrated.measured) == 7
    best = calibrated.fitted.best
    assert best["compute_s"] == pytest.approx(1.0, rel=0.02)
    assert best["framework_s"] == pytest.approx(0.1, rel=0.1)
    assert best["bandwidth"] == pytest.approx(4e8, rel=0.05)
    estimates = calibrated.fitted.estimates
    assert estimates["compute_s"].known == estimates["bandwidth"].known == "identified"
    expected = predict(TRUE, calibrated.training, [16]).throughput[0]
    band = calibrated.throughput([16])
    assert band.low[0] <= expected <= band.high[0]
    assert band.value[0] == pytest.approx(expected, rel=0.05)


def test_two_sizes_alone_do_not_tell_a_slow_link_from_late_ranks(
    tree: Tree,  # noqa: F811
    make_run: MakeRun,  # noqa: F811
) -> None:
    for workers in (1, 2):
        planted(make_run, "ddp", workers)
    estimates = found(tree).fitted.estimates
    assert estimates["bandwidth"].known != "identified"
    assert estimates["stall_s"].known != "identified"


def test_a_loader_alone_tells_its_rate(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    for workers in (1, 2):
        planted(make_run, "ddp", workers)
    make_run(2.0, strategy="ddp", gpus_per_node=1, work="load")
    estimates = found(tree).fitted.estimates
    assert estimates["rank_rate"].low < IMAGES / 2.0 * 1.02
    rates = [estimates[name].value for name in ("rank_rate", "node_rate")]
    assert min(rates) == pytest.approx(IMAGES / 2.0, rel=0.05)


def test_nothing_measured_is_said(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    with pytest.raises(DataError, match="no completed run of strategy='ddp', loader='native'"):
        found(tree)
    planted(make_run, "single", 1)
    with pytest.raises(DataError, match="no completed run of strategy='ddp'"):
        found(tree)


def test_one_run_says_nothing_about_others(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "ddp", 1)
    with pytest.raises(DataError, match="a fit needs two measurements at least, not 1"):
        found(tree)


def test_runs_of_two_machines_are_not_mixed(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "ddp", 1)
    planted(make_run, "ddp", 2, system=MACHINE | {"cpu": "Another CPU"})
    with pytest.raises(DataError, match="several values of hardware: Another CPU, Example"):
        found(tree)


def test_runs_of_two_sizes_of_image_are_not_mixed(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "ddp", 1)
    planted(make_run, "ddp", 2, image_size=64)
    with pytest.raises(DataError, match="several values of image_size: 64, 96"):
        found(tree)


def test_runs_that_send_other_messages_are_not_mixed(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "ddp", 1)
    planted(make_run, "ddp", 2)
    planted(make_run, "ddp", 2, ddp_compression="fp16")
    with pytest.raises(DataError, match="several values of ddp_compression: fp16, none"):
        found(tree)


def test_contradictory_records_are_refused(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    planted(make_run, "ddp", 1)
    planted(make_run, "ddp", 2)
    make_run(0.5, strategy="ddp", loader="synthetic", gpus_per_node=1, repeat=1)
    with pytest.raises(DataError, match="contradict each other or the model"):
        found(tree)


def test_a_network_without_gradients_is_named(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    make_run(strategy="ddp", model="alexnet")
    with pytest.raises(SpecError, match="model='alexnet'"):
        calibrate(tree, "laptop", "ddp", "native", "alexnet")


def test_a_run_without_a_warm_epoch_is_named(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    path: Path = make_run(rows=[], strategy="ddp")
    with pytest.raises(DataError, match=f"{path.name} has no warm epoch"):
        found(tree)

"""The calculator beside the committed runs of the emulated cluster; nothing is fitted."""

import statistics

import pytest

from ddl_core.errors import DataError
from ddl_tools.emulation.nodes import ON_THE_WIRE
from ddl_tools.records.paths import Tree
from ddl_tools.scaling.communication import Exchange, Network, exposed_s
from ddl_tools.scaling.emulated import read_runs, validate
from tests.analysis.conftest import MakeRun
from tests.analysis.emulated import emulate


def test_steps_of_the_committed_runs_are_calculated_within_five_percent() -> None:
    steps = validate()
    deepspeed = ["DeepSpeed, ZeRO stage 0", "DeepSpeed, ZeRO stage 1"]
    ddp = ["PyTorch-DDP", "PyTorch-DDP, bucket 5 MiB", "PyTorch-DDP, bucket 1 MiB"]
    assert {one.framework for one in steps} == {*ddp, "Horovod", *deepspeed}
    assert {one.nodes for one in steps} == {2, 4, 16}
    assert max(abs(one.error) for one in steps) < 0.05
    assert statistics.median(abs(one.error) for one in steps) < 0.015
    for mbit in (6.0, 12.0, 24.0):  # what overlaps comes first, measured and calculated
        here = {one.framework: one for one in steps if (one.nodes, one.link_mbit) == (4, mbit)}
        assert sorted(here, key=lambda name: here[name].measured_s)[-2:] == deepspeed
        assert sorted(here, key=lambda name: here[name].predicted_s)[-2:] == deepspeed


def test_inputs_are_step_and_rate_of_one_node(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run)
    emulate(make_run, 0.5, nodes=2)
    emulate(make_run, 0.25, nodes=2, repeat=1)
    (one,) = validate(tree, "emulation")
    spec = read_runs(tree, "emulation")[-1].spec
    step = 10.0 * spec.local_batch_size / 320
    assert one.compute_s == pytest.approx(step)
    assert (one.n, one.measured_s) == (2, pytest.approx(3 * step))
    network = Network(0.98 * spec.emu_link_mbit * 1e6 / 8 / ON_THE_WIRE)
    exposed = exposed_s(Exchange.of(spec), step, network, 2)
    assert one.predicted_s == pytest.approx(step + exposed[0])
    assert one.measured_efficiency == pytest.approx(1 / 3)


def test_only_valid_runs_are_read(tree: Tree, make_run: MakeRun) -> None:
    emulate(make_run, other_cpu_share=0.5)
    with pytest.raises(DataError, match="no valid emulated run"):
        validate(tree, "emulation")
    emulate(make_run, 0.5, nodes=2)
    with pytest.raises(DataError, match="on one node"):
        validate(tree, "emulation")

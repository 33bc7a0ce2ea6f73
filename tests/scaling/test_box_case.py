"""The cluster in a box: what was planted is found, held-out runs judge, unfaithful ones do not."""

import numpy as np
import pytest

from ddl_core.emulation.nodes import ON_THE_WIRE
from ddl_core.errors import DataError
from ddl_core.records.paths import Tree
from ddl_core.scaling.box_case import (
    MORE,
    SLOWER,
    Timed,
    fit_series,
    judge_box,
    read_runs,
    series_of,
)
from ddl_core.scaling.box_checks import find_delays, find_links, twins
from ddl_core.scaling.collectives import Network
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict
from ddl_core.spec.run import RunSpec
from tests.analysis.conftest import MakeRun, make_run, tree  # noqa: F401
from tests.analysis.emulated import emulate
from tests.fields import EMULATED

COSTS = {"framework_s": 0.02, "latency_s": 0.004}
MBIT = (40.0, 20.0, 10.0)


def timed(nodes: int, mbit: float = 20.0, off: float = 1.0, **fields: object) -> Timed:
    """Return a run that takes what the model says, times `off`."""
    asked = {"box_step_ms": 3000, "box_link_mbit": mbit, "nodes": nodes, **fields}
    spec = RunSpec(**{**EMULATED, **asked})
    rate = mbit * 1e6 / 8 / ON_THE_WIRE
    machine = Machine(
        3.0,
        Network(rate, COSTS["latency_s"], rate, COSTS["latency_s"]),
        framework_s=COSTS["framework_s"],
        straggler=spec.box_straggler - 1,
        jitter=spec.box_jitter,
    )
    step = predict(machine, Training.of(spec), nodes).step_s[0]
    return Timed(spec, off * float(step), rate if nodes > 1 else np.inf)


def grid(**fields: object) -> list[Timed]:
    several = [timed(nodes, mbit, **fields) for nodes in (2, 4, 8, 16) for mbit in MBIT]
    return [timed(1, **fields), *several]


DDP: dict[str, object] = {"ddp_bucket_mb": 0.390625}
SHARDED: dict[str, object] = {"strategy": "deepspeed", "deepspeed_zero_stage": 1}


def test_what_few_nodes_cost_is_found_and_many_are_predicted() -> None:
    for fields in (DDP, SHARDED):
        (series,) = series_of(grid(**fields))
        found = fit_series(series)
        for name, planted in COSTS.items():
            assert found.fitted.best[name] == pytest.approx(planted, rel=0.05)
        judged = judge_box([found])
        assert all(abs(row.error) < 0.005 and row.inside for row in judged)
        counts = {(row.case, row.quantity) for row in judged}
        assert counts == {(case, what) for case in (MORE, SLOWER)
                          for what in ("step_s", "overhead_s")}  # fmt: skip
        assert sum(row.case == MORE for row in judged) == 2 * 6
        assert {row.ranks for row in judged if row.case == SLOWER} == {2, 4}
        steps = [row for row in judged if row.quantity == "step_s"]
        overheads = [row for row in judged if row.quantity == "overhead_s"]
        for step, overhead in zip(steps, overheads, strict=True):
            assert step.stated - overhead.stated == pytest.approx(3.0)
            assert step.peer - overhead.peer == pytest.approx(3.0)


def test_no_held_out_run_moves_the_fit() -> None:
    changed = [run._replace(step_s=9.0) if _held(run) else run for run in grid(**DDP)]
    (one,), (other,) = series_of(grid(**DDP)), series_of(changed)
    assert fit_series(one).fitted.best == fit_series(other).fitted.best


def _held(run: Timed) -> bool:
    return run.spec.nodes > 4 or (run.spec.nodes > 1 and run.spec.box_link_mbit == 10)


def test_repeats_are_one_row_and_frameworks_are_series() -> None:
    runs = [timed(2, off=off, repeat=number) for number, off in enumerate((0.9, 1.1))]
    both = series_of([*runs, timed(2, **SHARDED)])
    assert [one.name for one in both] == ["ddp", "deepspeed, stage 1"]
    assert both[0].step_s.tolist() == [pytest.approx(timed(2).step_s)]


def test_the_rate_of_the_links_is_found_where_nothing_hides_messages() -> None:
    (series,) = series_of(grid(strategy="deepspeed"))
    found = find_links([series], 4)
    (one,) = found
    assert (one.planted, one.found.known) == (1.0, "identified")
    assert abs(one.error) < 0.02


def test_a_slow_rank_and_uneven_steps_are_found() -> None:
    sizes = (2, 4, 8)
    even = [timed(nodes, 40.0, **DDP) for nodes in (1, *sizes)]
    slow = [timed(nodes, 40.0, box_straggler=1.2, **DDP) for nodes in sizes]
    uneven = [timed(nodes, 40.0, box_jitter=0.1, **DDP) for nodes in sizes]
    straggler, jitter = find_delays([*even, *slow, *uneven])
    assert (straggler.planted, jitter.planted) == (pytest.approx(0.2), 0.1)
    assert abs(straggler.error) < 0.02
    assert abs(jitter.error) < 0.02


def test_the_twin_says_the_same_of_what_was_run() -> None:
    (series,) = series_of(grid(**DDP))
    found = twins([fit_series(series)])
    assert len(found) == 4 * 3
    for row in found:
        assert row.twin_s == pytest.approx(row.box_s, rel=0.005)


def test_efficiency_is_that_of_the_steps() -> None:
    (series,) = series_of(grid(**DDP))
    box = fit_series(series)
    band, peer = box.efficiency(20.0, [1, 2, 16])
    expected = [box.alone_s / timed(nodes, 20.0, **DDP).step_s for nodes in (1, 2, 16)]
    assert band.value == pytest.approx(expected, rel=0.002)
    assert peer[0] == 1
    assert [(fitted, ranks) for fitted, ranks, _ in box.efficiencies(20.0)] == [
        (True, 2), (True, 4), (False, 8), (False, 16)
    ]  # fmt: skip
    assert not any(fitted for fitted, *_ in box.efficiencies(10.0))


def test_only_faithful_runs_are_read(tree: Tree, make_run: MakeRun) -> None:  # noqa: F811
    with pytest.raises(DataError, match="no faithful emulated run"):
        read_runs("box", tree)
    emulate(make_run, unfaithful=["too slow"])
    with pytest.raises(DataError, match="no faithful emulated run"):
        read_runs("box", tree)
    emulate(make_run, 0.5, nodes=2)
    (run,) = read_runs("box", tree)
    assert run.spec.nodes == 2
    assert run.rate == pytest.approx(50e6 / 8 / ON_THE_WIRE)
    images = run.spec.global_batch_size
    assert run.step_s == pytest.approx(20.0 * images / (320 * 2))

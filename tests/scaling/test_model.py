from dataclasses import replace

import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_core.scaling.collectives import Network, all_reduce
from ddl_core.scaling.gradients import Gradients, resnet
from ddl_core.scaling.loading import Loading
from ddl_core.scaling.messages import Training
from ddl_core.scaling.model import Machine, predict

RANKS = 2.0 ** np.arange(13)
NETWORK = Network(5e9, 5e-6, 100e9, 1e-6, 4)
MACHINE = Machine(0.1, NETWORK)
STRATEGIES = ("ddp", "horovod", "deepspeed")


def training(strategy: str = "ddp", **fields: object) -> Training:
    return Training(resnet("resnet50"), strategy, **fields)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_rank_only_computes(strategy: str) -> None:
    machine = replace(MACHINE, stall_s=0.01)
    assert predict(machine, training(strategy), 1).step_s == pytest.approx([0.1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_perfect_machine_scales_perfectly(strategy: str) -> None:
    # Horovod's last cycle has yet to come when backward ends.
    found = predict(Machine(0.1), training(strategy, cycle_ms=1e-6), RANKS)
    assert found.step_s == pytest.approx(0.1)
    assert found.efficiency(1) == pytest.approx(1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_slower_links_later_ranks_slower_loaders_only_ever_cost(strategy: str) -> None:
    before = predict(MACHINE, training(strategy), RANKS).step_s
    for worse in (
        replace(MACHINE, network=replace(NETWORK, bandwidth=1e9)),
        replace(MACHINE, network=replace(NETWORK, latency_s=1e-3)),
        replace(MACHINE, stall_s=0.01),
        replace(MACHINE, jitter=0.1),
        replace(MACHINE, straggler=0.2),
        replace(MACHINE, framework_s=0.01),
        replace(MACHINE, loading=Loading(shared_rate=1e4)),
    ):
        after = predict(worse, training(strategy), RANKS).step_s
        assert (after >= before - 1e-12).all()
        assert after[-1] > before[-1]


def test_waiting_makes_each_doubling_dearer_and_efficiency_fall() -> None:
    found = predict(replace(MACHINE, stall_s=0.003), training(), RANKS)
    assert (np.diff(found.efficiency(4)) < 0).all()
    assert (np.diff(found.throughput) > 0).all()
    assert (np.diff(found.all_reduce_share) > 0).all()


def test_backward_hides_all_of_ddp_but_the_last_bucket() -> None:
    half = Gradients(np.array([26.0, 26.0]) * 2**20, np.array([0.5, 1.0]), 1.0)
    two = Training(half, "ddp", bucket_mb=26)
    slow = Machine(3.0, Network(30 * 2**20))
    took = float(all_reduce(26 * 2**20, 2, slow.network))
    assert took < 1  # so the first is gone when the second is ready
    assert predict(slow, two, 2).exposed_s == pytest.approx([took])
    whole = replace(two, strategy="deepspeed")
    assert predict(slow, whole, 2).exposed_s == pytest.approx([2 * took])
    sharded = replace(whole, zero_stage=1)
    assert predict(slow, sharded, 2).exposed_s == pytest.approx([3 * took])


def test_kernels_hold_the_wait_for_the_others() -> None:
    half = Gradients(np.array([26.0, 26.0]) * 2**20, np.array([0.5, 1.0]), 1.0)
    two = Training(half, "ddp", bucket_mb=26)
    # The straggler is 0.2 s late for the first bucket, 2 s into the step, and 0.3 s for the second.
    # The other waits for it in its kernels, it itself never.
    found = predict(Machine(3.0, straggler=0.1), two, 2)
    assert found.all_reduce_share == pytest.approx([0.25 / 3.25])
    assert found.step_s == pytest.approx([3.3])


def test_input_limits_bind_where_they_are() -> None:
    job = training(local_batch_size=64)
    node = predict(replace(MACHINE, loading=Loading(node_rate=1280)), job, RANKS)
    assert node.throughput[2:] == pytest.approx(np.ceil(RANKS[2:] / 4) * 1280)
    assert node.throughput[0] == pytest.approx(640)
    shared = predict(replace(MACHINE, loading=Loading(shared_rate=10_000)), job, RANKS)
    assert shared.throughput.max() == pytest.approx(10_000)
    rank = predict(replace(MACHINE, loading=Loading(rank_rate=320)), job, RANKS)
    assert rank.throughput == pytest.approx(RANKS * 320)


def test_without_spare_cores_loading_and_computing_add_up() -> None:
    loading = Loading(rank_rate=640, spare_cores=False)
    found = predict(Machine(0.1, loading=loading), training("single"), 1)
    assert found.step_s == pytest.approx([0.2])


def test_an_epoch_has_a_last_batch_and_costs_of_its_own() -> None:
    machine = Machine(0.1, framework_s=0.02, epoch_s=0.5)
    job = training(images=64 * 4 * 10 + 64)  # ten steps and a quarter on 4 ranks
    found = predict(machine, job, [4])
    assert found.epoch_s == pytest.approx([10.25 * 0.1 + 11 * 0.02 + 0.5])
    assert found.throughput == pytest.approx(job.images / found.epoch_s)


def test_a_straggler_beside_jitter_is_left_to_the_simulation() -> None:
    with pytest.raises(SpecError, match="a straggler beside jitter or stalls has no closed form"):
        predict(replace(MACHINE, jitter=0.1, straggler=0.1), training(), 4)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"compute_s": 0.0}, "compute_s=0.0 has to be above 0"),
        ({"compute_s": 1.0, "jitter": -0.1}, "jitter=-0.1 has to be at least 0"),
        ({"compute_s": 1.0, "stall_s": float("nan")}, "stall_s=nan has to be"),
        ({"compute_s": 1.0, "backward_share": 1.5}, "backward_share=1.5 has to be at most 1"),
        ({"compute_s": 1.0, "epoch_s": -1}, "epoch_s=-1 has to be at least 0"),
    ],
)
def test_absurd_machines_are_refused(fields: dict, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Machine(**fields)


def test_absurd_questions_are_refused() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        predict(MACHINE, training(), 0)
    with pytest.raises(SpecError, match="shared_rate=-5 has to be above 0"):
        Loading(shared_rate=-5)
    with pytest.raises(SpecError, match="base=4 is not among the predicted"):
        predict(MACHINE, training(), [1, 2]).efficiency(4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_curve_to_a_million_ranks_is_finite(strategy: str) -> None:
    ranks = np.unique(np.geomspace(1, 1e6, 60).astype(int))
    machine = replace(MACHINE, stall_s=0.001, network=replace(NETWORK, algorithm="fastest"))
    found = predict(machine, training(strategy, images=1_281_167), ranks)
    for values in (found.step_s, found.epoch_s, found.throughput, found.all_reduce_share):
        assert np.isfinite(values).all()
        assert (values >= 0).all()

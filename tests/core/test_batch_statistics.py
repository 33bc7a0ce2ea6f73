"""Running statistics of virtual workers: their mean, with layers that nobody has touched."""

import pytest
import torch
from torch import nn

from ddl_core.batch_norm import VirtualWorkers, average_batch_statistics, split_statistics
from ddl_core.errors import SpecError
from tests.groups import ThreadGroup

STEPS, BATCH = 3, 6


def micro_batches(workers: int) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        [2 + torch.randn(BATCH, 4, generator=generator) for _ in range(workers)]
        for _ in range(STEPS)
    ]


def trained(layer: nn.BatchNorm1d, workers: int) -> nn.BatchNorm1d:
    shared = VirtualWorkers(nn.Sequential(layer), workers)
    for step in micro_batches(workers):
        for micro, values in enumerate(step):
            layer(values)
            shared.pass_done(micro)
    return layer


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_a_step_leaves_the_mean_of_its_workers(workers):
    layer = trained(nn.BatchNorm1d(4, momentum=0.3), workers)
    mean, variance = torch.zeros(4).double(), torch.ones(4).double()
    for step in micro_batches(workers):
        own = [values.double() for values in step]
        mean = 0.7 * mean + 0.3 * torch.stack([one.mean(0) for one in own]).mean(0)
        variance = 0.7 * variance + 0.3 * torch.stack([one.var(0) for one in own]).mean(0)
    torch.testing.assert_close(layer.running_mean.double(), mean, rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.running_var.double(), variance, rtol=1e-5, atol=0)


def test_statistics_that_do_not_change_do_not_drift():
    layer = nn.BatchNorm1d(4, momentum=0.0)
    layer.running_mean.fill_(0.1)
    assert torch.equal(trained(layer, 9).running_mean, torch.full((4,), 0.1))


def test_layers_without_running_statistics_are_left_alone():
    trained(nn.BatchNorm1d(4, track_running_stats=False), 2)


def test_what_is_equal_on_all_ranks_stays_and_the_rest_is_averaged():
    def averaged(rank) -> nn.Module:
        layer = nn.BatchNorm1d(4)
        layer.running_mean.fill_(0.1)
        layer.running_var.fill_(float(rank.rank))
        average_batch_statistics(rank, layer)
        return layer

    for layer in ThreadGroup(3).run(averaged):
        assert torch.equal(layer.running_mean, torch.full((4,), 0.1))
        assert torch.equal(layer.running_var, torch.ones(4))


def test_a_normalisation_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(SpecError, match=r"SyncBatchNorm.*micro_batches_per_pass"):
        split_statistics(nn.Sequential(nn.SyncBatchNorm(3)), 2)

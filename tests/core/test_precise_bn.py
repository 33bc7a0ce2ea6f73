"""An evaluation with statistics of batch normalisation that are estimated anew."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ddl_core import RunSpec, Trainer
from ddl_core.batch_norm import precise_statistics
from tests.closeness import assert_far, assert_near
from tests.launch.running import TINY

FEW = {"image_size": 8, "classes": 4, "local_batch_size": 16, "epochs": 2}
FEW |= {"train_images": 64, "eval_images": 32}
Make = Callable[..., Trainer]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes a trainer."""
    made = []

    def of(**fields: Any) -> Trainer:
        made.append(Trainer(RunSpec.parse(TINY | FEW | fields)))
        return made[-1]

    yield of
    for trainer in made:
        trainer.close()


def test_it_changes_nothing_of_the_training(make: Make) -> None:
    digests = []
    for precisely in (False, True):
        trainer = make(accumulation=2)
        for epoch in range(2):
            trainer.train_epoch(epoch)
            before, drawn = trainer.weights_sha256(), torch.get_rng_state()
            if precisely:
                trainer.evaluate_precisely()
            assert trainer.weights_sha256() == before
            assert torch.equal(torch.get_rng_state(), drawn)
        digests.append(trainer.weights_sha256())
    assert digests[0] == digests[1]


def test_its_statistics_are_plain_means_over_batches() -> None:
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    before = [one.clone() for one in network.buffers()]
    batches = torch.rand(5, 8, 3, 4, 4)
    with torch.no_grad(), precise_statistics(network):
        for batch in batches:
            network(batch)
        layer = network[0]
        assert torch.allclose(layer.running_mean, batches.mean(dim=(0, 1, 3, 4)))
        variances = torch.stack([one.transpose(0, 1).flatten(1).var(1) for one in batches])
        assert torch.allclose(layer.running_var, variances.mean(0))
    assert layer.momentum == 0.1
    assert all(map(torch.equal, network.buffers(), before))


def test_it_tells_what_running_statistics_hide_that_lag_behind(make: Make) -> None:
    """After 4 updates they are far from those of the weights; after 160 with small steps, near."""
    few, many = (make(base_lr=1e-6, train_images=images) for images in (64, 2560))
    results = {}
    for name, trainer in (("few", few), ("many", many)):
        trainer.train_epoch(0)
        results[name] = [trainer.evaluate().loss, trainer.evaluate_precisely().loss]
    assert_near([results["many"][0]], [results["many"][1]], 0.005)
    assert_far([results["few"][0]], [results["few"][1]], 0.005)

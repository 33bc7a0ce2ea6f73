"""What one process does for a group of 1,024 ranks, most of them made up by torch's fake group."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ddl_core.checkpoint import weights_sha256
from ddl_core.config import RunSpec
from ddl_core.data.sampling import BatchSampler, epoch_order
from ddl_core.fairness import check_agreement, check_epoch
from ddl_core.loaders.synthetic import Synthetic
from ddl_core.loop import EpochLoop
from ddl_core.optim import make_optimizer
from ddl_core.step import TrainState
from ddl_core.strategies import base as group
from ddl_core.strategies.ddp import DDP
from ddl_tools.rank.worker import affinity
from tests.planted import tiny

fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

NODES, PER_NODE, RANK = 256, 4, 5
MIB = 2**20


def run(nodes: int, **fields) -> RunSpec:
    size = {"nodes": nodes, "gpus_per_node": PER_NODE, "image_size": 8, "local_batch_size": 4}
    return RunSpec(strategy="ddp", loader="synthetic", device="cpu", **{**size, **fields})


def reduced_at_once(sent: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Count a bucket of gradients; the fake group gives DDP no answer of its own."""
    sent.append(bucket.buffer().nbytes)
    answer: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    answer.set_result(bucket.buffer())
    return answer


class Counted(DDP):
    """Keeps what `all_reduce` is given, in bytes."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.bytes: list[int] = []
        self.answer: Callable[[torch.Tensor], torch.Tensor] = lambda own: own

    def setup(self, model, optimizer):
        model, optimizer = super().setup(model, optimizer)
        model.register_comm_hook(self.bytes, reduced_at_once)
        return model, optimizer

    def all_reduce(self, tensor, op="sum"):
        self.bytes.append(tensor.numel() * tensor.element_size())
        return tensor.copy_(self.answer(super().all_reduce(tensor, op)))


@pytest.fixture
def join(monkeypatch) -> Iterator[Callable[[RunSpec], Counted]]:
    """Make one rank of a group in which every collective is done at once, and changes nothing."""
    real, made = dist.init_process_group, []

    def joined(spec: RunSpec) -> Counted:
        for name, value in {"RANK": RANK, "LOCAL_RANK": 1, "WORLD_SIZE": spec.world_size}.items():
            monkeypatch.setenv(name, str(value))
        if made:
            made.pop().teardown()
        made.append(Counted(spec))
        return made[-1]

    def init(backend, **how):
        place = {"rank": RANK, "world_size": int(group.os.environ["WORLD_SIZE"])}
        real("fake", store=fake.FakeStore(), **place)

    monkeypatch.setattr(group.dist, "init_process_group", init)
    yield joined
    for one in made:
        one.teardown()


def collectives_of_an_epoch(join, nodes: int) -> list[int]:
    spec = run(nodes, classes=5, train_images=2 * 4 * PER_NODE * nodes)
    rank = join(spec)
    model = tiny(5)
    trainee = TrainState(spec, rank, model, make_optimizer(spec, model))
    check_agreement(rank, weights_sha256(model), "same initial weights")
    loader = Synthetic(spec, None, "train", RANK, spec.world_size, rank.device)
    outcome = EpochLoop(trainee).train(loader, 0)
    assert outcome.samples == 2 * spec.global_batch_size
    return rank.bytes


def test_an_epoch_of_1024_ranks_sends_what_one_of_8_sends(join) -> None:
    few, many = (collectives_of_an_epoch(join, nodes) for nodes in (2, NODES))
    assert many == few  # as often, and as much
    assert sum(many) < 0.1 * MIB


def test_cores_of_256_nodes_are_compared_in_two_mebibytes(join) -> None:
    rank = join(run(NODES))
    affinity(rank, PER_NODE)
    assert len(rank.bytes) == 2
    assert sum(rank.bytes) <= 2 * MIB + 16


def test_images_of_imagenet_are_checked_in_one_collective_of_4_bytes_each(join) -> None:
    images = 1_281_167
    spec = run(NODES, local_batch_size=64)
    rank = join(spec)
    plan = BatchSampler(spec, "train", images, RANK, spec.world_size)
    plan.epoch = 3
    own = [number for batch in plan for _, number in batch]
    assert len(own) == len(set(own)) == len(plan) * 64 == 19 * 64  # not those of 1,023 others

    everybody = torch.zeros(images, dtype=torch.int32)
    everybody[torch.from_numpy(epoch_order(spec, images, 3)[: 19 * 64 * 1024])] = 1
    rank.answer = lambda counts: everybody
    loader = SimpleNamespace(images=images, seen=[np.array(own)], own_order=False)
    assert check_epoch(spec, rank, loader, 3)
    assert rank.bytes == [4 * images]

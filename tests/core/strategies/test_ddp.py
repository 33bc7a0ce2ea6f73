"""What DDP says of its buckets is what its reducer does, and its default is DDP's own."""

import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddl_core.config import RunSpec
from ddl_core.loop import EpochLoop
from ddl_core.strategies import ddp
from ddl_core.strategies.ddp import DDP
from tests.core.strategies.two_ranks import STEPS, Batches, build, spec
from tests.planted import tiny

MIB = 1024 * 1024


@pytest.fixture
def group(monkeypatch, tmp_path):
    """Return a function that makes a group of one rank; it ends with the test."""
    made, plain = [], dist.init_process_group

    def join(backend, **_) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        plain(backend, store=store, rank=0, world_size=1)

    def make(**fields) -> DDP:
        monkeypatch.setattr(dist, "init_process_group", join)
        made.append(DDP(RunSpec(strategy="ddp", device="cpu", **fields)))
        return made[-1]

    yield make
    for one in made:
        one.teardown()


def network() -> nn.Module:
    """Eight layers of 1 MiB."""
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))


def buckets(wrapped: nn.Module) -> list[int]:
    """Return the bytes of each bucket as the reducer has cut them, once it knows their order."""
    for _ in range(3):
        wrapped(torch.ones(1, 512)).sum().backward()
    sizes = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(size) for size in sizes.split(",")]


@pytest.mark.parametrize(
    ("fields", "told", "cut"),
    [
        ({}, (25 * MIB, MIB), [1, 7]),
        ({"ddp_bucket_mb": 3}, (3 * MIB, 3 * MIB), [3, 3, 2]),
        ({"ddp_bucket_mb": 3, "ddp_first_bucket_mb": 2}, (3 * MIB, 2 * MIB), [2, 3, 3]),
    ],
)
def test_buckets(group, fields, told, cut) -> None:
    rank, model = group(**fields), network()
    wrapped, _ = rank.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    said = rank.describe()
    assert (said["bucket_bytes"], said["first_bucket_bytes"]) == told
    assert (said["library"], said["overlap"]) == ("gloo", True)
    assert buckets(wrapped) == [size * MIB for size in cut]


def test_the_default_is_what_a_user_gets(group) -> None:
    rank, model = group(), network()
    wrapped, _ = rank.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert buckets(wrapped) == buckets(DistributedDataParallel(network()))


SLEPT_S = 0.05  # in each reduction


def waiting(_state, bucket):
    """Reduce a bucket as PowerSGD does: backward goes on when it is done."""
    time.sleep(SLEPT_S)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def overlapping(_state, bucket):
    """Reduce a bucket as DDP does: backward goes on at once."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(SLEPT_S, lambda: done.set_result(bucket.buffer())).start()
    return done


def trained(rank: DDP) -> Any:
    return EpochLoop(build(rank.spec, rank, tiny(3))).train(Batches(0, 1, 1), 0).timing


def test_a_reduction_that_backward_waits_for_is_not_booked_as_computing(group, monkeypatch) -> None:
    monkeypatch.setattr(ddp.powerSGD_hook, "powerSGD_hook", waiting)
    asked = {"ddp_compression": "powersgd", "ddp_powersgd_start": 2, "checkpoint_every": 0}
    rank = group(**spec("ddp", **asked).model_dump(exclude={"strategy", "device"}))
    window = trained(rank)
    assert window.wall_s > STEPS * SLEPT_S
    assert window.spent is None
    assert rank.describe()["overlap"] is False


def test_a_reduction_that_backward_overlaps_is_booked_as_communication(group, monkeypatch) -> None:
    monkeypatch.setitem(ddp.COMPRESSION, "fp16", overlapping)
    asked = spec("ddp", ddp_compression="fp16").model_dump(exclude={"strategy", "device"})
    spent = trained(group(**asked)).spent
    assert spent.transfer_s + spent.compute_s > STEPS * SLEPT_S
    assert spent.transfer_s > spent.compute_s


def test_an_older_torch_is_told_by_its_own_name_not_to_send_buffers(group, monkeypatch):
    class Older(DistributedDataParallel):
        def __init__(self, module, device_ids=None, broadcast_buffers=True, **fields):
            super().__init__(module, device_ids, forward_sync_buffers=broadcast_buffers, **fields)

    monkeypatch.setattr(ddp, "DistributedDataParallel", Older)
    plain = network()
    wrapped, _ = group().setup(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    assert isinstance(wrapped, Older)
    assert not wrapped.broadcast_buffers

import numpy as np
import pytest

from ddl_core.errors import SpecError
from ddl_core.scaling.gradients import resnet
from ddl_core.scaling.messages import Training, messages, reduced_in_cycles, reduced_in_turn
from ddl_core.spec.run import RunSpec

GRADIENTS = resnet("resnet50")


@pytest.mark.parametrize("bucket_mb", [0.5, 25, 64, 1000])
def test_buckets_hold_all_bytes_and_close_at_their_cap(bucket_mb: float) -> None:
    sent = messages(Training(GRADIENTS, "ddp", bucket_mb=bucket_mb))
    assert sum(message.nbytes for message in sent) == GRADIENTS.total
    assert sent[-1].ready == 1
    first = 1 if bucket_mb == 25 else bucket_mb
    for message, cap in zip(sent[:-1], [first, *[bucket_mb] * len(sent)], strict=False):
        assert message.nbytes >= cap * 2**20
    assert len(messages(Training(GRADIENTS, "ddp", bucket_mb=1000))) == 1


def test_one_process_sends_nothing_and_stages_send_half_as_much_again() -> None:
    assert messages(Training(GRADIENTS, "single")) == []
    stages = [messages(Training(GRADIENTS, "deepspeed", zero_stage=s)) for s in (0, 1, 2)]
    assert [[tuple(message) for message in sent] for sent in stages] == [
        [(factor * GRADIENTS.total, 1.0)] for factor in (1.0, 1.5, 1.5)
    ]


def test_messages_wait_for_one_another() -> None:
    ready = [np.array([0.0]), np.array([1.0]), np.array([9.0])]
    took = [np.array([3.0]), np.array([2.0]), np.array([1.0])]
    assert [float(end[0]) for end in reduced_in_turn(ready, took)] == [3, 5, 10]


def test_cycles_by_hand() -> None:
    training = Training(GRADIENTS, "horovod", cycle_ms=1000)
    ready, sizes = np.array([0.1, 0.6, 2.7]), np.array([1.0, 2.0, 4.0])
    sent: list[float] = []

    def seconds(nbytes: float) -> float:
        sent.append(nbytes)
        return 1.5

    # At 0.5 the first; that ends at 2.0 with the second ready; at 3.5 the third.
    assert reduced_in_cycles(ready, sizes, seconds, training) == pytest.approx((5.0, 4.5))
    assert sent == [1, 2, 4]


def test_cycles_fuse_up_to_the_limit_and_never_get_stuck() -> None:
    training = Training(GRADIENTS, "horovod", fusion_mb=8, cycle_ms=1)
    sent: list[float] = []

    def seconds(nbytes: float) -> float:
        sent.append(nbytes)
        return 0.01

    ready = np.zeros_like(GRADIENTS.ready)
    reduced_in_cycles(ready, GRADIENTS.nbytes, seconds, training)
    assert sum(sent) == pytest.approx(GRADIENTS.total)
    largest = GRADIENTS.nbytes.max()
    assert max(sent) <= max(8 * 2**20, largest)
    whole = Training(GRADIENTS, "horovod", fusion_mb=1e-6)
    sent.clear()
    reduced_in_cycles(ready, GRADIENTS.nbytes, seconds, whole)
    assert len(sent) == len(GRADIENTS.nbytes)


def test_what_a_run_asks_for_is_taken_over() -> None:
    spec = RunSpec(strategy="horovod", loader="native", model="resnet50", dataset="imagenet",
                   local_batch_size=32, accumulation=2, horovod_cycle_ms=5.0)  # fmt: skip
    training = Training.of(spec, 100)
    assert (training.strategy, training.local_batch_size, training.images) == ("horovod", 64, 100)
    assert (training.cycle_ms, training.fusion_mb) == (5.0, spec.horovod_fusion_mb)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strategy": "mpi"}, "strategy='mpi'.*allowed: single, ddp"),
        ({"strategy": "fsdp"}, "strategy='fsdp'.*not modelled; allowed: single, ddp"),
        ({"strategy": "deepspeed", "zero_stage": 3}, "zero_stage=3.*allowed: 0, 1, 2"),
        ({"local_batch_size": 0}, "local_batch_size=0 has to be above 0"),
        ({"images": -1}, "images=-1 has to be at least 0"),
        ({"bucket_mb": 0}, "bucket_mb=0 has to be above 0"),
        ({"cycle_ms": -1}, "cycle_ms=-1 has to be above 0"),
    ],
)
def test_absurd_trainings_are_refused(fields: dict, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Training(GRADIENTS, **fields)

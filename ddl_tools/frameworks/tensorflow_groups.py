"""How gradients become their mean over ranks under TensorFlow, by the run's strategy."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # nothing public sets heartbeats
from tensorflow.tsl.protobuf import coordination_config_pb2

from ddl_core.config import RunSpec
from ddl_core.system import INTERLEAVED
from ddl_tools.frameworks.groups import GradientGroup, HorovodGroup
from ddl_tools.frameworks.rendezvous import ControlGroup

Tensor = Any

# A rank that takes turns stands still meanwhile: it is given a day.
PATIENCE_S = 86_400 if INTERLEAVED in os.environ else 600


class Single(GradientGroup):
    """The group of one rank; the others derive from it."""

    def run(self, replica: Callable[..., None], *arguments: Tensor) -> None:
        """Call `replica` as one of the ranks; inside a compiled function."""
        replica(*arguments)

    def all_reduce_mean(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the mean over ranks of each gradient; inside `replica`."""
        return gradients


class MultiWorker(Single):
    """MultiWorkerMirroredStrategy: a ring over gRPC between CPUs, NCCL between GPUs.

    It adds up all gradients as one tensor once the last of them is there (its default,
    ``bytes_per_pack`` 0), so nothing is sent while the backward pass goes on.
    """

    def __init__(self, spec: RunSpec, control: ControlGroup, device: str) -> None:
        workers = control.exchange(control.reserve())
        task = {"type": "worker", "index": control.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        os.environ["TF_GRPC_REUSE_PORT"] = "1"  # the port is kept until the server has it
        _be_patient(control.world_size)
        kinds = tf.distribute.experimental.CommunicationImplementation
        self._kind = kinds.NCCL if device == "cuda" else kinds.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=self._kind)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        control.barrier()
        control.release()
        # The strategy takes SIGTERM for itself, as a notice that it might save something.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)

    def run(self, replica: Callable[..., None], *arguments: Tensor) -> None:
        """Call `replica` as a replica of the strategy."""
        self._strategy.run(replica, arguments)

    def all_reduce_mean(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the mean over ranks of each gradient."""
        replica: Any = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)

    def describe(self) -> dict[str, Any]:
        """Return what carries the gradients."""
        library = {"RING": "grpc", "NCCL": "nccl"}[self._kind.value]
        return {"library": library, "algorithm": "ring", "bytes_per_pack": 0, "overlap": False}


def _be_patient(workers: int) -> None:
    """Let ranks miss each other's heartbeats for longer than the 10 s that the strategy has set.

    A rank that ends is noticed at once, by its connections.
    """
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=1000 * PATIENCE_S,
        coordinated_jobs=[job],
    )


class Horovod(HorovodGroup, Single):
    """Horovod between the operations of a compiled step."""

    def all_reduce_mean(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return the mean over ranks of each gradient, each sent as soon as it is there."""
        return [
            self._hvd.allreduce(gradient, op=self._hvd.Average, name=f"{number}")
            for number, gradient in enumerate(gradients)
        ]


GROUPS: dict[str, type[Single]] = {
    "single": Single,
    "multiworker": MultiWorker,
    "horovod": Horovod,
}

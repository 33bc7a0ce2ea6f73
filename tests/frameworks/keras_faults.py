"""Keras with a fault, or watched: what the driver trains with instead, named by a case of it."""

import os
import signal
import time
from copy import deepcopy
from pathlib import Path

import jax
import numpy as np

from ddl_tools.frameworks import networks

STEP = 3  # at which a rank fails


def momentum_holds_the_rate(kind):
    """As SGD of Keras keeps its velocity: the old one keeps the old rate."""

    class Faulty(kind):
        def _updated(self, weights, gradients, momenta, rate):
            (empty, trace), of = momenta, self._spec
            velocity = jax.tree.map(
                lambda v, g, w: of.momentum * v + rate * (g + of.weight_decay * w),
                *(trace.trace, gradients, weights),
            )
            weights = jax.tree.map(lambda w, v: w - v, weights, velocity)
            return weights, (empty, trace._replace(trace=velocity))

    return Faulty


def decay_beside_the_momentum(kind):
    """As `weight_decay` of Keras' optimisers: decoupled."""

    class Faulty(kind):
        def _updated(self, weights, gradients, momenta, rate):
            (empty, trace), of = momenta, self._spec
            own = jax.tree.map(lambda v, g: of.momentum * v + g, trace.trace, gradients)
            weights = jax.tree.map(lambda w, v: w - rate * (v + of.weight_decay * w), weights, own)
            return weights, (empty, trace._replace(trace=own))

    return Faulty


def sum_of_the_gradients(kind):
    class Faulty(kind):
        def _mean(self, gradients):
            return jax.lax.psum(gradients, "ranks")

    return Faulty


def statistics_of_all_ranks(kind):
    """As Keras' DataParallel: one program over the whole batch."""

    class Faulty(kind):
        def _compile(self, mesh):
            self._counts = [count * self._control.world_size for count in self._counts]
            out = (self._same, self._each, self._same, self._each)
            return jax.jit(self._whole, out_shardings=out)

        def _whole(self, weights, own, momenta, total, *rest):
            weights, after, momenta, total = self._step(weights, own, momenta, total, *rest)
            spread = jax.tree.map(
                lambda new, one: jax.numpy.broadcast_to(new, one.shape), after, own
            )
            return weights, spread, momenta, total

        def _mean(self, gradients):
            return gradients

    return Faulty


def biased_variance(kind):
    """As Keras' layer keeps it."""

    class Faulty(kind):
        def _compile(self, mesh):
            self._counts = [0 for _ in self._counts]
            return super()._compile(mesh)

    return Faulty


def watched(kind):
    """Tell on which cores XLA's threads are, and demand that what was given stays as it was."""

    class Watched(kind):
        def load(self, state):
            self.given, self.copy = state, deepcopy(state)
            super().load(state)

        def state(self):
            for name, value in self.copy.values.items():
                assert np.array_equal(self.given.values[name], value), name
            return super().state()

        def describe(self):
            tasks = Path("/proc/self/task").iterdir()
            cores = {
                core
                for task in tasks
                if "XLA" in (task / "comm").read_text()
                for core in os.sched_getaffinity(int(task.name))
            }
            return {**super().describe(), "cores_of_xla": sorted(cores)}

    return Watched


def with_dropout(kind):
    """Train a network whose random numbers matter; they begin where training has come to."""

    class Dropping(kind):
        def load(self, state):
            reached = self._random_states() if hasattr(self, "_held") else None
            super().load(state)
            assert reached in (None, self._random_states())

        def _random_states(self):
            own = zip(self._network.own, self._held[1], strict=True)
            return [np.array(one.addressable_data(0)).tolist() for name, one in own if not name]

    def dropping(ops, x, classes):
        x = ops.tanh(ops.norm("1", ops.conv("0", x, 8, (3, 2, 0))))
        x = ops.dropout(ops.tanh(ops.norm("4", ops.conv("3", x, 16, (3, 2, 0)))), 0.2)
        return ops.linear("8", ops.dropout(ops.global_mean(x), 0.2), classes)

    networks.NETWORKS["tiny"] = dropping
    return Dropping


def _failing(kind, fail):
    class Failing(kind):
        steps = 0

        def step(self, *given):
            self.steps += 1
            if self.steps == STEP and self._control.rank == 1:
                fail()
            super().step(*given)

    return Failing


def told_to_end(kind):
    return _failing(kind, lambda: os.kill(os.getpid(), signal.SIGTERM))


def raising(kind):
    def fail():
        raise ValueError("planted")

    return _failing(kind, fail)


def late(kind):
    """Be later to the first step than Gloo waits for a rank that it does not know yet."""

    class Late(kind):
        def load(self, state):
            super().load(state)
            if not state.updates and self._control.rank == 1:
                time.sleep(35)

    return Late


def gone_before_close(kind):
    class Gone(kind):
        def close(self):
            if self._control.rank == 1:
                os._exit(0)
            super().close()

    return Gone

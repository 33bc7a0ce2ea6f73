"""Faults of training with MXNet, for `driver`: each takes the class and returns another."""

import os
import signal

from mxnet import gluon

from ddl_tools.frameworks.weights import State

RANK, STEP = 1, 3  # which one ends badly, and when


def momentum_that_holds_the_rate(kind):
    class Faulty(kind):
        def _use(self, rate):
            super()._use(rate)
            self._trainer.optimizer.momentum = self._spec.momentum

    return Faulty


def update_of_the_servers(kind):
    """They keep the rate of the first step."""

    class Faulty(kind):
        def __init__(self, spec, control):
            super().__init__(spec, control)
            self._trainer = gluon.Trainer(
                self._trained,
                self._trainer.optimizer,
                kvstore=self._group._store,
                update_on_kvstore=True,
            )
            self._group.all_reduce_sum = lambda gradients: None

        def load(self, state):
            if self._updates:  # the servers take no weights any more
                running = {name: one for name, one in state.values.items() if "running" in name}
                state = State(running, {}, state.updates)
            super().load(state)

    return Faulty


def gradients_summed(kind):
    class Faulty(kind):
        def __init__(self, spec, control):
            super().__init__(spec, control)
            self._trainer._scale *= spec.world_size

    return Faulty


def decoupled_decay(kind):
    class Faulty(kind):
        def __init__(self, spec, control):
            super().__init__(spec, control)
            self._trainer.optimizer.wd = 0.0

        def step(self, images, labels, rate):
            for one in self._trained:
                weight = one.data()
                weight -= rate * self._spec.weight_decay * weight
            super().step(images, labels, rate)

    return Faulty


def variances_left_biased(kind):
    class Faulty(kind):
        def __init__(self, spec, control):
            super().__init__(spec, control)
            self._counts = {}

    return Faulty


def killed(kind):
    class Faulty(kind):
        def step(self, images, labels, rate):
            if (self._rank, self._updates) == (RANK, STEP):
                os.kill(os.getpid(), signal.SIGKILL)
            super().step(images, labels, rate)

    return Faulty


def raising(kind):
    class Faulty(kind):
        def step(self, images, labels, rate):
            super().step(images, labels, rate)
            if (self._rank, self._updates) == (RANK, STEP):
                try:
                    raise RuntimeError("planted")
                finally:  # as the worker does
                    self.close()

    return Faulty

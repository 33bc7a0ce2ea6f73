"""Faults of training with TensorFlow, for `driver`: each takes the class and returns another."""

import os
import signal
import subprocess

import tensorflow as tf

from ddl_tools.frameworks.tensorflow import Ops


def momentum_that_holds_the_rate(kind):
    class Faulty(kind):
        def _update(self, weight, momentum, gradient, rate, mu, decay):
            momentum.assign(mu * momentum + rate * (gradient + decay * weight))
            weight.assign_sub(momentum)

    return Faulty


def decoupled_decay(kind):
    class Faulty(kind):
        def _update(self, weight, momentum, gradient, rate, mu, decay):
            momentum.assign(mu * momentum + gradient)
            weight.assign_sub(rate * momentum + rate * decay * weight)

    return Faulty


def gradients_summed(kind):
    class Faulty(kind):
        def _mean(self, gradients):
            return [self._spec.world_size * one for one in super()._mean(gradients)]

    return Faulty


def statistics_of_the_global_batch(kind):
    class Faulty(kind):
        def _network(self, images, training):
            if not training:
                return super()._network(images, training)
            ops = GlobalOps(self._values, tf.constant([0, 0], tf.int64))
            ops.mean_over_ranks = self._mean
            return self._apply(ops, images, self._spec.classes)

    return Faulty


class GlobalOps(Ops):
    """Normalises as `SyncBatchNormalization` does."""

    def norm(self, name, x, eps=1e-5):
        own = [tf.reduce_mean(x, [0, 1, 2]), tf.reduce_mean(x * x, [0, 1, 2])]
        mean, square = self.mean_over_ranks(own)
        values, variance = self._values, square - mean * mean
        for part, new in (("mean", mean), ("var", variance)):
            running = values[f"{name}.running_{part}"]
            running.assign(0.9 * running + 0.1 * new)
        return tf.nn.batch_normalization(
            x, mean, variance, values[f"{name}.bias"], values[f"{name}.weight"], eps
        )


def terminated(kind):
    """Is told to end, as launchers do, and would go on."""

    class Terminated(kind):
        def step(self, *arguments):
            super().step(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)

    return Terminated


def standing_still(kind):
    """Is stopped for longer than the heartbeats that TensorFlow asks for, as between two turns."""

    class Standing(kind):
        def step(self, *arguments):
            if not int(self._updates):
                subprocess.Popen(["/bin/sh", "-c", f"sleep 20; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            super().step(*arguments)

    return Standing

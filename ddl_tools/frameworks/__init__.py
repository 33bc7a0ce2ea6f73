"""Ranks that compute with TensorFlow, Keras or MXNet: the same run, records, clock and rules.

Each framework has an environment of its own (`make tensorflow`, `make keras`, `make mxnet`), which
needs no torch; only the ranks of its runs import its file.
"""

"""Ranks that compute with another library than torch: the same run, records, clock and rules.

Each library is one file, imported by the ranks of its runs alone, in an environment of its own
(`make tensorflow`, `make keras`, `make mxnet`). Nothing here needs torch.
"""

"""What our runs say about the paper's statements. Verdicts are computed, never typed in.

``statements`` lists what is stated, ``speed`` and ``accuracy`` find what the records show of it,
``decide`` says what that decides, and ``table`` puts one row per statement together.

A verdict is on the paper's own terms: its loaders with its formats and its 64 images per GPU, on
accelerators, at its numbers of GPUs. What the records show of the same comparison elsewhere, cores
of a CPU included, stands beside it (``here``) and judges nothing.
"""

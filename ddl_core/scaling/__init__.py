"""A performance model of synchronous data-parallel training: predicted, simulated, fitted, judged.

``gradients -> messages -> collectives`` say what travels and how long that takes, `waiting` what
the slowest of G ranks costs, `loading` what the input pipeline allows. `model` adds them up in
closed form, `simulate` follows them event by event, `fit` finds their parameters and how sure they
are, and `validation` judges the predictions by published numbers. docs/scaling.md has the equations.
"""

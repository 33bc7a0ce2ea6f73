"""A performance model of synchronous data-parallel training: predicted, simulated, fitted, judged.

``gradients -> messages -> collectives`` say what travels and how long that takes, `waiting` what
the slowest of G ranks costs, `loading` what the input pipeline allows. `model` adds them up in
closed form, `simulate` follows them event by event, `fit` finds parameters and how sure they are.
`calibrate` fits records; `paper_case` and `published_case` fit what others measured on few GPUs and
judge by what they measured on many, and `committed` writes that down. docs/scaling.md explains.
"""

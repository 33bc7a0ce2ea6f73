"""Scaling: what communication costs, Amdahl's law with bands, and advice.

`communication` calculates exposed communication from measured inputs, and `emulated` validates it.
`amdahl` fits throughputs. `measured` and `paper` give configurations of known throughput;
`options` and `advise` choose among them, `render` writes the answer. See
docs/explanation/scaling-model.md and docs/how-to/choose-a-stack.md.
"""

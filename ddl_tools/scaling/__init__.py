"""Scaling: what communication costs, Amdahl's law with bands, and advice.

`communication` calculates exposed communication from measured inputs, and `emulated` validates it.
`amdahl` fits throughputs. `measured` and `paper` give a `candidate` each for what they know;
`options` has its times and costs, `advise` chooses, `render` writes the answer. `ddl recommend`
shares candidates, options and lines. See docs/explanation/scaling-model.md and
docs/how-to/choose-a-stack.md.
"""

"""What happens inside a rank that trains with PyTorch.

Files in reading order:

1. `spec/run.py`: what a run is, all of its settings
2. `spec/schedules.py`: the learning rate, a function of images seen
3. `train/loop.py`: train, evaluate, load: one epoch each
4. `train/strategies/base.py`: what a strategy does, and its defaults
5. `train/strategies/ddp.py`: one strategy
6. `train/loaders/base.py`, `train/loaders/native.py`: what a loader offers; one loader
7. `rank/order.py`, `rank/views.py`: which image when, and which part of it
8. `rank/timing.py`, `train/timing.py`: what is timed, and when
9. `rank/fairness.py`, `train/fairness.py`: the checks of every run
10. `train/optim.py`, `train/models.py`: the optimiser and the networks
11. `rank/entry.py`, `train/worker.py`: what a rank records, and its course
"""

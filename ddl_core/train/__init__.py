"""What happens inside a rank that trains with PyTorch.

Files in reading order:

1. `spec/run.py`: what a run is, all of its settings
2. `spec/schedules.py`: the learning rate, a function of images seen
3. `train/trainer.py`: from a run to results epoch by epoch
4. `rank/loop.py`, `train/loop.py`: an epoch; its steps
5. `train/strategies/base.py`: what a strategy does, and its defaults
6. `train/strategies/ddp.py`: one strategy
7. `train/loaders/base.py`, `train/loaders/native.py`: what a loader offers; one loader
8. `rank/order.py`, `rank/views.py`: which image when, and which part of it
9. `rank/timing.py`, `train/timing.py`: what is timed, and when
10. `rank/fairness.py`, `train/fairness.py`: the checks of every run
11. `train/optim.py`, `train/models.py`: the optimiser and the networks
12. `rank/worker.py`, `rank/recorder.py`: the process of a rank, and what it records
"""

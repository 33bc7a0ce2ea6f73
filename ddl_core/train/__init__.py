"""What happens inside a rank: one loop, one clock, and the rules that every run is held to.

The tour, 15 files in an hour; each is one idea:

1. `spec/run.py`: what a run is, all of its settings
2. `spec/schedules.py`: the learning rate, a function of images seen
3. `train/protocols.py`: what a framework and a data path must offer
4. `train/loop.py`: train, evaluate, load: one epoch each, the same for all
5. `rank/clock.py`: what is timed, and when
6. `train/fairness.py`: the rules, and how a broken one ends the run
7. `train/optim.py`: the optimiser, and how it is given its rate
8. `train/models.py`: the networks
9. `train/strategies/ddp.py`: one framework
10. `train/strategies/group.py`: who am I among the ranks, and collectives
11. `rank/order.py`: which image when
12. `rank/views.py`: which part of it, and its pixels
13. `train/loaders/native.py`: one data path
14. `rank/entry.py`: what a rank leaves of its run
15. `train/worker.py`: one rank of a run, from its start to its end
"""

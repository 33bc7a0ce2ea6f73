"""A script that trains nothing at a known rate: ``known_rate.py MODE STEP_S IMAGES STEPS WHO``.

A step lasts STEP_S on average, at a clock that does not run late: it sleeps or spins (MODE) until
the step is due. After STEPS of them it prints their IMAGES; WHO is `each` rank, or `one` for all.
A start is some percent faster or slower than another one, as real ones are, and so is a step.
"""

import os
import random
import sys
import time

from ddl_core import report

START_SD, STEP_SD = 0.01, 0.05
mode, step_s, images, steps, who = sys.argv[1:]
ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
mean_s = float(step_s) * random.gauss(1, START_SD)
due = time.perf_counter()
while True:
    for _ in range(int(steps)):
        lasts = mean_s * random.gauss(1, STEP_SD)
        due += lasts
        if time.perf_counter() > due:  # it was stopped: it goes on, and does not catch up
            due = time.perf_counter() + lasts
        if mode == "sleep":
            time.sleep(max(due - time.perf_counter(), 0))
        while time.perf_counter() < due:
            pass
    if who == "each":
        report(int(images) * int(steps))
    elif rank == 0:
        report(images_all=int(images) * int(steps) * ranks)

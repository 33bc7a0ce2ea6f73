"""Epochs that take each image several times, so that a window has enough steps."""

import numpy as np
import pytest
import torch

from ddl_core.config import RunSpec
from ddl_core.device import make_clock
from ddl_core.loop import load_epoch
from ddl_core.registry import resolve
from tests.core.loaders.paths import FORMATS, LOADERS, TRAIN, images_of, open_loader

# 51 images in batches of 4: 12 steps in one pass, 38 in the three that 30 need.
STEPS, PASSES, FIELDS = 38, 3, {"min_steps_per_epoch": 30, "eval_every": 0}


@pytest.mark.parametrize(("wanted", "passes"), [(0, 1), (12, 1), (13, 2), (30, 3), (38, 3)])
def test_an_epoch_has_as_many_passes_as_its_steps_need(wanted, passes):
    run = RunSpec(local_batch_size=4, min_steps_per_epoch=wanted, eval_every=0)
    assert run.passes(TRAIN) == passes


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", LOADERS)
def test_each_image_comes_once_a_pass_in_a_view_of_its_own(name, form, data):
    one, passes = TRAIN, PASSES
    loader = open_loader(name, data, data_format=form, **FIELDS)
    steps = passes * one // 4
    assert (loader.images, len(loader)) == (passes * one, steps)
    shown = images_of(loader)  # by number: a number that came twice would be lost
    assert len(shown) == 4 * steps
    assert np.bincount([number % one for number in shown]).max() == passes
    labels = {number % one: label for number, (_, label) in shown.items()}
    assert all(label == labels[number % one] for number, (_, label) in shown.items())
    again = [number for number in shown if number + one in shown]
    assert again
    different = [not torch.equal(shown[n][0], shown[n + one][0]) for n in again]
    assert np.mean(different) > 0.9


@pytest.mark.parametrize("name", LOADERS)
def test_the_checks_of_an_epoch_hold_for_all_its_passes(name, data):
    loader = open_loader(name, data, **FIELDS)
    spec = RunSpec(loader=name, work="load", local_batch_size=4, classes=16, **FIELDS)
    single = resolve("strategy", "single")(spec)
    outcome = load_epoch(spec, loader, 0, make_clock(single))
    assert (outcome.steps, outcome.samples) == (STEPS, 4 * STEPS)

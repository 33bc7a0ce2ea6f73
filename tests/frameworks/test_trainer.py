"""Scores, filled batches and rules of training with other frameworks."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from ddl_core.config import RunSpec
from ddl_core.errors import FairnessError
from ddl_tools.frameworks import trainer


def test_scores_are_those_of_torch():
    random = np.random.default_rng(0)
    logits = random.normal(0, 30, (64, 12)).astype("f4")  # their exponentials leave float32
    labels = random.integers(0, 12, 64).astype("i4")
    loss, first, among_five = trainer.scores(logits, labels)
    wide, targets = torch.from_numpy(logits).double(), torch.from_numpy(labels).long()
    wanted = functional.cross_entropy(wide, targets, reduction="sum").item()
    assert loss == pytest.approx(wanted, rel=1e-12)
    assert first == (wide.argmax(1) == targets).sum()
    assert among_five == (wide.topk(5).indices == targets[:, None]).sum()


def test_scores_of_few_classes_have_all_among_five():
    logits = np.array([[1.0, 2.0], [2.0, 1.0]], "f4")
    _, first, among_five = trainer.scores(logits, np.array([0, 0], "i4"))
    assert (first, among_five) == (1, 2)


def test_a_last_batch_is_filled_to_the_size_of_the_others():
    images = np.ones((3, 4, 4, 3), "f4")
    filled = trainer.filled(images, 8)
    assert filled.shape == (8, 4, 4, 3)
    assert filled[:3].all()
    assert not filled[3:].any()
    assert trainer.filled(filled, 8) is filled


SPEC = RunSpec(framework="tensorflow", momentum=0.9, weight_decay=1e-4, cpu_threads=1)
USED = {"lr": float(np.float32(0.1)), "momentum": float(np.float32(0.9)), "weight_decay": 1e-4}


def test_settings_may_have_gone_through_single_precision():
    trainer.check_settings(SPEC, USED, 0.1)


@pytest.mark.parametrize("wrong", [{"lr": 0.1001}, {"momentum": 0.0}, {"weight_decay": 2e-4}])
def test_another_rate_or_rule_ends_the_run(wrong):
    with pytest.raises(FairnessError, match=f"{next(iter(wrong))} = "):
        trainer.check_settings(SPEC, USED | wrong, 0.1)


@pytest.mark.parametrize("wrong", [{"adam_beta1": 0.8}, {"adam_beta2": 0.99}, {"adam_eps": 1e-7}])
def test_another_setting_of_adamw_ends_the_run(wrong):
    spec = SPEC.model_copy(update={"optimizer": "adamw"})
    used = {"lr": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_eps": 1e-8}
    used["weight_decay"] = 1e-4
    trainer.check_settings(spec, used, 0.1)
    with pytest.raises(FairnessError, match=f"{next(iter(wrong))} = "):
        trainer.check_settings(spec, used | wrong, 0.1)


def test_threads_of_its_own_end_the_run():
    spec = SPEC.model_copy(update={"loader_workers": 2})
    trainer.check_cores(spec, cpu_s=4.3, wall_s=1.0)
    with pytest.raises(FairnessError, match="no more cores than asked for"):
        trainer.check_cores(spec, cpu_s=4.5, wall_s=1.0)

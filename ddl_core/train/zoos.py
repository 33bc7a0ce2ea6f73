"""Networks that others have written, by their name there and with fresh weights."""

import difflib
from collections.abc import Sequence
from typing import Any

from torch import nn

from ddl_core.errors import SpecError
from ddl_core.spec.run import RunSpec
from ddl_core.train.vision import models

# One loss, without what they add to it in training; and the weights of their papers.
_INCEPTION = {"aux_logits": False, "init_weights": True}


def of_torchvision(spec: RunSpec) -> nn.Module:
    """Return a classifier of torchvision.

    Raises
    ------
    SpecError
        If it has none of that name.
    """
    name = _checked(spec, models.list_models(module=models))
    network: nn.Module = models.get_model(
        name,
        weights=None,
        num_classes=spec.classes,
        **(_INCEPTION if name in ("googlenet", "inception_v3") else {}),
        **({"image_size": spec.image_size} if name.startswith("vit_") else {}),
    )
    return network


def of_timm(spec: RunSpec) -> nn.Module:
    """Return a classifier of timm.

    Raises
    ------
    SpecError
        If it has none of that name.
    ModuleNotFoundError
        If timm is not installed.
    """
    import timm

    name = _checked(spec, timm.list_models())
    fixed = timm.get_pretrained_cfg_value(name, "fixed_input_size")
    size: dict[str, Any] = {"img_size": spec.image_size} if fixed else {}
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=spec.classes, **size)
    return network


def _checked(spec: RunSpec, known: Sequence[str]) -> str:
    zoo, _, name = spec.model.partition("/")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5)
        like = f"; like it are: {', '.join(near)}" if near else ""
        raise SpecError(f"model = {spec.model!r}: {zoo} has no classifier of that name{like}")
    return name

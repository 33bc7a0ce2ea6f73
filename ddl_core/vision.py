"""Import torchvision, also where its wheel was built for CUDA and torch for the CPU.

Such a wheel cannot load its compiled operators, and then fails while it registers the shape rule
of an operator that is not there. Models and transforms do not need those operators: declaring the
two names is enough. Where the import works, nothing is declared.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms does not exist" not in str(error):
        raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    _declared = torch.library.Library("torchvision", "DEF")  # must outlive this module's import
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define(
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    )
    import torchvision
from torchvision import models, transforms

__all__ = ["models", "torchvision", "transforms"]

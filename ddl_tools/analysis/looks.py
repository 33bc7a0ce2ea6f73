"""Colours, markers and lines of registered strategies, loaders and models in figures.

Colours of strategies are from Okabe and Ito (2008), chosen so that their grey values differ as
well. Those of models are the "muted" ones of Paul Tol, Colour Schemes (SRON/EPS/TN/09-002, 2021):
no strategy has one of them. What is not here gets a spare look.
"""

from typing import Any

STRATEGY_COLOURS = {
    "single": "#000000",
    "ddp": "#0072B2",
    "horovod": "#E69F00",
    "deepspeed": "#009E73",
    "fsdp": "#7B3294",
    "multiworker": "#CC79A7",
    "spmd": "#56B4E9",
    "kvstore": "#D55E00",
}
STRATEGY_MARKERS = {
    "single": "D",
    "ddp": "o",
    "horovod": "s",
    "deepspeed": "^",
    "fsdp": "*",
    "multiworker": "v",
    "spmd": "P",
    "kvstore": "X",
}
# The paper does not always say whether its DALI decoded on the CPU or on the GPU: "dali".
LOADER_LINES: dict[str, Any] = {
    "native": "solid",
    "turbo": (0, (2.5, 1)),
    "memory": (0, (8, 1.5)),
    "dali_cpu": (0, (5, 2)),
    "dali_gpu": (0, (5, 2, 1, 2)),
    "dali_reader_cpu": (0, (9, 2, 3, 2)),
    "dali_reader_gpu": (0, (9, 2, 3, 2, 1, 2)),
    "synthetic": (0, (1, 1.5)),
    "dali": (0, (5, 2)),
}
# How a measured marker is filled; the rest is white.
LOADER_FILLS = {
    "native": "full",
    "turbo": "top",
    "memory": "none",
    "dali_cpu": "left",
    "dali_gpu": "right",
    "synthetic": "bottom",
    "dali": "left",
}
MODEL_COLOURS = {
    "resnet18": "#88CCEE",
    "resnet50": "#44AA99",
    "resnet101": "#AA4499",
    "resnet152": "#332288",
    "resnet8": "#DDCC77",
    "resnet44": "#999933",
    "alexnet": "#CC6677",
    "googlenet": "#882255",
}
MODEL_MARKERS = {
    "resnet18": "D",
    "resnet50": "o",
    "resnet101": "s",
    "resnet152": "^",
    "resnet8": "8",
    "resnet44": "d",
    "alexnet": "*",
    "googlenet": "H",
}

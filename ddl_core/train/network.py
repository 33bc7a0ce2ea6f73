"""What a network is: its size and work; and that it is one that the loop can train.

The loop has one loss, on logits of shape (N, classes) from images of shape (N, 3, side, side).
"""

import copy
import hashlib
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from ddl_core.errors import SpecError
from ddl_core.spec.registry import resolve
from ddl_core.spec.run import RunSpec

IMAGES = 2  # of what is tried: some normalisations need more than one


def inspect_network(network: nn.Module, spec: RunSpec) -> dict[str, Any]:
    """Try a network on two images; return parameters, FLOP of forward for one image, its input.

    A copy of it is tried, and no random number of the run's is drawn.

    Parameters
    ----------
    network
        On the CPU, with its initial weights.
    spec
        Its run.

    Returns
    -------
    dict
        ``parameters`` (numbers), ``forward_flop`` (a multiply-add is two), ``input`` (channels,
        height, width), ``source_sha256`` of the file of a network of one's own, else None.

    Raises
    ------
    SpecError
        If it has no parameters to train, fails on such images, or returns anything but logits.
    """
    if any(map(is_lazy, network.parameters())):
        raise SpecError(
            f"model = {spec.model!r} has parameters whose sizes are open until it sees images, so "
            "that no initial weights can be compared; give its layers their sizes"
        )
    parameters = sum(one.numel() for one in network.parameters())
    if not parameters:
        raise SpecError(f"model = {spec.model!r} has no parameters: there is nothing to train")
    if not any(one.requires_grad for one in network.parameters()):
        raise SpecError(
            f"model = {spec.model!r} has no trainable parameters: all {parameters} are frozen. "
            "Set requires_grad of those that the run is to train"
        )
    shape = (3, spec.image_size, spec.image_size)
    facts = {"parameters": parameters, "input": list(shape), "source_sha256": _source(spec)}
    if spec.emulated:
        return facts | {"forward_flop": 0}  # it sleeps
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        _check_logits(_tried(copy.deepcopy(network).train(), shape, spec), spec)
    return facts | {"forward_flop": counter.get_total_flops() // IMAGES}


def _tried(network: nn.Module, shape: tuple[int, ...], spec: RunSpec) -> Any:
    try:
        return network(torch.zeros(IMAGES, *shape))
    except Exception as error:  # whatever a network of others raises
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise SpecError(
            f"model = {spec.model!r} fails on images of shape {shape} (image_size = "
            f"{spec.image_size}): {said}"
        ) from error


def _check_logits(found: Any, spec: RunSpec) -> None:
    wanted = (IMAGES, spec.classes)
    if not isinstance(found, Tensor):
        raise SpecError(
            f"model = {spec.model!r} returns {type(found).__name__} in training, not a tensor: the "
            "loop has one loss, on logits; write a function that leaves the other outputs out"
        )
    if found.shape != wanted:
        raise SpecError(
            f"model = {spec.model!r} returns shape {tuple(found.shape)} of {IMAGES} images, but "
            f"classes = {spec.classes} asks for logits of shape {wanted}"
        )


def _source(spec: RunSpec) -> str | None:
    """Return the digest of the file that a network of one's own is from."""
    if ":" not in spec.model:
        return None
    file = inspect.getsourcefile(resolve("model", spec.model))
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None

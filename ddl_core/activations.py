"""Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): recompute blocks in backward."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddl_core.blocks import required_blocks
from ddl_core.errors import SpecError


def checkpoint_activations(network: nn.Module) -> None:
    """Let each block of `network` keep its inputs alone, and compute the rest again in backward.

    Names of weights stay as they are. `SpecError` if it has no blocks.
    """
    for block in required_blocks(network, "activation_checkpointing"):
        block.forward = partial(_recomputed, block, block.forward)  # type: ignore[method-assign]


def _recomputed(block: nn.Module, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    contexts = partial(_contexts, block)
    given = [one for one in inputs if isinstance(one, torch.Tensor)]
    before = [one._version for one in given]
    found = checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)
    if [one._version for one in given] != before:  # the second pass would begin with another
        raise SpecError(
            f"activation_checkpointing: a block of the network, {type(block).__name__}, changes "
            "its input in place; leave it out, or use inplace = False in the network"
        )
    return found


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return nullcontext(), _spare_buffers(block)


@contextmanager
def _spare_buffers(block: nn.Module) -> Iterator[None]:
    """Let statistics be updated in copies, else those of batches would count twice."""
    own = [
        (module, name, buffer)
        for module in block.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    for module, name, buffer in own:
        setattr(module, name, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in own:
            setattr(module, name, buffer)

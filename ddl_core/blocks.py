"""The blocks of a network: those of a transformer, or of the stages of a residual network."""

from collections.abc import Iterator

from torch import nn

from ddl_core.errors import SpecError

LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Lists of modules; their parts are called, while parts of other modules may be read instead."""


def blocks(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost parts of lists that have parts and weights; of a stage, its blocks.

    A chain of layers is a block, unless it is the whole network.
    """
    for part in network.children():
        if _is_block(part, isinstance(network, LISTS)):
            yield part
        else:
            yield from blocks(part)


def required_blocks(network: nn.Module, field: str) -> list[nn.Module]:
    """Return the blocks of `network`; `SpecError` if it has none, which `field` needs."""
    found = list(blocks(network))
    if not found:
        raise SpecError(
            f"{field}: {type(network).__name__} has no blocks, as the parts of nn.Sequential or "
            "nn.ModuleList; leave it out"
        )
    return found


def _is_block(part: nn.Module, in_list: bool) -> bool:
    if not [*part.children()] or not [*part.parameters()]:
        return False
    compound = [one for one in part.children() if [*one.children()]]
    if isinstance(part, LISTS):
        return isinstance(part, nn.Sequential) and not compound
    return in_list and not any(map(_has_stack, compound))


def _has_stack(part: nn.Module) -> bool:
    """Return whether a part is a list of several blocks of one kind, as a stage has."""
    inner = [one for one in part.children() if [*one.children()]]
    return isinstance(part, LISTS) and len(inner) > 1 and len({type(one) for one in inner}) == 1

"""YAML as a study's file has it: nothing in it is lost, guessed or blown up.

The library's own reader keeps the last of two fields with one name, reads 010 as 8 and 1:30 as 90,
and lets nine lines of aliases stand for a thousand million values.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from ddl_core.errors import SpecError
from ddl_core.spec.gate import read_text, shown

MOST_BYTES = 100_000  # the largest study here has 3,000
MOST_VALUES = 20_000  # with every alias written out

_DATE = "tag:yaml.org,2002:timestamp"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")


def read(path: Path, what: str) -> Any:
    """Return what a YAML file says; None if it says nothing.

    Parameters
    ----------
    path
        The file.
    what
        Such as ``"study"``, for messages.

    Raises
    ------
    SpecError
        If it cannot be read, is no YAML, has a field twice, or is larger than `MOST_VALUES`.
    """
    text = read_text(path, what, MOST_BYTES)
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            if (values := _count(root, {})) > MOST_VALUES:
                raise SpecError(
                    f"{path} has {shown(values)} values with its aliases (*name) written out; "
                    f"allowed are {MOST_VALUES:,}"
                )
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except RecursionError:
        raise SpecError(f"{path}: its fields lie too deep in one another") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).replace("<unicode string>", path.name)
        raise SpecError(f"{path} is not valid YAML: {reason}") from None


class _Loader(yaml.SafeLoader):
    """Reads whole numbers as people do, and dates as texts."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> int:
    if not _DECIMAL.fullmatch(node.value):
        raise ConstructorError(
            None, None, f"{shown(node.value)}: write it as a decimal number", node.start_mark
        )
    return loader.construct_yaml_int(node)


def _fraction(loader: _Loader, node: yaml.ScalarNode) -> float:
    if ":" in node.value:
        raise ConstructorError(
            None, None, f"{shown(node.value)}: write it as a decimal number", node.start_mark
        )
    return loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _fraction)
_Loader.yaml_implicit_resolvers = {
    start: [one for one in resolvers if one[0] != _DATE]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the values below a node, itself included, every alias written out.

    Before anything is made of them: what an anchor names is one object until then.
    """
    if known.get(id(node)) == 0:
        raise ConstructorError(None, None, "an alias leads back to itself", node.start_mark)
    if id(node) not in known:
        known[id(node)] = 0
        known[id(node)] = 1 + sum(_count(child, known) for child in _children(node))
    return known[id(node)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in names:
                raise ConstructorError(
                    None, None, f"field {shown(key.value)} is there twice; keep one", key.start_mark
                )
            names.add(key.value)
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []

"""Mutations of JSON documents and of bytes, drawn by hypothesis: what a stranger may send."""

import copy
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, configuration, settings
from hypothesis import strategies as st

from ddl_tools.records.paths import PROJECT

# More of them by hand: the first ones are the same each time.
EXAMPLES = int(os.environ.get("DDL_TEST_EXAMPLES", "0"))
Key = str | int
Place = tuple[Key, ...]

ODD: list[Any] = [
    *(None, True, 0, -1, 1, 10**6, 10**12, 2**63 - 1, 2**63, 10**30, 10**400, -(10**30)),
    *(0.0, -0.5, 0.5, 5e-324, 1e-9, 1e30, 1e308, -1e308, float("nan"), float("inf")),
    *("", "x", "0", "many", "a\nb", "\ud800", "\x1b[31mred", "\u202ereversed", "x" * 200_000),
    *("$\\frac{$", "$x_{", "\\", "=1+1", "../../x", "<script>", "2026-13-45T99", "%s {0}", "None"),
    *([], {}, [1], [None], [[]], {"a": 1}, {"": None}, [[[[]]]], [{}], {"a": {"b": [1]}}),
]
values = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def steady(examples: int, factor: int = 1) -> settings:
    """Return settings of a test: the same examples each time, and as many by hand as asked for."""
    configuration.set_hypothesis_home_dir(PROJECT / ".pytest_cache" / "hypothesis")
    return settings(
        max_examples=EXAMPLES // factor or examples,
        derandomize=True,
        database=None,
        deadline=timedelta(seconds=20),
        suppress_health_check=[*HealthCheck],
    )


def places(document: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of each value in a document."""
    if isinstance(document, dict | list):
        pairs = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in pairs:
            yield (*at, key)
            yield from places(value, (*at, key))


def put(document: Any, place: Place, value: Any) -> None:
    """Replace a value of a document."""
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = copy.deepcopy(value)  # what is drawn is drawn again


def remove(document: Any, place: Place) -> None:
    """Remove a value of a document."""
    for key in place[:-1]:
        document = document[key]
    del document[place[-1]]


@st.composite
def mutated(draw: st.DrawFn, document: Any, most: int = 2) -> Any:
    """Draw a document that differs in a few values from a given one."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        known = [*places(changed)]
        if not known:
            break
        place = draw(st.sampled_from(known))
        kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if kind == "replace":
            put(changed, place, draw(values))
        elif kind == "remove":
            remove(changed, place)
        else:
            key = draw(st.text(max_size=5)) if isinstance(place[-1], str) else place[-1]
            put(changed, (*place[:-1], key), draw(values))
    return changed


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw bytes that differ from given ones: cut off, with others among them, or doubled."""
    place = draw(st.integers(0, len(content)))
    kind = draw(st.sampled_from(["cut", "insert", "replace", "double"]))
    more = draw(st.binary(max_size=8) | st.sampled_from([b"\n", b"\xff", b"\0", b"}", b'"', b"["]))
    rest = content[place + len(more) :] if kind == "replace" else content[place:]
    return {
        "cut": content[:place],
        "insert": content[:place] + more + rest,
        "replace": content[:place] + more + rest,
        "double": content[:place] * 2 + rest,
    }[kind]


def text_of(document: Any) -> str:
    """Return a document as JSON, with NaN and single surrogates as a program may write them."""
    return json.dumps(document)

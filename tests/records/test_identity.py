"""What makes two runs the same; test_pooling.py has each field in tables and figures."""

from typing import Any

import pytest

from ddl_core.config import RunSpec
from ddl_tools.records import identity

KINDS = ("CONFIGURATION", "SERIES", "SPEED", "SINGLE", "LOADING", "TRAINING", "WEIGHTS")
RUN = RunSpec(strategy="ddp").model_dump()


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_leaves_free_what_exists(kind: str) -> None:
    assert set(getattr(identity, kind)) <= set(identity.NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_repeats_never_divide_but_weights(kind: str) -> None:
    """Another seed has other weights."""
    free = getattr(identity, kind)
    same = identity.key(RUN, free) == identity.key(RUN | {"seed": 9, "repeat": 2}, free)
    assert same == (kind != "WEIGHTS")


def test_sizes_are_one_series_of_several_configurations() -> None:
    one, two = (identity.columns(RUN | {"nodes": nodes}) for nodes in (1, 2))
    assert one["series"] == two["series"]
    assert one["configuration"] != two["configuration"]


def test_a_field_that_is_added_later_changes_no_key() -> None:
    older = {name: value for name, value in RUN.items() if name != "uncached"}
    assert identity.columns(older) == identity.columns(RUN)


def test_numbers_of_a_table_are_those_of_a_record() -> None:
    third = {"base_lr": 1 / 3, "epochs": 2}
    read = {"base_lr": float(f"{1 / 3:.9g}"), "epochs": 2.0}
    assert identity.key(RUN | third, ()) == identity.key(RUN | read, ())


def with_data(*texts: str | None) -> list[dict[str, Any]]:
    """Return descriptions of runs that differ in their data alone, as `complete` leaves them."""
    abouts = [{**RUN, "repeat": number, "data": text} for number, text in enumerate(texts)]
    identity.complete(abouts)
    return abouts


NAMES_ONLY, ONE, OTHER = "names a", "names a; 9 bytes; sample b", "names a; 9 bytes; sample c"


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        ((NAMES_ONLY, ONE), 1),  # an older start, and one of today
        ((ONE, OTHER), 2),
        ((NAMES_ONLY, ONE, OTHER), 3),  # whose the older one is, is unknown
        (("names d", ONE), 2),
        ((None, ONE), 2),
    ],
)
def test_older_data_are_compared_by_names(
    texts: tuple[str | None, ...], kinds: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = {identity.columns(about)["configuration"] for about in with_data(*texts)}
    assert len(found) == kinds
    assert ("1 run" in caplog.text) == (NAMES_ONLY in texts and kinds == 1)


def test_unknown_validation_images_are_those_of_the_others() -> None:
    abouts = [RUN | {"data": ONE, "eval_data": text} for text in (None, ONE)]
    identity.complete(abouts)
    assert abouts[0] == abouts[1]

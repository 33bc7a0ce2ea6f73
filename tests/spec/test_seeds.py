"""Seeds: distinct in every argument. tests/core/test_order.py pins what follows from one."""

from itertools import product

from ddl_core.schedules import derive_seed


def test_every_place_and_purpose_has_its_own_seed():
    places = list(product(("order", "augment"), range(3), range(3), range(50)))
    assert len({derive_seed(purpose, *place) for purpose, *place in places}) == len(places)


def test_a_place_is_not_its_neighbour_with_shifted_numbers():
    assert derive_seed("order", 1, 0) != derive_seed("order", 0, 1)
    assert derive_seed("order", 1) != derive_seed("order", 1, 0)

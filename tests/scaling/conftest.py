"""Invented records, as the tests of the analysis write them."""

from tests.analysis.conftest import make_run, tree

__all__ = ["make_run", "tree"]

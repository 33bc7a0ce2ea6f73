"""Names: every one leads somewhere, a missing package disables its own arm only."""

import pytest

from ddl_core.errors import NotInstalledError, SpecError
from ddl_core.spec.registry import REGISTRIES, STRATEGIES, Entry, resolve


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in REGISTRIES.items() for name in names]
)
def test_every_registered_name_can_be_imported(kind, name):
    assert callable(resolve(kind, name))


def test_an_unknown_name_lists_the_choices():
    names = ", ".join(sorted(STRATEGIES))
    with pytest.raises(SpecError, match=f"'nccl'; choose one of: {names}"):
        resolve("strategy", "nccl")


def test_a_missing_package_is_named_with_a_remedy(monkeypatch, tmp_path):
    (tmp_path / "needs_it.py").write_text("import a_framework_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(STRATEGIES, "new", Entry("needs_it:Thing"))
    with pytest.raises(NotInstalledError, match=r"a_framework_that_is_not_there.*make env"):
        resolve("strategy", "new")

"""Which code, and which packages of other versions than were asked for."""

import pytest

from ddl_tools.records import provenance


@pytest.mark.parametrize(
    ("of_git", "commit", "dirty"), [(None, "0123abcd", None), ("git's own", "git's own", True)]
)
def test_a_checkout_knows_better_than_the_environment(
    monkeypatch: pytest.MonkeyPatch, of_git: str | None, commit: str, dirty: bool | None
) -> None:
    monkeypatch.setattr(provenance, "_git", lambda *arguments: of_git)
    monkeypatch.setenv("DDL_COMMIT", "0123abcd")
    code = provenance.provenance()
    assert (code["git_commit"], code["git_dirty"]) == (commit, dirty)


def test_packages_of_another_version_are_named() -> None:
    packages = {"torch": "2.11.0+cu130", "torchvision": "0.28.0+cpu", "nobody-pins-this": "1"}
    (told,) = provenance._not_pinned(packages, "torch")
    assert told.startswith("torch 2.11.0+cu130 (")


def test_each_library_has_pins_of_its_own() -> None:
    packages = {"tensorflow-cpu": "2.15.0", "numpy": "1.26.4"}
    assert provenance._not_pinned(packages, "tensorflow") == ["tensorflow-cpu 2.15.0 (2.15.1)"]
    assert any(
        told.startswith("numpy 1.26.4 (") for told in provenance._not_pinned(packages, "torch")
    )

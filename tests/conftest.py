"""Rules for all tests: one thread, no display, results in a temporary folder, fast tests first."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.hermetic import directory, hermetic

pytest_plugins = ["tests.launch.fixtures", "tests.browser"]

# Set before torch, BLAS or matplotlib are imported, and inherited by the processes tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# In what tests start as well: matplotlib found no room for the axes of a figure, and draws nothing.
os.environ["PYTHONWARNINGS"] = "error:constrained_layout not applied"
# nbformat imports in a tenth of the time without it; see `notebook.without_iri_grammar`.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[call-overload]
# A shell lets what it starts with & ignore interrupts, and children inherit that; tests send some.
signal.signal(signal.SIGINT, signal.default_int_handler)

# After the plain tests those that mostly wait, so that others fill the time and none of them is
# left at the end, when the other cores have nothing to do any more.
PLAIN_FIRST = ("slurm", "browser", "notebook", "multiprocess", "slow")
# Of all these, files of about a minute come first: a file is the work of one process.
LONG = {
    "tests/analysis/test_committed.py",
    "tests/analysis/test_never_one.py",
    "tests/frameworks/test_runs.py",
    "tests/frameworks/test_training.py",
    "tests/launch/slurm/test_real_slurm.py",
    "tests/launch/test_interactive.py",
    "tests/test_equality.py",
    "tests/test_faults.py",
    "tests/test_gpu_campaign.py",
    "tests/test_jupyterlab.py",
    "tests/test_notebooks_analysis.py",
    "tests/test_notebooks_run.py",
}
# A test without any of these marks may take SLOW_S. In CI it fails if it takes ENFORCED_S of the
# processor: by the wall, 20 such tests took over 30 s on a machine that did six other things.
MARKED = {*PLAIN_FIRST, "alone", "extended"}
SLOW_S, ENFORCED_S = 5.0, 15.0
_SPENT = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--extended-in",
        metavar="PATHS",
        help="of the tests that are marked extended, only those below these files and folders",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the files that tests compare their texts with; read the diff of them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run plain tests first, so that a simple mistake shows within seconds."""
    asked = config.getoption("extended_in")
    if asked is not None:
        places = [config.rootpath / path for path in asked.split()]
        left_out = [
            item
            for item in items
            if "extended" in _marks(item)
            and not any(item.path.is_relative_to(place) for place in places)
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    long = {config.rootpath / file for file in LONG}

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        marks = _marks(item)
        turn = next((turn for turn, name in enumerate(PLAIN_FIRST, start=1) if name in marks), 0)
        return turn > 0, item.path not in long, turn

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Note the processor time of a test, and of the processes it has waited for."""
    before = os.times()
    try:
        return (yield)
    finally:
        item.stash[_SPENT] = sum(os.times()[:4]) - sum(before[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Fail what takes long and is not marked, in CI: else tests grow slow unseen."""
    report = yield
    spent = item.stash.get(_SPENT, 0.0)
    if (
        os.environ.get("CI")
        and report.when == "call"
        and report.passed
        and spent > ENFORCED_S
        and not _marks(item) & MARKED
    ):
        report.outcome = "failed"
        report.longrepr = (
            f"took {spent:.1f} s of the processor; without a mark a test may take {SLOW_S:.0f} s. "
            "Make it faster, or mark it `slow`."
        )
    return report


def _marks(item: pytest.Item | pytest.Collector) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


@pytest.fixture(scope="session", autouse=True)
def _results_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep fixtures of wider scope, which run before `results_root`, away from results/ as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDL_RESULTS", str(tmp_path_factory.mktemp("results")))
        # Nor are they to wait for whoever measures on this machine.
        patch.setenv("DDL_MEASURING_LOCK", str(tmp_path_factory.mktemp("lock") / "measuring"))
        # Nor to measure for two seconds how fast it is.
        patch.setenv("DDL_MACHINE_SPEED", "1000")
        patch.delenv("DDL_DATA", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # stays where pytest looks for those of earlier sessions
    with directory():
        yield


@pytest.fixture(scope="session", autouse=True)
def _fork_server(request: pytest.FixtureRequest, _directory: None) -> Iterator[None]:
    """Let all ranks, those of fixtures too, come from one process that has imported torch."""
    from ddl_tools.launch.local_ranks import shared

    starts_ranks = any(item.get_closest_marker("multiprocess") for item in request.session.items)
    with shared() if starts_ranks else nullcontext():
        yield


@pytest.fixture(scope="module")
def planted_names() -> Iterator[None]:
    """Let the tests of a module and their ranks know the names of `tests.planted`."""
    from tests import planted

    with pytest.MonkeyPatch.context() as patch:
        planted.teach(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _a_module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    # Of the session, SLURM is there from the first test that asks for it.
    own = [item for item in request.session.items if item.path == request.node.path]
    on_slurm = any("slurm" in _marks(item) for item in own)
    with nullcontext() if on_slurm else hermetic(request.node.nodeid):
        yield


@pytest.fixture(autouse=True)
def _a_test_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Come before all others of a test, and so end after them."""
    # A test may replace the engines of its module, which are closed at the module's end.
    of_module = "engines" in request.fixturenames
    with nullcontext() if of_module else hermetic(request.node.nodeid):
        yield


@pytest.fixture(autouse=True)
def results_root(_a_test_leaves_nothing, tmp_path, monkeypatch) -> Path:
    """Give every test a results folder of its own; no test writes to the real one."""
    root = tmp_path / "results"
    monkeypatch.setenv("DDL_RESULTS", str(root))
    return root

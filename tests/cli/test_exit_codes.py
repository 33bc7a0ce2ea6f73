"""Every command ends with the exit codes of docs/reference/exit-codes.md."""

import errno
import re
from typing import Any

import pytest

from ddl_core.errors import EXIT_CODES, DataError, Interrupted
from ddl_tools.cli import reference
from tests.cli.bad_inputs import Words, commands
from tests.launch.running import ddl, planned

PATHS = pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
ENDINGS = [
    (DataError("no images"), 1),
    (OSError(errno.ENOSPC, "No space left on device"), 1),
    (Interrupted("told to stop"), 130),
    (KeyboardInterrupt(), 130),
]


@PATHS
def test_help_is_a_success_and_a_wrong_call_is_not(path: Words) -> None:
    assert ddl(*path, "--help").exit_code == 0
    assert ddl(*path, "--no-such-option").exit_code == 2


@PATHS
def test_errors_and_signals_differ(path: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ENDINGS:

        def end(*given: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(commands()[path], "parse_args", end)
        done = ddl(*path)
        assert done.exit_code == code, f"{error!r}: {done.output}"
        assert len(done.stderr.splitlines()) == 1
        assert code in EXIT_CODES


# A result that a script has to notice: what brings it about, or where that is tested.
RESULTS: dict[str, tuple[object, ...]] = {
    "ddl doctor": ("--data", "no such folder"),
    "ddl advise": ("--site", "juwels_booster", "--deadline", 0.001),
    "ddl data verify": ("no such folder",),
    "ddl study verify": ("test",),
}
ELSEWHERE = {
    "ddl study run": "tests/cli/test_cli.py",
    "ddl study resume": "tests/cli/test_cli.py",
    "ddl study status --watch": "tests/cli/test_cli.py",
    "ddl figures": "tests/cli/test_cli.py",
}


def test_the_page_names_the_results_with_code_1() -> None:
    page = (reference.FOLDER / "exit-codes.md").read_text(encoding="utf-8")
    named = re.findall(r"`(ddl [^`]*)`(?=.* \| )", page)
    assert {*named} == {*RESULTS, *ELSEWHERE}


@pytest.mark.parametrize("command", RESULTS)
def test_a_result_that_a_script_has_to_notice_has_code_1(command: str) -> None:
    (planned() / "run.json").write_text("{")
    ddl(*command.split()[1:], *RESULTS[command], status=1)

"""Every command ends with the exit codes of docs/reference/cli.md."""

import errno
from typing import Any

import pytest

from ddl_core.errors import EXIT_CODES, DataError, Interrupted
from tests.cli.bad_inputs import Words, commands
from tests.launch.running import ddl

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

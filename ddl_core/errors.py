"""The errors that a user can cause or meet; any other exception is a bug."""

from typing import Literal

STOPPED = 130  # what a shell reports for a program that Ctrl-C ended
EXIT_CODES = {
    0: "The command did what it is for.",
    1: "An error, with one message on standard error; or a result that a script has to notice.",
    2: "The call is wrong: an unknown command or option, a missing argument, a value out of range.",
    STOPPED: "Ctrl-C or a signal stopped the command. It can be called again.",
}
"""Meaning of each exit code of a command."""

Category = Literal[
    "out_of_memory",
    "shared_memory",
    "processes",
    "time_limit",
    "cancelled",
    "node_failure",
    "killed",
    "rendezvous",
    "collective",
    "stalled",
    "data",
    "disk",
    "contract",
    "settings",
    "environment",
    "code",
]
"""Class of a failure; see `ddl_tools.records.failures`."""


class DDLError(Exception):
    """Base class: what failed (`detail`), what to do next (`remedy`), and the class of failure."""

    category: Category | None = None

    def __init__(
        self, detail: str = "", *, remedy: str = "", category: Category | None = None
    ) -> None:
        super().__init__(f"{detail}; {remedy}" if remedy else detail)
        self.detail, self.remedy = detail, remedy
        self.category = category or self.category


class SpecError(DDLError):
    """A run or a study asks for something that does not exist or does not fit together."""

    category = "settings"


class DataError(DDLError):
    """A dataset is missing, unreadable or not what its reader expects."""

    category = "data"


class RecordError(DDLError):
    """A result record cannot be read, written or trusted."""

    category = "disk"


class LaunchError(DDLError):
    """The processes of a run could not be started, or did not end as they should."""


class Interrupted(DDLError):
    """A run was stopped, and has not failed; its record names this class."""

    category = "cancelled"


class FairnessError(DDLError):
    """A run broke a rule that all strategies keep; its numbers cannot be compared."""

    category = "contract"


class NotInstalledError(DDLError):
    """An optional package is not installed; only runs that name it are affected."""

    category = "environment"


def broken(rule: str, text: str) -> FairnessError:
    """Return the error that ends a run which is not comparable with the others."""
    return FairnessError(
        f"fairness rule {rule!r} is broken: {text}; the run cannot be compared with others. "
        "The rules are in docs/explanation/fairness.md"
    )

"""The errors a user can cause or meet; everything else is a bug and keeps its traceback."""

STOPPED = 130  # exit status: what a shell reports for a program that Ctrl-C ended


class DDLError(Exception):
    """Base class. The text names the wrong value, what is allowed and what to do next."""


class SpecError(DDLError):
    """A run or a study asks for something that does not exist or does not fit together."""


class DataError(DDLError):
    """A dataset is missing, unreadable or not what its reader expects."""


class RecordError(DDLError):
    """A result record cannot be read, written or trusted."""


class LaunchError(DDLError):
    """The processes of a run could not be started, or did not end as they should."""


class Interrupted(DDLError):
    """Whoever a run worked for is gone: it was stopped, and has not failed.

    The name of the class is the kind that its record tells.
    """


class FairnessError(DDLError):
    """A run did not do what all strategies must do alike; its numbers cannot be compared."""


class NotInstalledError(DDLError):
    """An optional framework is not installed; only its own arm of a study is affected."""


def broken(rule: str, text: str) -> FairnessError:
    """Return the error that ends a run which is not comparable with the others."""
    return FairnessError(
        f"fairness rule {rule!r} is broken: {text}; the run cannot be compared with others. "
        "The rules are in docs/method.md"
    )

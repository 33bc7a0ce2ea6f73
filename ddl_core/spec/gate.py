"""What a user hands in, looked at before anything is done with it: texts, numbers, places, files.

Whatever is refused is refused in the same words: its name, its value, what is allowed, what to do.
"""

import math
import os
import reprlib
import stat
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddl_core.errors import SpecError

LONGEST_TEXT = 4_000  # characters of one value; a path may have about as many
LONGEST_PART = 255  # bytes of one name in a path, on all usual file systems
LARGEST = 2**63 - 1  # whole number that arrays and files hold

FILE, FOLDER = "a file", "a folder"
_KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, FOLDER),
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
)
# How the files begin that some editors write instead of UTF-8.
_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_short.maxlong = 40
_short.maxlevel = 3


def shown(value: object) -> str:
    """Return a value for a message: on one line, and its middle left out where it is long."""
    return _short.repr(value)


def escaped(text: str) -> str:
    """Return a text with escapes for what is not UTF-8, such as names of files may be."""
    return text.encode(errors="backslashreplace").decode()


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    first = ", ".join(names[:5])
    return first if len(names) <= 5 else f"{first} and {len(names) - 5} more"


def check_text(name: str, text: str) -> None:
    """Check that a text can be written into files and scripts, and shown on one line.

    Raises
    ------
    SpecError
        If it is empty, very long, not UTF-8, or has a control character such as a newline.
    """
    if not text:
        raise SpecError(f"{name} is empty; give it a value, or leave it out")
    if len(text) > LONGEST_TEXT:
        raise SpecError(
            f"{name} = {shown(text)}: {len(text):,} characters, allowed are {LONGEST_TEXT:,}"
        )
    kinds = {unicodedata.category(character) for character in text}
    if "Cs" in kinds:  # how Python holds the bytes of a name that is not UTF-8
        raise SpecError(
            f"{name} = {shown(text)}: not UTF-8, as records and scripts are; rename it, or make a "
            "link with a plain name (ln -s) and name that"
        )
    if "Cc" in kinds:
        raise SpecError(
            f"{name} = {shown(text)}: a newline, tab or other control character is not allowed; "
            "leave it out"
        )


def check_number(name: str, value: float) -> None:
    """Check that a number is one, and no larger than arrays and files hold.

    Raises
    ------
    SpecError
        If it is not.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{name} = {value}: a finite number is meant")
    if abs(value) > LARGEST:
        raise SpecError(f"{name} = {shown(value)}: larger than the allowed {LARGEST}")


def check_place(name: str, path: Path, wanted: tuple[str, ...] = (FILE, FOLDER)) -> None:
    """Check that there may be a file or folder at `path`, and is nothing else.

    Whether there has to be one is for others to say.

    Raises
    ------
    SpecError
        If the path is none, leads in a circle or to nothing, or to what is not `wanted`.
    """
    check_text(name, str(path))
    if (longest := max((len(part.encode()) for part in path.parts), default=0)) > LONGEST_PART:
        raise SpecError(
            f"{name} = {shown(str(path))}: a name of {longest} bytes, allowed are {LONGEST_PART}; "
            "choose a shorter one"
        )
    try:
        found = kind(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise SpecError(
                f"{name} = {path}: a link to {path.readlink()}, which does not exist; make that, "
                "or name another place"
            ) from None
        return
    except OSError as error:
        raise SpecError(f"{name} = {path}: {error.strerror}; name another place") from None
    if found not in wanted:
        raise SpecError(f"{name} = {path}: {found}, but {' or '.join(wanted)} is meant")


def kind(path: Path | str) -> str:
    """Return what is at a path, links followed: `FILE`, `FOLDER`, ``"a fifo"``, ...

    Raises
    ------
    OSError
        If nothing is.
    """
    mode = Path(path).stat().st_mode
    return next((name for fits, name in _KINDS if fits(mode)), "a device")


def require_file(path: Path | str) -> None:
    """Check that a file can be read to its end: a fifo would be waited for, a device has none.

    Raises
    ------
    OSError
        If it is another thing, or not there.
    """
    if (found := kind(path)) != FILE:
        raise OSError(None, f"it is {found}, not a file", os.fspath(path))


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """Return the text of a file that a user wrote: UTF-8, with or without a byte order mark.

    Parameters
    ----------
    path
        The file.
    what
        Such as ``"study"``, for messages.
    most_bytes
        How large it may be.

    Raises
    ------
    SpecError
        If it cannot be read, is no file, too large, or not UTF-8.
    """
    check_text(f"the {what}'s path", str(path))
    try:
        require_file(path)
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise SpecError(f"cannot read the {what} {path}: {error.strerror}") from None
    if len(content) > most_bytes:
        raise SpecError(f"the {what} {path} has more than the allowed {most_bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        looks = next((name for mark, name in _MARKS if content.startswith(mark)), None)
        guess = f"it looks like {looks}" if looks else f"byte {error.start} is not"
        raise SpecError(
            f"the {what} {path} is not UTF-8 text ({guess}); save it as UTF-8, "
            f"e.g. with: iconv -f {looks or 'LATIN1'} -t UTF-8"
        ) from None


def check_like(name: str, value: Any, example: Any) -> None:
    """Check a parameter of a notebook: of the kind of its default, which is an `example`.

    Raises
    ------
    SpecError
        If it is of another kind, or no text or number that may be handed in.
    """
    plain = (int, float) if isinstance(example, float) else type(example)
    if not isinstance(value, plain) or isinstance(value, bool) != isinstance(example, bool):
        raise SpecError(
            f"{name} = {shown(value)}: {type(example).__name__} is meant, as its default "
            f"{shown(example)} is"
        )
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, str) and part:
            check_text(name, part)
        elif isinstance(part, int | float):
            check_number(name, part)


def seconds(name: str, text: str) -> float:
    """Return a number of seconds of an environment variable.

    Raises
    ------
    SpecError
        If it is no positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SpecError(f"{name} = {shown(text)}: a positive number of seconds is meant, as 300")
    return value

"""Texts of others as people read them: no character acts on a terminal or a page unseen."""

import re
import unicodedata

_SUSPECT = re.compile(r"[^\n\t -~]")
# Letters and marks that show nothing, though Python calls them printable.
_EMPTY = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def visible(text: object) -> str:
    r"""Return a text with an escape, such as ``\x1b``, for each character that is not seen.

    These are control characters, signs of direction and of no width. Line breaks and tabs stay.
    """
    return _SUSPECT.sub(_shown, str(text))


def _shown(found: re.Match[str]) -> str:
    sign = found[0]
    is_seen = sign.isprintable() or unicodedata.category(sign) == "Zs"  # a space
    if is_seen and not _EMPTY.match(sign):
        return sign
    return sign.encode("unicode_escape").decode()

"""Look at one image file: whether it can be decoded, and is what its name says."""

import hashlib
import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from ddl_core.spec.gate import require_file

JPEG_START, JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"
JPEG_EXTENSIONS = (".jpg", ".jpeg")

# Pillow's own limit, above which it warns; named here because a program may have switched it off.
MAX_PIXELS = 89_478_485

MODE_KINDS = {"L": "grey", "CMYK": "cmyk"}  # all others that are not RGB: not_rgb


@dataclass
class FileFacts:
    """What is known of a file; `width` and `height` are 0 where it could not be decoded."""

    bytes: int = 0
    width: int = 0
    height: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)  # (kind, detail)


def inspect_file(path: str, size: int | None = None, sha256: str | None = None) -> FileFacts:
    """Read and fully decode the file at `path`.

    Damage inside the compressed data that keeps the file's length is not seen by any JPEG decoder:
    only a checksum finds it.

    Parameters
    ----------
    path
        An image file.
    size, sha256
        What a manifest says of it; None: not compared.
    """
    facts = FileFacts()
    try:
        require_file(path)
        content = Path(path).read_bytes()
    except OSError as error:
        facts.problems.append(("unreadable", str(error.strerror)))
        return facts
    _compare(content, size, sha256, facts)
    found = inspect_bytes(content, is_jpeg=path.lower().endswith(JPEG_EXTENSIONS))
    found.problems = facts.problems + found.problems
    return found


def inspect_bytes(content: bytes, *, is_jpeg: bool) -> FileFacts:
    """Fully decode an encoded image; `is_jpeg` tells what its name says of it."""
    facts = FileFacts(bytes=len(content))
    if not content:
        facts.problems.append(("zero_byte", ""))
        return facts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata; pixels are what counts
        _decode(content, facts, is_jpeg)
    return facts


def _compare(content: bytes, size: int | None, sha256: str | None, facts: FileFacts) -> None:
    if size is not None and size != len(content):
        detail = f"{len(content)} bytes, the manifest says {size}"
        facts.problems.append(("changed", detail))
    elif sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        facts.problems.append(("changed", "the checksum differs from the manifest's"))


def _decode(content: bytes, facts: FileFacts, is_jpeg: bool) -> None:
    try:
        with Image.open(io.BytesIO(content)) as image:
            if is_jpeg and image.format not in ("JPEG", "MPO"):
                facts.problems.append(("not_jpeg", f"the content is {image.format}"))
            width, height = image.size
            if width * height > MAX_PIXELS:
                facts.problems.append(("too_large", f"{width} x {height} pixels, not decoded"))
                return
            image.load()
            facts.width, facts.height = width, height
            if image.mode != "RGB":
                kind = MODE_KINDS.get(image.mode, "not_rgb")
                facts.problems.append((kind, f"mode {image.mode}"))
    except Image.DecompressionBombError as error:
        facts.problems.append(("too_large", str(error)))
    except Exception as error:  # damaged files make Pillow raise many types
        facts.problems.append(_damage(content, error))


def why(error: Exception) -> str:
    """Return why Pillow cannot read an image, without the Python object that it names."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return f"{type(error).__name__}: {error}"


def _damage(content: bytes, error: Exception) -> tuple[str, str]:
    """Tell a file that ends too early from one that is damaged or no image at all."""
    cut = content.startswith(JPEG_START) and not content.rstrip(b"\0").endswith(JPEG_END)
    if cut:
        return "truncated", f"{len(content)} bytes, without a JPEG's end"
    return "unreadable", why(error)

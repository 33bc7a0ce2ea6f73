"""What a format of data must offer: the images of one split, still encoded."""

from typing import Protocol


class EncodedImages(Protocol):
    """The images of one split, by number: files in folders or records in shards.

    Attributes
    ----------
    classes : tuple of str
        A label is an index into them. Empty where the set does not name its classes.
    """

    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the encoded image and its label, ``0 <= index < len``.

        Raises
        ------
        DataError
            If its file was there when the set was listed and is gone now, or has changed.
        """
        ...

    def name(self, index: int) -> str:
        """Return what identifies an image within its split, for messages and records."""
        ...

    def fingerprint(self) -> str:
        """Return a SHA-256 that tells sets apart without reading the images."""
        ...

"""Write images that a function returns as an image folder, which all loaders read.

What is written is RGB or grey with 8 bits, by the rule of `image`.
"""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

import numpy as np
from PIL import Image
from tqdm import tqdm

from ddl_core.data.folder import SPLITS
from ddl_core.data.image import describe, to_rgb
from ddl_core.errors import DataError, NotInstalledError
from ddl_core.files import shown
from ddl_tools.datasets.output import is_filled, new_folder

BYTES_PER_IMAGE = 4_096  # one block of the usual file systems; the images of small sets are smaller


class Images(Protocol):
    """Images and labels by number.

    An image is one of Pillow, an array (height, width) or (height, width, 1, 3 or 4) of 8 or 16
    bits, or the bytes of a file.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> tuple[Any, Any]: ...


def write_function(source: str, out_dir: Path) -> int:
    """Write the images of a function to `out_dir`, whole or not at all; return their number.

    `source` is ``package.module:function``. The function takes no arguments and returns a dict of
    ``train`` and ``val``: `Images` with ``classes``, the names that a label is an index into.
    """
    _require_free(out_dir)
    splits = _called(source)
    classes, others = ([str(name) for name in splits[split].classes] for split in SPLITS)
    if classes != others:
        raise DataError(f"{shown(source)}: val has other classes than train")
    return write_folder(out_dir, splits, numbered(classes))


def numbered(classes: Sequence[str]) -> list[str]:
    """Return the folders of classes: numbered, so that sorted folders give the labels."""
    digits = len(str(len(classes) - 1))
    plain = (re.sub(r"[^\w.-]", "_", name)[:100] for name in classes)
    return [f"{label:0{digits}d}_{name}" for label, name in enumerate(plain)]


def write_folder(out_dir: Path, splits: Mapping[str, Images], classes: Sequence[str]) -> int:
    """Write splits to `out_dir`, whole or not at all; return the number of images.

    `out_dir` receives ``<split>/<class>/<number>.<suffix>``, and no folder of a class without
    images; `classes` names the folders.
    """
    if odd := [name for name in classes if not re.fullmatch(r"\w[\w.-]*", name)]:
        raise DataError(f"{shown(odd[0])} cannot name the folder of a class")
    folder = _require_free(out_dir)
    images = sum(len(splits[split]) for split in SPLITS)
    bar = tqdm(total=images, unit="image", disable=None)
    with new_folder(folder, BYTES_PER_IMAGE * images) as part, bar:
        for split in SPLITS:
            _write_split(part, split, splits[split], classes, bar)
    return images


def _require_free(out_dir: Path) -> Path:
    """Return the absolute path of a folder that may be filled; `DataError` for another one."""
    folder = out_dir.absolute()
    if is_filled(folder):
        raise DataError(f"{folder} is there already; remove it, or name another folder")
    return folder


def _write_split(
    root: Path, name: str, split: Images, classes: Sequence[str], bar: "tqdm[Any]"
) -> None:
    if not len(split):
        raise DataError(f"split {name!r} has no images")
    for number in range(len(split)):
        where = f"{name} image {number}"
        try:
            image, label = split[number]
            label = int(label)
            suffix, content = _encoded(image)
        except Exception as error:  # whatever a set of others, or a damaged file, raises
            raise DataError(f"{where}: {describe(error)}") from error
        if not 0 <= label < len(classes):
            raise DataError(f"{where} has label {label}, but there are {len(classes)} classes")
        folder = root / name / classes[label]
        if name != SPLITS[0] and not (root / SPLITS[0] / classes[label]).exists():
            raise DataError(
                f"{where} is of class {classes[label]}, of which training has no images; leave it "
                "out, or move some to training"
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}{suffix}").write_bytes(content)
        bar.update()


def _called(source: str) -> Mapping[str, Any]:
    """Call the function `source`; check what it returns."""
    if ":" not in source:
        raise DataError(f"source {shown(source)} is not package.module:function")
    try:
        found = resolve_name(source)()
    except ModuleNotFoundError as error:
        raise NotInstalledError(
            f"{shown(source)} needs {error.name!r}, which cannot be imported; add the folder of "
            "its module to PYTHONPATH"
        ) from None
    except Exception as error:  # of the user's code
        raise DataError(f"{shown(source)} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping) or set(found) != set(SPLITS):
        raise DataError(f"{shown(source)} has to return a dict of 'train' and 'val'")
    for split in SPLITS:
        if not all(hasattr(found[split], one) for one in ("classes", "__len__", "__getitem__")):
            raise DataError(f"{shown(source)}: {split} needs classes, a length and items")
    return found


def _encoded(image: Any) -> tuple[str, bytes]:
    """Return suffix and bytes of a file; a grey or RGB JPEG keeps its bytes."""
    content = bytes(image) if isinstance(image, bytes | bytearray) else b""
    if content:
        image = Image.open(io.BytesIO(content))
        image.load()
        if image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB"):
            return ".jpg", content
    elif not isinstance(image, Image.Image):
        image = _of_array(np.asarray(image))
    written = io.BytesIO()
    is_grey = image.mode == "L" and not image.has_transparency_data
    (image if is_grey else to_rgb(image)).save(written, "PNG", compress_level=1)
    return ".png", written.getvalue()


def _of_array(values: np.ndarray) -> Image.Image:
    """Return the image of an array; Pillow knows neither one channel nor colours of 16 bits."""
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim == 3 and values.dtype == np.uint16:
        values = (values >> 8).astype(np.uint8)
    return Image.fromarray(values)

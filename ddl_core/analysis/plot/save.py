"""Figures on disk: svg, pdf, png and the plotted numbers, the same bytes each time."""

import io
import os
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from ddl_core.analysis.plot import style
from ddl_core.records.run import cannot_write, write_atomically

# No date, no version and no name of a program: nothing that differs when the picture does not.
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


def save_figure(figure: Figure, data: pd.DataFrame, stem: Path) -> list[Path]:
    """Write ``<stem>.svg``, ``.pdf``, ``.png`` and ``.csv``, each atomically; return the paths.

    Parameters
    ----------
    figure
        What to save.
    data
        What is drawn in it. Floats are written with six significant digits.
    stem
        Path without suffix; its folder is made.

    Raises
    ------
    RecordError
        If the folder cannot be written or the disk is full.
    """
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in _METADATA]
    for path, (kind, metadata) in zip(paths, _METADATA.items(), strict=True):
        content = io.BytesIO()
        with rc_context(style.RC):
            figure.savefig(content, format=kind, metadata=metadata)
        _write_bytes(path, content.getvalue())
    table = stem.with_name(f"{stem.name}.csv")
    write_atomically(table, data.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return [*paths, table]


def _write_bytes(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if temporary.exists():
            temporary.unlink()

"""What the two other papers state, of TensorFlow, Keras and MXNet; the rows live in data/seeds/.

Malik et al. 2018 and Mahon et al. 2020: no figure of theirs is known, and four numbers. Their
rankings are in data/paper/claims.csv.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ddl_tools.analysis.paper import read_numbers
from ddl_tools.records.paths import SEEDS

PAPERS = {"malik2018": "Malik et al. 2018", "mahon2020": "Mahon et al. 2020"}


@dataclass(frozen=True)
class SeedPapers:
    """Stated numbers."""

    statements: pd.DataFrame

    def stated(self, statement: str) -> pd.Series:
        """Return one row of the statements."""
        table = self.statements.set_index("statement", drop=False)
        return table.loc[statement]


def read_seeds(directory: Path = SEEDS) -> SeedPapers:
    """Read what the two papers state.

    Raises
    ------
    DataError
        If a file is missing.
    """
    return SeedPapers(
        **{name: read_numbers(directory / f"{name}.csv") for name in SeedPapers.__annotations__}
    )

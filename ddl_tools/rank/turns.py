"""A rank's part in taking turns: it measures while the other arms of its study stand still.

Who gives the turns is `ddl_tools/launch/interleave.py`; without it, in a run of its own, a rank
never waits.
"""

import json
import os
from multiprocessing.connection import Client
from pathlib import Path

from ddl_core.errors import Interrupted
from ddl_core.system import TURNS
from ddl_tools.processes import TOKEN
from ddl_tools.records.run import Turn


class Turns:
    """Asks for a place in the order of a study's arms, if they take turns.

    Parameters
    ----------
    directory
        Folder of the run, which names the arm.
    rank
        Of this process. Every rank asks for itself, so that none waits for another in a collective
        while all stand still: that could take longer than a collective may.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        address = os.environ.get(TURNS)
        self._connection = Client(address) if address else None
        self._me = {"run": str(directory), "rank": rank, "token": os.environ.get(TOKEN)}

    @property
    def taken(self) -> bool:
        """Whether there are others to wait for."""
        return self._connection is not None

    def wait(self, last: bool = False) -> Turn | None:
        """Wait for the next turn; `last` says that there is no window to come.

        Raises
        ------
        Interrupted
            If who gives the turns is gone.
        """
        if self._connection is None:
            return None
        try:
            # Not send, which pickles: an error of it holds a buffer that cannot be closed.
            self._connection.send_bytes(json.dumps({**self._me, "last": last}).encode())
            given = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            raise Interrupted("the study that this run took turns in has ended") from None
        return Turn.model_validate(given) if given else None

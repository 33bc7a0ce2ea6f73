"""A rank's part in an interleaved study: it waits for its slot while other runs measure.

`ddl_tools/launch/interleave.py` gives the slots. A run outside such a study never waits.
"""

import json
import os
from multiprocessing.connection import Client
from pathlib import Path

from ddl_core.errors import Interrupted
from ddl_core.system import INTERLEAVED
from ddl_tools.processes import LEADER
from ddl_tools.records.run import Slot


class SlotClient:
    """Asks for the slots of a run, if its study is interleaved.

    Every rank asks for itself, so that none waits for another in a collective while all stand
    still: that could take longer than a collective may.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        address = os.environ.get(INTERLEAVED)
        self._connection = Client(address) if address else None
        self._me = {"run": str(directory), "rank": rank, "leader": os.environ.get(LEADER)}

    @property
    def interleaved(self) -> bool:
        """Whether there are other runs to wait for."""
        return self._connection is not None

    def wait(self, last: bool = False) -> Slot | None:
        """Wait for the next slot; `last` says that no window is to come.

        `Interrupted` if the study is gone.
        """
        if self._connection is None:
            return None
        try:
            # Not send, which pickles: an error of it holds a buffer that cannot be closed.
            self._connection.send_bytes(json.dumps({**self._me, "last": last}).encode())
            given = json.loads(self._connection.recv_bytes())
        except (OSError, EOFError):
            raise Interrupted("the interleaved study of this run has ended") from None
        return Slot.model_validate(given) if given else None

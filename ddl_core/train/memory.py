"""The most memory that training takes on a rank."""

from pathlib import Path

import torch

from ddl_core.train.protocols import Strategy

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_THE_PEAK = "5"  # proc(5)
_ASKED = {"VmHWM", "RssFile", "RssShmem"}


class Memory:
    """Watches the memory of a rank.

    On a GPU that is what torch's tensors take. On the CPU it is what the process has in its main
    memory above what it had when this was made: before there was a network, and without files that
    are only mapped, such as libraries.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._before = _resident().get("RssAnon", 0)
        self._forgets = False

    def begin(self) -> None:
        """Begin a measurement."""
        if self._strategy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._strategy.device)
            return
        try:
            CLEAR.write_text(FORGET_THE_PEAK)
        except OSError:  # not Linux, or one that does not let a process ask for it
            self._forgets = False
        else:
            self._forgets = True

    def peak(self) -> int | None:
        """Return bytes, the most of any rank since `begin`; None where none can tell.

        A collective.
        """
        own = torch.tensor(float(self._own()), dtype=torch.float64, device=self._strategy.device)
        return int(self._strategy.all_reduce(own, "max").item()) or None

    def _own(self) -> int:
        if self._strategy.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._strategy.device)
        if not self._forgets:
            return 0
        now = _resident()
        if not now.keys() >= _ASKED:  # a Linux before 4.5, or what only looks like one
            return 0
        mapped = now["RssFile"] + now["RssShmem"]
        return max(0, now["VmHWM"] - mapped - self._before)


def _resident() -> dict[str, int]:
    """Return what Linux says of this process's main memory, bytes."""
    if not STATUS.exists():  # not Linux
        return {}
    lines = (line.split() for line in STATUS.read_text().splitlines())
    return {
        words[0].rstrip(":"): 1024 * int(words[1])
        for words in lines
        if words and words[0].startswith(("VmHWM", "Rss"))
    }

"""What a rank leaves of its run: the record, a row for each epoch, or why it failed.

Rank 0 writes the record; its last act is to mark the run completed.
"""

import json
import logging
import os
import re
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ddl_core.data.contents import VERSION
from ddl_core.errors import DataError, DDLError
from ddl_core.loaders.base import Loader
from ddl_core.loop import EpochResult
from ddl_tools import limits
from ddl_tools.rank.interleave import SlotClient
from ddl_tools.records.environment import relevant_variables
from ddl_tools.records.paths import RunFiles
from ddl_tools.records.progress import WAITING, Progress, Publish
from ddl_tools.records.provenance import began_with, host, provenance
from ddl_tools.records.run import (
    EMULATION,
    Contents,
    DataInfo,
    EpochRecord,
    Slot,
    append_epoch,
    provenance_of,
    read_record,
    system_of,
    write_record,
)
from ddl_tools.records.storage import now

log = logging.getLogger(__name__)

# What libraries call it when the memory of a GPU is full.
OUT_OF_MEMORY = {"OutOfMemoryError", "ResourceExhaustedError"}
# What must be as before where a run goes on; a record of an older version may lack some of it.
DATA = {
    "classes": "classes",
    "train_images": "training images",
    "eval_images": "validation images",
    "fingerprint": "names or labels of training images",
}
SPLITS = {"train": "training images", "eval": "validation images"}
CONTENTS = {
    "names": "names or labels of {}",
    "bytes": "bytes of {}",
    "sample": "sizes or contents of {}",
}
SLOW_S = 5.0  # time that all ranks wait, and that is worth a line
LATER = "DDL_CONTENTS", "later"  # variable, and its value with which files are not looked into


class RunRecorder:
    """The files of a run, as one of its ranks sees them.

    Made before a framework is asked for anything, which may add to the environment.

    `publish` is called as `Progress` calls it; `first` says whether this rank is the one that
    writes. `rendezvous` is a folder of this start alone, in which the ranks meet.
    """

    def __init__(self, directory: Path, publish: Publish | None = None) -> None:
        self.files = RunFiles(directory)
        self.record = read_record(directory)
        self.spec = self.record.spec
        rank = int(os.environ.get("RANK", 0))
        self.first = rank == 0
        self._environment = relevant_variables(os.environ)
        own = self.files.progress if self.first else None
        compiles = self.spec.compile and self.spec.work == "train"
        self.progress = Progress(own, self.spec.epochs, publish, compiles)
        self.slots = SlotClient(directory, rank)
        self._slot: Slot | None = None
        self._ready = False
        self._attempt = self.files.attempt(len(self.record.attempts) - 1)
        self.rendezvous = self._attempt / "rendezvous"
        self._throttled_s = limits.throttled_s()
        self._contents: dict[str, Contents | None] = {}  # by split
        self._nodes = self.spec.launcher  # None: those of the machine
        self._counters = self._nodes.counters(self._attempt) if self._nodes else None

    def wait_for_slot(self, epoch: int, cold: bool) -> None:
        """Wait until the other runs of the study are paused; all cold epochs are one slot."""
        if self._counters:
            self._counters.begin()
        if self.slots.interleaved and not (cold and self._ready):
            self.progress.begin(WAITING, epoch, 0)
            self._slot = self.slots.wait()
        self._ready = True

    def end_slots(self, epoch: int) -> None:
        """After the last window, let the others measure before anything else is done."""
        if self.slots.interleaved and epoch + 1 == self.spec.epochs:
            self.progress.begin(WAITING, epoch + 1, 0)
            self._slot = self.slots.wait(last=True)

    def look_into(self, **loaders: Loader | None) -> None:
        """Find by what the images are recognised: the first rank does, for all of them."""
        variable, later = LATER
        if not self.first or os.environ.get(variable) == later:
            return
        begun = time.perf_counter()
        for split, loader in loaders.items():
            if loader and loader.fingerprint:
                self.progress.set_up(
                    f"looking into {loader.images:,} {SPLITS[split]} (postpone: {variable}={later})"
                )
                found = loader.contents()
                known = found and Contents(version=VERSION, **found._asdict())
                self._contents[split] = known
        if (took := time.perf_counter() - begun) > SLOW_S:
            log.warning("looking into the images took %.0f s (postpone: %s=%s)", took, *LATER)

    def describe(
        self, train: Loader, eval_images: int | None, system: dict[str, Any], resumed: bool = False
    ) -> None:
        """Record the data that are read, the code, and the `system` on which it runs.

        `DataError` if the run is `resumed` and its first epochs have read other data.
        """
        data = DataInfo(
            train_images=train.images,
            eval_images=eval_images,
            classes=train.classes,
            fingerprint=train.fingerprint,
            order=None if train.seen is None else "loader" if train.own_order else "plan",
            **self._contents,
            postponed=train.fingerprint is not None and not self._contents,
        )
        if resumed and self.record.data:
            check_same_data(self.record.data, data)
        if not self.first:
            return
        self.record.data = data
        code = provenance(self.record.spec.framework)
        before = self.record.provenance
        if resumed and before and (others := began_with(before, code)):
            log.warning("this run began with %s", ", ".join(others))
            code["began_with"] = others
        self.record.provenance = provenance_of(code)
        self.record.system = system_of({**host(), **system, "environment": self._environment})
        write_record(self.files.directory, self.record)

    def describe_command(self) -> None:
        """Record the code and the machine of a command of the user's, whose data nobody knows."""
        spec = self.spec
        self.record.provenance = provenance_of(provenance(spec.framework))
        facts = {**host(), "device": spec.device, "environment": self._environment}
        self.record.system = system_of(facts)
        write_record(self.files.directory, self.record)

    def note_reporting(self, ranks: list[int] | None) -> None:
        """Record how many ranks of a command say how many images they train on; None: all do."""
        assert self.record.system is not None
        self.record.system["reporting"] = self.spec.world_size if ranks is None else len(ranks)
        write_record(self.files.directory, self.record)

    def store(
        self,
        result: EpochResult,
        epoch: int,
        phase: Literal["train", "eval"],
        cold: bool,
        memory: int | None,
    ) -> None:
        """Add the row of an epoch; `memory` is the most that was used on a device, bytes."""
        if self._counters:
            self._counters.end(epoch, cold)
        if not self.first:
            return
        measured = vars(result) | vars(result.timing)
        del measured["timing"]
        row = EpochRecord(
            attempt=len(self.record.attempts) - 1,
            epoch=epoch,
            phase=phase,
            cold=cold,
            throughput_samples_per_s=result.samples / result.timing.wall_s,
            max_memory_bytes=memory,
            interleave=self._slot if phase == "train" else None,
            **measured,
        )
        append_epoch(self.files.directory, row)

    def complete(self, digest: str | None) -> None:
        """Mark the run completed, with the hash of its final weights."""
        self.progress.begin("done", self.spec.epochs, 0)
        if not self.first:
            return
        if self.record.system and self._nodes:  # all ranks have noted their last epoch by now
            facts = self._nodes.facts(self._attempt)
            self.record.system[EMULATION] = facts.model_dump() if facts else None
        if self.record.system:
            self.record.system["throttled_s"] = limits.throttled_s() - self._throttled_s
        self.record.weights_sha256 = digest
        self.record.status = "completed"
        self.record.error = None
        self.record.attempts[-1].status = "completed"
        self.record.attempts[-1].ended_utc = now()
        write_record(self.files.directory, self.record)
        self.files.initial.unlink(missing_ok=True)  # 100 MB of ResNet50, drawn again at will


def check_same_data(before: DataInfo, after: DataInfo) -> None:
    """Refuse data that are not those of a run's first epochs, which its weights have seen."""
    parts: list[tuple[Any, Any, dict[str, str]]] = [(before, after, DATA)]
    for split, images in SPLITS.items():
        first, now = getattr(before, split), getattr(after, split)
        if first and now and first.version == now.version:
            words = {name: text.format(images) for name, text in CONTENTS.items()}
            parts.append((first, now, words))
        elif now:
            log.warning("%s: an older start did not look into them; compared without", images)
    changed = []
    for first, now, words in parts:
        for name, text in words.items():
            old, new = getattr(first, name), getattr(now, name)
            if None not in (old, new) and old != new:
                counts = f" ({old} before, {new} now)" if isinstance(old, int) else ""
                changed.append(text + counts)
    if changed:
        raise DataError(
            f"the data have changed since this run began: {', '.join(dict.fromkeys(changed))}",
            remedy="put them back, or delete the checkpoint in the run's folder to begin again",
        )


def report(directory: Path, error: Exception) -> None:
    """Leave what went wrong for the launcher; the first rank to fail knows best."""
    files = RunFiles(directory)
    kind = type(error).__name__
    if kind in OUT_OF_MEMORY:
        message = f"out of memory on the GPU: {error}; lower local_batch_size"
    else:
        message = _in_loader(str(error), kind) or repr(error)
    content = {
        "rank": int(os.environ.get("RANK", 0)),
        "kind": kind,
        "category": error.category if isinstance(error, DDLError) else None,
        "message": message if isinstance(error, DDLError) else f"{kind}: {message}",
        "traceback": traceback.format_exc(),
    }
    try:
        with files.error.open("x", encoding="utf-8") as file:
            json.dump(content, file)
    except OSError as failure:
        log.error("could not leave error.json: %s", failure)
    if isinstance(error, DDLError):
        log.error("%s: %s", kind, message)
    else:
        with suppress(OSError):
            traceback.print_exc()


def _in_loader(text: str, kind: str) -> str:
    """Return the sentence itself where torch tells an error of a loader's process.

    It is the last one of the traceback that torch makes the message of.
    """
    if "in DataLoader worker process" not in text.partition("\n")[0]:
        return text
    return re.split(rf"^(?:\w+\.)*{kind}: ", text, flags=re.MULTILINE)[-1].strip()

"""Memory of 1.28 million file names or records that eight loader processes share.

    python -m benchmarks.loader_memory

Eight forked processes read every hundredth name. What each then has for itself (its unique set) is
compared with what it had before; a list of Python strings beside it shows what is avoided. Target:
the eight together take less than the list itself.
"""

import os
from collections.abc import Callable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.interleaved import stored
from ddl_core.data.folder import ImageList

IMAGES, CLASSES, WORKERS = 1_281_167, 1000, 8


def unique_bytes() -> int:
    """Return the memory that this process shares with no other."""
    return int(psutil.Process().memory_full_info().uss)


def work(read: Callable[[int], object], answer: Connection) -> None:
    """Read names as a loader process does; answer how much memory that took."""
    before = unique_bytes()
    for index in range(0, IMAGES, 100):
        read(index)
    answer.send(unique_bytes() - before)


def growth(read: Callable[[int], object]) -> int:
    """Return the bytes that all loader processes together take."""
    context = get_context("fork")
    pipes = [Pipe(duplex=False) for _ in range(WORKERS)]
    children = [context.Process(target=work, args=(read, end)) for _, end in pipes]
    for child in children:
        child.start()
    total = sum(pipe.recv() for pipe, _ in pipes)
    for child in children:
        child.join()
    return total


def measure() -> dict[str, int]:
    """Measure and print."""
    names = [
        [f"n{label:08d}_{number}.JPEG" for number in range(IMAGES // CLASSES + (label < 167))]
        for label in range(CLASSES)
    ]
    classes = [f"n{label:08d}" for label in range(CLASSES)]
    before = unique_bytes()
    packed = ImageList.pack(Path("/data/train"), classes, names)
    list_bytes = unique_bytes() - before
    assert len(packed) == IMAGES
    plain = [(f"/data/train/{classes[label]}/{name}", label)
             for label, files in enumerate(names) for name in files]  # fmt: skip
    del names
    found = {
        "list_bytes": list_bytes,
        "workers": WORKERS,
        "packed_growth_bytes": growth(packed.path),
        "python_list_growth_bytes": growth(lambda index: len(plain[index][0])),
    }
    print(
        f"the list: {list_bytes / 1e6:.0f} MB; {WORKERS} processes that read it: "
        f"{found['packed_growth_bytes'] / 1e6:.1f} MB together; with a list of Python tuples: "
        f"{found['python_list_growth_bytes'] / 1e6:.1f} MB"
    )
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    stored("loader_memory", measure)

"""Where faults are injected: a small disk, small images, and no right to ignore modes of files."""

import ctypes
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
from PIL import Image

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
DISK_MIB = 1500  # a run asks for 1 GB before it starts


def as_user() -> None:
    """Give up, before a command begins, what root may do and users may not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets what it starts with & ignore it
    if os.geteuid() == 0:
        for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0)


def small_disk(folder: Path) -> bool:
    """Put a small disk in memory there, if this user may."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder]
    try:
        done = subprocess.run(command, check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def make_images(folder: Path) -> None:
    """Make a set of two classes of noise."""
    chance = np.random.default_rng(0)
    for split, number in (("train", 32), ("val", 16)):
        for name in ("a", "b"):
            place = folder / split / name
            place.mkdir(parents=True)
            for one in range(number):
                pixels = chance.integers(0, 255, (40, 40, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{one}.jpg")

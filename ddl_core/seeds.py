"""Random seeds: independent streams from what a number is for and where in the run it is used."""

from zlib import crc32

import numpy as np


def derive_seed(purpose: str, *place: int) -> int:
    """Return a 63-bit seed that depends on `purpose` and on every number of `place`.

    Parameters
    ----------
    purpose : str
        What the numbers are for, e.g. ``"order"``; different purposes never share a stream.
    place : int
        Non-negative: seed, repeat, epoch, rank, image, ...
    """
    # The length, because SeedSequence does not tell missing numbers from trailing zeros.
    entropy = [crc32(purpose.encode()), len(place), *place]
    state = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))

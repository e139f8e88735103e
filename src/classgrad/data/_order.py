"""Random orders that depend on nothing but a seed.

Which image lands in which split must be the same on every machine and with every version of every library, so the
order comes from a hash of the position (splitmix64) and not from a library's generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def random_keys(n: int, seed: int) -> npt.NDArray[np.uint64]:
    """Return one 64-bit key for each of ``n`` positions, all different; sorting by them gives a random order.

    >>> np.argsort(random_keys(8, seed=0)).tolist()
    [2, 4, 6, 5, 1, 7, 0, 3]
    """
    start = np.uint64((seed * 0xD1342543DE82EF95) & _MASK)
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))

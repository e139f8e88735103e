"""scikit-learn's bundled handwritten digits: 1797 images of 8 x 8 pixels, no download."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from classgrad._lab import lab_module
from classgrad.data._order import random_keys
from classgrad.data._pool import Group, Pool, singles
from classgrad.data._profiles import geometric

DIGITS = tuple("0123456789")

# The smallest class has 174 images.
LARGEST, EVALUATED = 120, 27

DIGITS_BI20 = (
    Group("even", (0, 2, 4, 6, 8), train=LARGEST, validation=EVALUATED, test=EVALUATED),
    Group("odd", (1, 3, 5, 7, 9), train=LARGEST // 20, validation=EVALUATED, test=EVALUATED),
)
DIGITS_MUL10 = singles(DIGITS, geometric(LARGEST, 20 ** (-1 / 9), 10), validation=EVALUATED, test=EVALUATED)


def read_digits() -> Pool:
    """Read the images, with grey levels 0..255 in place of 0..16.

    The file goes through its writers one after the other, so each class is put in a random order that never changes;
    its last 54 images are held out.
    """
    bundle = lab_module("sklearn.datasets", "the digits data").load_digits()
    images = np.round(bundle.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bundle.target.astype(np.int64)
    keys = random_keys(len(labels), seed=0)
    orders = []
    for label in range(10):
        positions = np.flatnonzero(labels == label)
        orders.append(torch.from_numpy(positions[np.argsort(keys[positions])]))
    return Pool(
        classes=DIGITS,
        images=torch.from_numpy(images),
        train=tuple(order[: -2 * EVALUATED] for order in orders),
        held_out=tuple(order[-2 * EVALUATED :] for order in orders),
        source=hashlib.sha256(images.tobytes() + labels.astype("<i8").tobytes()).hexdigest(),
    )

"""How many examples of each class a batch holds."""

from collections.abc import Sequence
from fractions import Fraction


def shares(sizes: Sequence[int], batch_size: int, alpha: float) -> tuple[int, ...]:
    """Divide `batch_size` among the classes in proportion to size**alpha, at least one each.

    The rule is the largest remainder: a class whose share is below one gets one; the rest is divided among the other
    classes by their weights, each first getting the whole part of its share, then one more in the order of the
    remainders (ties: the larger class, then the earlier one). A class of size 0 gets nothing. The arithmetic is exact.

    >>> shares([5000, 714], 400, alpha=1.0)
    (350, 50)
    >>> shares([9000, 90, 1], 100, alpha=1.0)
    (98, 1, 1)
    >>> shares([9000, 90, 1], 100, alpha=0.5)
    (90, 9, 1)
    """
    weights = {c: Fraction(float(n) ** alpha) for c, n in enumerate(sizes) if n > 0}
    ones: set[int] = set()
    while True:
        left = batch_size - len(ones)
        total = sum(weight for c, weight in weights.items() if c not in ones)
        ideal = {c: left * weight / total for c, weight in weights.items() if c not in ones}
        small = {c for c, share in ideal.items() if share < 1}
        if not small:
            break
        ones |= small
    counts = [0] * len(sizes)
    for c in ones:
        counts[c] = 1
    for c, share in ideal.items():
        counts[c] = int(share)
    by_remainder = sorted(ideal, key=lambda c: (int(ideal[c]) - ideal[c], -sizes[c], c))
    for c in by_remainder[: batch_size - sum(counts)]:
        counts[c] += 1
    return tuple(counts)

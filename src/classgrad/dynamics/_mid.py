"""The minority initial drop (MID): whether the minority gets worse before it is learnt, by how much and for how long.

An untrained network gives most examples to one class or another, so a class may start at any recall between 0 and 1,
and being at 0 after a while says nothing by itself. A *drop* is therefore a stretch below the lower of two levels, the
initial value and chance (1/L): a class that starts at 1 and settles at 0.8 has none, nor has one that starts at 0.
Time counts in octaves, log2(1 + step), as on the paper's axes. A drop is *initial* when it begins before the run has
learnt, i.e. before macro recall holds half of its gain.

The same is asked of the loss, the theorems' own notion: through exp(−mean loss), the typical probability of the right
class, whose chance level is 1/L as well (the losses are taken to be cross-entropies). The loss tells a drop even where
recall cannot, because it starts at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from classgrad.dynamics._json import Record
from classgrad.dynamics._run import Run, mean_over

MIN_DEPTH = 1 / 3
"""The least share of the reference level that a drop must lose to count."""

MIN_AREA = 1.0
"""The least area of a drop that counts, in octaves of total loss: a single bad step cannot reach it."""

MIN_EXAMPLES = 4
"""How many examples the reference level must stand for before a fall from it means anything."""

HOLD = 2.0
"""How many octaves macro recall must hold half of its gain before the run counts as having learnt."""

Curve = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Drop(Record):
    """The largest initial stretch of one curve below its reference; ``start`` is None where there is none.

    Args:
        initial: The first measured value.
        chance: 1/L.
        lowest: The lowest value within the stretch.
        start: First measured step below the reference.
        end: First measured step after ``start`` at which it is reached again; None if the run ended before.
        octaves: Length from ``start`` to ``end`` (or to the last point) in log2(1 + step).
        area: ∫ (1 − value/reference) over octaves; :attr:`relative_depth` 1 throughout gives its length.
        area_steps: The same integral over steps.
    """

    initial: float
    chance: float
    lowest: float
    start: int | None
    end: int | None
    octaves: float
    area: float
    area_steps: float

    @property
    def reference(self) -> float:
        """The level a drop is measured from, the lower of the initial value and chance."""
        return min(self.initial, self.chance)

    @property
    def below_initial(self) -> float:
        """How far the curve fell below its initial value; 0 without a drop."""
        return 0.0 if self.start is None else self.initial - self.lowest

    @property
    def below_chance(self) -> float:
        """How far the curve fell below chance; 0 without a drop."""
        return 0.0 if self.start is None else self.chance - self.lowest

    @property
    def depth(self) -> float:
        """How far the curve fell below both."""
        return min(self.below_initial, self.below_chance)

    @property
    def relative_depth(self) -> float:
        """``depth`` as a share of the reference; 1 is a fall to zero."""
        return self.depth / self.reference if self.start is not None else 0.0


@dataclass(frozen=True)
class Mid(Record):
    """What happened to the minority classes at the beginning of one run.

    Args:
        verdict: Whether the minority dropped: a :attr:`relative depth <Drop.relative_depth>` of at least
            :data:`MIN_DEPTH` and an area of at least :data:`MIN_AREA`.
        basis: What the verdict rests on: the mean recall of the minority classes where it starts high enough to tell
            (:data:`MIN_EXAMPLES`), else their mean loss; ``no minority`` on balanced data; ``undecided`` where neither
            tells.
        learned: First step at which macro recall holds half of its gain; None if it never does.
        recall: The drop of the mean recall of the minority classes.
        loss: The drop of exp(−mean loss) of the minority classes.
        class_recalls: The recall's drop of every class, majority classes too; None for a class without examples.
        class_losses: The same of exp(−loss).
    """

    verdict: bool
    basis: Literal["recall", "loss", "no minority", "undecided"]
    learned: int | None
    recall: Drop | None
    loss: Drop | None
    class_recalls: tuple[Drop | None, ...]
    class_losses: tuple[Drop | None, ...]

    @property
    def drop(self) -> Drop | None:
        """The drop the verdict rests on, where the verdict is yes."""
        return {"recall": self.recall, "loss": self.loss}.get(self.basis) if self.verdict else None

    @property
    def depth(self) -> float:
        """The depth of :attr:`drop`, 0 without one."""
        return self.drop.depth if self.drop else 0.0

    @property
    def relative_depth(self) -> float:
        """The relative depth of :attr:`drop`, 0 without one."""
        return self.drop.relative_depth if self.drop else 0.0


def detect_mid(run: Run, split: str = "test", loss_split: str = "train") -> Mid:
    """Look for the minority initial drop in the recalls of one split and the losses of another.

    Minority classes are those with fewer training examples than the average class. A run without losses is judged by
    recall alone.
    """
    chance = 1 / len(run.classes)
    learned = learned_step(run.steps, run.macro_recall(split), chance)
    recalls = run.recall(split)
    unmeasured = np.full(recalls.shape, np.nan)
    losses = run.loss(loss_split) if f"{loss_split}/loss" in run else unmeasured
    recall = find_drop(run.steps, run.minority_recall(split), chance, learned)
    loss = find_drop(run.steps, np.exp(-mean_over(losses, run.minority)), chance, learned)
    basis = _basis(run, recall, loss, examples=int(run.confusion(split)[0, run.minority].sum()))
    return Mid(
        verdict=_counts({"recall": recall, "loss": loss}.get(basis)),
        basis=basis,
        learned=learned,
        recall=recall,
        loss=loss,
        class_recalls=tuple(find_drop(run.steps, curve, chance, learned) for curve in recalls.T),
        class_losses=tuple(find_drop(run.steps, curve, chance, learned) for curve in np.exp(-losses.T)),
    )


def find_drop(steps: Steps, curve: Curve, chance: float, learned: int | None = None) -> Drop | None:
    """Find the stretch of largest area below both the initial value and chance that begins before ``learned``.

    Points that are not finite are left out; None where nothing remains or the first point is one of them.
    """
    if not np.isfinite(curve[0]):
        return None
    steps, curve = steps[np.isfinite(curve)], curve[np.isfinite(curve)]
    initial = float(curve[0])
    none = Drop(initial, chance, lowest=initial, start=None, end=None, octaves=0.0, area=0.0, area_steps=0.0)
    drops = [
        _measure(steps, curve, chance, first, after)
        for first, after in _stretches(curve < none.reference)
        if learned is None or steps[first] < learned
    ]
    return max(drops, key=lambda drop: drop.area, default=none)


def learned_step(steps: Steps, macro_recall: Curve, chance: float) -> int | None:
    """First step at which macro recall holds half of its gain for :data:`HOLD` octaves or to the end of the run.

    The gain is that of its peak over chance, or over its initial value where that is higher.
    """
    finite = np.isfinite(macro_recall)
    steps, macro_recall = steps[finite], macro_recall[finite]
    if not len(steps):
        return None
    base = max(chance, float(macro_recall[0]))
    peak = float(macro_recall.max())
    if peak <= base:
        return None
    octaves = _octaves(steps)
    for first, after in _stretches(macro_recall >= (base + peak) / 2):
        if after == len(steps) or octaves[after] - octaves[first] >= HOLD:
            return int(steps[first])
    return None


def told_by(mids: Sequence[Mid]) -> Literal["recall", "loss"]:
    """Return what most drops of several runs are told by: recall, unless more are by the loss.

    A drop in recall and one in probability have depths that do not add up.
    """
    found = Counter(mid.basis for mid in mids if mid.verdict)
    return "loss" if found["loss"] > found["recall"] else "recall"


def _basis(
    run: Run, recall: Drop | None, loss: Drop | None, examples: int
) -> Literal["recall", "loss", "no minority", "undecided"]:
    if not run.minority.any():
        return "no minority"
    if recall is not None and recall.reference * examples >= MIN_EXAMPLES:
        return "recall"
    return "loss" if loss is not None else "undecided"


def _counts(drop: Drop | None) -> bool:
    return drop is not None and drop.relative_depth >= MIN_DEPTH and drop.area >= MIN_AREA


def _stretches(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First index and index after the last of every run of True."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _measure(steps: Steps, curve: Curve, chance: float, first: int, after: int) -> Drop:
    """Measure one stretch; it never begins at the first point, which is not below its own value."""
    over = after < len(steps)
    around = slice(first - 1, after + 1)
    shortfall = np.maximum(1 - curve[around] / min(curve[0], chance), 0.0)
    octaves = _octaves(steps)
    return Drop(
        initial=float(curve[0]),
        chance=chance,
        lowest=float(curve[first:after].min()),
        start=int(steps[first]),
        end=int(steps[after]) if over else None,
        octaves=float(octaves[after if over else -1] - octaves[first]),
        area=_trapezoid(shortfall, octaves[around]),
        area_steps=_trapezoid(shortfall, steps[around].astype(np.float64)),
    )


def _octaves(steps: Steps) -> Curve:
    octaves: Curve = np.log2(1.0 + steps)
    return octaves


def _trapezoid(values: Curve, places: Curve) -> float:
    return float(((values[1:] + values[:-1]) / 2 * np.diff(places)).sum())

"""The record of one training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from classgrad._errors import InputError
from classgrad.dynamics import _gram, _metrics

Array = NDArray[Any]

SPLITS = ("train", "validation", "test")
"""The data splits a record may hold measurements of."""

STATUSES = ("finished", "diverged", "interrupted")
"""How a run may have ended."""

SETTINGS = (
    *("data", "fingerprint", "protocol", "classes", "algorithm", "model", "optimizer", "lr", "batch_size"),
    "precision",
)
"""The entries of ``meta`` that must agree before runs count as seeds of one experiment."""

EVERY = "every/"
"""What the names of series measured at every step begin with."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What was measured along one training run: plain settings and arrays, everything else derived when read.

    Args:
        meta: A plain JSON dict. ``classes`` (names) and ``counts`` (training examples of every class) are required;
            usual besides: ``data``, ``fingerprint``, ``protocol``, ``algorithm``, ``model``, ``optimizer``, ``lr``,
            ``batch_size``, ``steps``, ``seed``, ``device``, ``precision``, ``versions``, ``status`` (one of
            :data:`STATUSES`), ``message``.
        series: Arrays whose first axis is the measuring point (T of them, L classes):

            - ``step`` (T,), increasing: the number of updates made before the measurement; required;
            - ``{split}/confusion`` (T, L, L), ``{split}/loss`` (T, L): mean loss of the class's examples;
            - ``gram`` (T, L, L) of the class gradients of the whole training set, ``weights`` (T, L) of the rule there;
            - ``measured_change`` and, where it is not −η(Kw)_l, ``predicted_change`` (T, L) of every f^(l) in the step
              after the point;
            - ``projection``, ``noise`` (T, L) of the class directions in that step's batch:
              :func:`classgrad.dynamics.projection` and :func:`classgrad.dynamics.orthogonal_noise`;
            - ``lr``, ``seconds_per_step``, ``memory_bytes`` (T,).

            Names that begin with ``every/`` share an axis of their own, given by ``every/step``.
    """

    meta: dict[str, Any]
    series: dict[str, Array]

    def __post_init__(self) -> None:
        _check_meta(self.meta)
        _check_axis(self.series, "step", {k: v for k, v in self.series.items() if not k.startswith(EVERY)})
        every = {k: v for k, v in self.series.items() if k.startswith(EVERY)}
        if every:
            _check_axis(self.series, f"{EVERY}step", every)
        for name, classes_axes in _class_axes(self.series).items():
            expected = (len(self.classes),) * classes_axes
            if self.series[name].shape[1:] != expected:
                raise InputError(
                    f"Series {name!r} should have shape (points, {', '.join(map(str, expected))}) for "
                    f"{len(self.classes)} classes. Found {self.series[name].shape}."
                )

    def __repr__(self) -> str:
        given = {key: self.meta[key] for key in ("data", "algorithm", "seed", "status") if key in self.meta}
        described = "".join(f"{key}={value!r}, " for key, value in given.items())
        return f"Run({described}points={len(self.steps)}, last_step={self.steps[-1]})"

    def __contains__(self, name: str) -> bool:
        return name in self.series

    def __getitem__(self, name: str) -> Array:
        """Give the stored series of that name."""
        try:
            return self.series[name]
        except KeyError:
            raise InputError(
                f"Series {name!r} should have been measured in this run. Found {', '.join(sorted(self.series))}."
            ) from None

    @property
    def steps(self) -> NDArray[np.int64]:
        """The measuring points, in updates made."""
        return self["step"]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.meta["classes"])

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training examples of every class, shape (L,)."""
        return np.asarray(self.meta["counts"], dtype=np.int64)

    @property
    def minority(self) -> NDArray[np.bool_]:
        """Which classes have some examples, but fewer than the average class; shape (L,)."""
        mask: NDArray[np.bool_] = (self.counts > 0) & (self.counts < self.counts.mean())
        return mask

    @property
    def settings(self) -> dict[str, Any]:
        """The entries of ``meta`` that several seeds of one experiment share."""
        return {key: self.meta.get(key) for key in SETTINGS}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that were measured."""
        return tuple(split for split in SPLITS if f"{split}/confusion" in self or f"{split}/loss" in self)

    def confusion(self, split: str) -> NDArray[np.int64]:
        """Confusion matrices, rows the true class, shape (T, L, L)."""
        return self[f"{split}/confusion"]

    def recall(self, split: str) -> NDArray[np.float64]:
        """Recall of every class, shape (T, L); nan for classes without examples."""
        return _derive(_metrics.recall, self.confusion(split))

    def precision(self, split: str) -> NDArray[np.float64]:
        """Precision of every class, shape (T, L); nan where a class is never predicted."""
        return _derive(_metrics.precision, self.confusion(split))

    def f1(self, split: str) -> NDArray[np.float64]:
        """F1 score of every class, shape (T, L)."""
        return _derive(_metrics.f1, self.confusion(split))

    def macro_recall(self, split: str) -> NDArray[np.float64]:
        """Mean recall of the classes that have examples (balanced accuracy), shape (T,)."""
        return _derive(_metrics.macro_recall, self.confusion(split))

    def minority_recall(self, split: str) -> NDArray[np.float64]:
        """Mean recall of the minority classes that have examples, shape (T,); nan without any."""
        return mean_over(self.recall(split), self.minority)

    def loss(self, split: str) -> NDArray[np.float64]:
        """Mean loss of every class's examples, shape (T, L)."""
        return self[f"{split}/loss"]

    @property
    def objectives(self) -> NDArray[np.float64]:
        """The paper's f^(l) = 1/n Σ over the training examples of class l, shape (T, L)."""
        weighted: NDArray[np.float64] = self.loss("train") * (self.counts / self.counts.sum())
        return weighted

    @property
    def norms(self) -> NDArray[np.float64]:
        """Class-gradient norms ‖g_l‖, shape (T, L)."""
        return _derive(_gram.class_norms, self["gram"])

    @property
    def cosines(self) -> NDArray[np.float64]:
        """Cosines between the class gradients, shape (T, L, L)."""
        return _derive(_gram.class_cosines, self["gram"])

    @property
    def imbalance_ratio(self) -> NDArray[np.float64]:
        """C_t^(l), shape (T, L); see :func:`classgrad.dynamics.imbalance_ratio`."""
        return _derive(_gram.imbalance_ratio, self["gram"])

    @property
    def cos_alpha(self) -> NDArray[np.float64]:
        """Cosine of the angle of g_l with the sum of the others, shape (T, L)."""
        return _derive(_gram.cos_alpha, self["gram"])

    @property
    def condition(self) -> NDArray[np.float64]:
        """1 + C_t^(l) cos α^(l) of gradient descent, shape (T, L)."""
        return _derive(_gram.condition, self["gram"])

    @property
    def unit_imbalance_ratio(self) -> NDArray[np.float64]:
        """C̃_t^(l) of unit class gradients, shape (T, L)."""
        return _derive(lambda gram: _gram.imbalance_ratio(_gram.unit_gram(gram)), self["gram"])

    @property
    def unit_condition(self) -> NDArray[np.float64]:
        """1 + C̃_t^(l) cos α̃^(l) of per-class-normalized gradient descent, shape (T, L)."""
        return _derive(lambda gram: _gram.condition(_gram.unit_gram(gram)), self["gram"])

    @property
    def omega(self) -> NDArray[np.float64]:
        """ω_t^(l) of the PCNGD theorems, shape (T, L)."""
        return _derive(_gram.omega, self["gram"])

    @property
    def predicted_change(self) -> NDArray[np.float64]:
        """First-order change of every f^(l) in the step after each point, shape (T, L).

        −η (K w)_l, unless the run stored its own (a batch's step is not a function of the full Gram matrix).
        """
        if "predicted_change" in self:
            return self["predicted_change"]
        lr, weights = _tensor(self["lr"]), _tensor(self["weights"])
        return _derive(lambda gram: _gram.predicted_change(gram, weights, lr), self["gram"])

    def every(self, name: str) -> tuple[NDArray[np.int64], Array]:
        """Give the steps and the values of a quantity measured at every step."""
        return self[f"{EVERY}step"], self[EVERY + name]

    def differences(self, other: Run) -> list[str]:
        """Name what differs, bit for bit, leaving out times and memory (names that begin so); [] when nothing does."""
        return _meta_differences(self.meta, other.meta) + _series_differences(self.series, other.series)

    def identical(self, other: Run) -> bool:
        """Tell whether two runs measured the same bits; times and memory may differ."""
        return not self.differences(other)


def mean_over(values: NDArray[np.float64], classes: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean over the chosen classes (columns) that were measured at the first point, shape (T,); nan without any."""
    chosen = values[:, classes & ~np.isnan(values[0])]
    mean: NDArray[np.float64] = chosen.mean(axis=1) if chosen.shape[1] else np.full(len(values), np.nan)
    return mean


def _derive(function: Callable[[Tensor], Tensor], values: Array) -> NDArray[Any]:
    return function(_tensor(values)).numpy()


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.array(values))  # a copy, for torch refuses read-only and reversed arrays


def _check_meta(meta: Mapping[str, Any]) -> None:
    classes, counts = meta.get("classes"), meta.get("counts")
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise InputError(f"Parameter `meta` should list the names of the classes under 'classes'. Found {classes!r}.")
    if not isinstance(counts, list) or len(counts) != len(classes):
        raise InputError(
            f"Parameter `meta` should list the training examples of each of {len(classes)} classes under 'counts'. "
            f"Found {counts!r}."
        )
    if not all(type(count) is int and 0 <= count < 2**63 for count in counts):
        raise InputError(f"Parameter `meta` should have whole numbers from 0 on under 'counts'. Found {counts!r}.")
    seed, spec = meta.get("seed"), meta.get("spec")
    if seed is not None and type(seed) is not int:
        raise InputError(f"Parameter `meta` should have a whole number under 'seed'. Found {seed!r}.")
    if spec is not None and not (isinstance(spec, dict) and {"algorithm", "data"} <= set(spec)):
        raise InputError("Parameter `meta` should have the settings of a run under 'spec'. Found something else.")
    try:
        "".join(classes).encode()
    except UnicodeEncodeError:
        raise InputError(
            "Parameter `meta` should have names of classes that are text. Found lone surrogates."
        ) from None
    status = meta.get("status", "finished")
    if status not in STATUSES:
        raise InputError(f"Parameter `meta` should have one of {', '.join(STATUSES)} under 'status'. Found {status!r}.")


def _check_axis(series: Mapping[str, Array], axis: str, members: Mapping[str, Array]) -> None:
    steps = series.get(axis)
    if steps is None or steps.ndim != 1 or steps.dtype != np.int64 or len(steps) == 0:
        found = "nothing" if steps is None else f"{steps.dtype} of shape {steps.shape}"
        raise InputError(f"Series {axis!r} should be one row of int64 steps, at least one. Found {found}.")
    if steps[0] < 0 or (np.diff(steps) <= 0).any():
        raise InputError(f"Series {axis!r} should rise from 0 on. Found {steps.tolist()[:8]} ...")
    for name, values in members.items():
        if values.ndim == 0 or len(values) != len(steps) or values.dtype not in (np.float64, np.int64):
            raise InputError(
                f"Series {name!r} should be float64 or int64 with {len(steps)} rows, as {axis!r} has. "
                f"Found {values.dtype} of shape {values.shape}."
            )


def _class_axes(series: Mapping[str, Array]) -> dict[str, int]:
    """How many class axes follow the first one, for the names whose meaning is fixed."""
    known = {"gram": 2, "weights": 1, "predicted_change": 1, "measured_change": 1, "projection": 1, "noise": 1}
    known |= {f"{split}/confusion": 2 for split in SPLITS} | {f"{split}/loss": 1 for split in SPLITS}
    return {name: axes for name, axes in known.items() if name in series}


def _is_timing(name: str) -> bool:
    return name.rpartition("/")[2].startswith(("seconds", "memory"))


def _meta_differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    names = [name for name in sorted(mine.keys() | theirs.keys()) if not _is_timing(name)]
    absent = object()
    return [f"meta {name!r}" for name in names if mine.get(name, absent) != theirs.get(name, absent)]


def _series_differences(mine: Mapping[str, Array], theirs: Mapping[str, Array]) -> list[str]:
    names = [name for name in sorted(mine.keys() | theirs.keys()) if not _is_timing(name)]
    return [f"series {name!r}" for name in names if not _same_bits(mine.get(name), theirs.get(name))]


def _same_bits(mine: Array | None, theirs: Array | None) -> bool:
    if mine is None or theirs is None:
        return False
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()

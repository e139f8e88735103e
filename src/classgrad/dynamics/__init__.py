"""What is measured along a training run, and what it says.

- The Gram matrix K of the class gradients, read by pure functions: :func:`class_norms`, :func:`class_cosines`,
  :func:`imbalance_ratio` (C_t), :func:`cos_alpha`, :func:`condition`, :func:`omega`, :func:`predicted_change`; the
  per-class-normalized version of each is that of :func:`unit_gram`.
- Per-class metrics from one confusion matrix: :func:`confusion_matrix`, :func:`recall`, :func:`macro_recall`, ...
- :class:`Run`, the record of a run.
"""

from classgrad.dynamics._gram import (
    class_cosines,
    class_norms,
    condition,
    cos_alpha,
    imbalance_ratio,
    normalizing_weights,
    omega,
    predicted_change,
    unit_gram,
    weighted_gram,
)
from classgrad.dynamics._metrics import (
    class_loss_sums,
    class_losses,
    confusion_matrix,
    f1,
    macro_recall,
    precision,
    recall,
)
from classgrad.dynamics._run import SETTINGS, SPLITS, STATUSES, Run

__all__ = [
    "SETTINGS",
    "SPLITS",
    "STATUSES",
    "Run",
    "class_cosines",
    "class_loss_sums",
    "class_losses",
    "class_norms",
    "condition",
    "confusion_matrix",
    "cos_alpha",
    "f1",
    "imbalance_ratio",
    "macro_recall",
    "normalizing_weights",
    "omega",
    "precision",
    "predicted_change",
    "recall",
    "unit_gram",
    "weighted_gram",
]

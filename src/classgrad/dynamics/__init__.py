"""What is measured along a training run, and what it says.

- The Gram matrix K of the class gradients, read by pure functions: :func:`class_norms`, :func:`class_cosines`,
  :func:`imbalance_ratio` (C_t), :func:`cos_alpha`, :func:`condition`, :func:`omega`, :func:`predicted_change`; the
  per-class-normalized version of each is that of :func:`unit_gram`.
- Per-class metrics from one confusion matrix: :func:`confusion_matrix`, :func:`recall`, :func:`macro_recall`, ...
- :class:`Run`, the record of a run, made by a :class:`Recorder` at the steps of a :func:`measuring_grid`, kept in one
  file by :func:`save_run` and :func:`load_run`.
- What runs say: :func:`detect_mid` (the minority initial drop), :func:`hitting_time` (τ), :func:`mean_curve` over
  seeds, and :func:`summarize`.
- Directional noise of a batch: :func:`projection`, :func:`deviation`, :func:`orthogonal_noise`.
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
from classgrad.dynamics._grid import authors_grid, log_grid, measuring_grid
from classgrad.dynamics._metrics import (
    class_loss_sums,
    class_losses,
    confusion_matrix,
    f1,
    macro_recall,
    precision,
    recall,
)
from classgrad.dynamics._mid import Drop, Mid, detect_mid, find_drop, learned_step, told_by
from classgrad.dynamics._noise import deviation, orthogonal_noise, projection, to_population
from classgrad.dynamics._recorder import Recorder
from classgrad.dynamics._run import SETTINGS, SPLITS, STATUSES, Run
from classgrad.dynamics._seeds import Estimate, HittingTime, MeanCurve, estimate, hitting_time, mean_curve, peak
from classgrad.dynamics._store import load_run, save_run
from classgrad.dynamics._summary import Summary, default_threshold, summarize

__all__ = [
    "SETTINGS",
    "SPLITS",
    "STATUSES",
    "Drop",
    "Estimate",
    "HittingTime",
    "MeanCurve",
    "Mid",
    "Recorder",
    "Run",
    "Summary",
    "authors_grid",
    "class_cosines",
    "class_loss_sums",
    "class_losses",
    "class_norms",
    "condition",
    "confusion_matrix",
    "cos_alpha",
    "default_threshold",
    "detect_mid",
    "deviation",
    "estimate",
    "f1",
    "find_drop",
    "hitting_time",
    "imbalance_ratio",
    "learned_step",
    "load_run",
    "log_grid",
    "macro_recall",
    "mean_curve",
    "measuring_grid",
    "normalizing_weights",
    "omega",
    "orthogonal_noise",
    "peak",
    "precision",
    "predicted_change",
    "projection",
    "recall",
    "save_run",
    "summarize",
    "to_population",
    "told_by",
    "unit_gram",
    "weighted_gram",
]
